"""A run folder opened: its configuration, spec and states, with their types."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from vcl import learning
from vcl.benchmarks import build
from vcl.core import Learner, State, Stream, StreamSpec, check_inputs
from vcl.errors import VclError
from vcl.evaluation import Prediction
from vcl.learning import Snapshot
from vcl.runs.config import RunConfig, from_record, spec_from_record
from vcl.runs.folder import RunFolder
from vcl.runs.results import Record, Result

NEEDED = {"benchmark", "method", "seed", "config", "version", "spec", "task_names", "stages"}
"""What the record of a run must have."""


@dataclass(frozen=True)
class StoredRun:
    """One run as its folder holds it.

    Examples
    --------
    >>> import vcl
    >>> _ = vcl.run(config := vcl.configure("split-digits", epochs=2, stream=vcl.StreamOptions(num_tasks=2)))
    >>> run = vcl.StoredRun.open(f"runs/{config.name}")
    >>> run.last_stage, run.spec.num_tasks
    (2, 2)
    """

    folder: RunFolder

    @staticmethod
    def open(path: str | Path) -> "StoredRun":
        """The run in a folder, checked to be one that this version can read."""
        folder = RunFolder.open(Path(path))
        if missing := sorted(NEEDED - set(folder.record)):
            raise VclError(
                f"{folder.path / 'run.json'} was changed or is incomplete: it has no {missing[0]!r}. Restore it."
            )
        _ = folder.result  # it is refused if it belongs to another record than this one
        return StoredRun(folder)

    @property
    def path(self) -> Path:
        return self.folder.path

    @property
    def name(self) -> str:
        return self.folder.name

    @cached_property
    def record(self) -> Record:
        """What was asked for."""
        return self.folder.record

    @cached_property
    def config(self) -> RunConfig:
        return from_record(self.record)

    @property
    def learner(self) -> Learner:
        return self.config.learner

    @cached_property
    def spec(self) -> StreamSpec:
        return spec_from_record(self.record)

    @property
    def result(self) -> Result:
        """What the run found; it must be complete."""
        result = self.folder.result
        if result is None:
            raise VclError(f"The run in {self.path} is not complete. Continue it with: vcl resume {self.path}")
        return result

    @property
    def last_stage(self) -> int:
        """The last stage (from 1) with a checkpoint; there must be one."""
        return self.stage(None)

    def stage(self, after: int | None) -> int:
        """The stage asked for (from 1), or the last one; it must have a checkpoint."""
        stages = self.folder.stages()
        if not stages:
            raise VclError(
                f"The run in {self.path} has not learnt a task yet. Continue it with: vcl resume {self.path}"
            )
        if after is not None and after not in stages:
            raise VclError(f"The run in {self.path} has no checkpoint after stage {after}. It has: {stages}.")
        last = len(self.record["stages"])
        if stages[-1] != last and self.folder.result is not None:
            raise VclError(
                f"The run in {self.path} is complete, but its checkpoint after stage {last}, the last, is missing. "
                f"To make it again, remove {self.path / 'result.json'}, then: vcl resume {self.path}"
            )
        return after or stages[-1]

    def task_ends(self) -> list[int]:
        """The stages (from 1) with a checkpoint after which a task is complete; there must be one."""
        self.stage(None)
        stages, found = self.record["stages"], self.folder.stages()
        ends = [n for n in range(1, found[-1] + 1) if stages[n - 1] not in stages[n:]]
        if missing := sorted(set(ends) - set(found)):
            raise VclError(
                f"The run in {self.path} has lost its checkpoint after stage {missing[0]}, without which it cannot "
                "be analysed task by task. Restore it, or run again with --fresh."
            )
        return ends

    def state(self, after: int | None = None) -> State:
        """What was learnt after a stage (from 1; the last by default)."""
        return self.folder.state_after(self.stage(after), learning.template(self.learner, self.spec))

    def snapshot(self, after: int | None = None) -> Snapshot:
        """The learner with its state after a stage."""
        stage = self.stage(after)
        return Snapshot(self.learner, self.spec, self.config.seed, self.state(stage), stage)

    def stream(self, data_dir: Path | None = None) -> Stream:
        """The stream of tasks that the run learns from."""
        return build(self.config.benchmark, self.config.stream, self.config.seed, data_dir)

    def predict(self, inputs: np.ndarray, *, task: int | None = None, stage: int | None = None) -> Prediction:
        """Predictions for inputs of the shape that the run was trained on.

        `task` counts from 1 and is needed where tasks are answered separately: where every task has its own head, or
        the method a network for each. `stage` is the last one by default.
        """
        rows = as_rows(inputs, self.spec)
        if task is None:
            if self.spec.num_heads > 1 or (self.spec.num_tasks > 1 and self.learner.needs_task_id):
                raise VclError(
                    f"The run in {self.path} answers for each of its {self.spec.num_tasks} tasks separately. Say "
                    f"which one the inputs belong to: --task 1 … {self.spec.num_tasks}."
                )
            task = 1
        if not 1 <= task <= self.spec.num_tasks:
            raise VclError(f"--task {task} is not one of this run's tasks, 1 … {self.spec.num_tasks}.")
        return learning.predict(self.snapshot(stage), self.spec.task(task - 1), rows)


def predict(
    folder: RunFolder, inputs: np.ndarray, *, task: int | None = None, stage: int | None = None
) -> Prediction:
    """Predictions of a stored run: see `StoredRun.predict`."""
    return StoredRun(folder).predict(inputs, task=task, stage=stage)


def as_rows(inputs: np.ndarray, spec: StreamSpec) -> np.ndarray:
    """Inputs as the network takes them, or an error that says what they should be."""
    shape = spec.input_shape
    if inputs.ndim < 2 or inputs.shape[1:] not in (shape, (spec.input_size,)):
        raise VclError(
            f"The inputs have shape {inputs.shape}, but this run takes (examples, {', '.join(map(str, shape))}) "
            f"or (examples, {spec.input_size})."
        )
    if len(inputs) == 0:
        raise VclError("The inputs hold no examples.")
    check_inputs(inputs, "The inputs")
    if spec.input_dtype == "uint8" and inputs.dtype != np.uint8 and (inputs.min() < 0 or inputs.max() > 1):
        raise VclError(
            f"The inputs are {inputs.dtype} between {inputs.min():.3g} and {inputs.max():.3g}. This run was "
            "trained on pixels: give uint8 from 0 to 255, or floats scaled to [0, 1]."
        )
    rows = inputs.reshape(len(inputs), -1)
    return rows if rows.dtype == np.uint8 else rows.astype(np.float32)
