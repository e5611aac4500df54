"""From a configuration to a finished run: what the command line, sweeps and Python users call."""

import functools
import hashlib
import json
import os
import platform
import shlex
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import numpy as np
from platformdirs import user_cache_path

from vcl import evaluation, experiment
from vcl.benchmarks import STREAMS, StreamOptions, build
from vcl.core import Learner, StreamSpec, check_inputs
from vcl.errors import VclError, choose
from vcl.evaluation import Prediction
from vcl.experiment import Reporter
from vcl.methods import METHODS
from vcl.store import RunFolder
from vcl.training import Fitter, Tracer

Tracing = Callable[[RunFolder, int], Tracer]
"""Gives the tracer of a run's stage (from 1). It is handed to other processes, which find it by its name."""


@dataclass(frozen=True)
class RunConfig:
    """Everything that decides a run's result."""

    benchmark: str
    method: str
    seed: int
    recipe: str
    stream: StreamOptions
    learner: Learner
    threads: int
    """Sums are rounded in an order that depends on it."""

    @property
    def settings(self) -> dict[str, Any]:
        """All but the seed, as JSON has it."""
        config = {
            "recipe": self.recipe,
            "stream": asdict(self.stream),
            "learner": asdict(self.learner),  # type: ignore[call-overload]
            "threads": self.threads,
        }
        return json.loads(json.dumps(config))

    @property
    def name(self) -> str:
        """The run folder's name: the same configuration finds its run again."""
        fingerprint = hashlib.sha256(json.dumps([self.benchmark, self.method, self.settings]).encode()).hexdigest()
        return f"{self.benchmark}-{self.method}-{fingerprint[:8]}-seed{self.seed}"


def configure(
    benchmark: str,
    method: str = "vcl",
    *,
    recipe: str = "fast",
    seed: int = 0,
    threads: int | None = None,
    stream: StreamOptions | None = None,
    **settings: Any,
) -> RunConfig:
    """A recipe's settings for a benchmark, with some of them changed."""
    family = STREAMS[choose("benchmark", benchmark, STREAMS)].family
    kind = METHODS[choose("method", method, METHODS)]
    by_benchmark = kind.recipes[choose("recipe", recipe, kind.recipes)]
    known = [f.name for f in fields(kind)]  # type: ignore[arg-type]
    for name in settings:
        choose(f"setting of {method}", name, known)
    if not 0 <= seed < 2**31:
        raise VclError(f"--seed must be between 0 and {2**31 - 1}, but it is {seed}.")
    chosen = {**by_benchmark.get(benchmark, by_benchmark[family]), **settings}
    learner = kind(**{k: _hashable(v) for k, v in chosen.items()})
    options = stream or StreamOptions()
    return RunConfig(benchmark, method, seed, recipe, options, learner, threads or available_threads())


def from_record(record: dict[str, Any]) -> RunConfig:
    """The configuration that a run folder holds."""
    try:
        config = record["config"]
        return configure(
            record["benchmark"],
            record["method"],
            recipe=config["recipe"],
            seed=record["seed"],
            threads=config["threads"],
            stream=StreamOptions(**config["stream"]),
            **config["learner"],
        )
    except (KeyError, TypeError) as error:
        raise VclError(f"This run's run.json was changed or is incomplete ({error}). Restore it.") from None


def available_threads() -> int:
    """How many cores this process may use."""
    return int(os.environ.get("NPROC") or len(os.sched_getaffinity(0)))


def prepare_jax(threads: int) -> None:
    """Use so many cores, and keep compiled programs. To be called before anything is computed."""
    os.environ["NPROC"] = str(threads)
    jax.config.update("jax_compilation_cache_dir", str(user_cache_path("vcl") / "compiled"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.3)


def run(
    config: RunConfig,
    root: Path = Path("runs"),
    *,
    reporter: Reporter | None = None,
    stop: Callable[[], bool] = lambda: False,
    data_dir: Path | None = None,
    seconds_between_checkpoints: float = 15.0,
    trace: Tracing | None = None,
) -> dict[str, Any]:
    """The result of a run: read if it is complete in `root`, continued if it was interrupted, else made.

    A `trace` watches the learning (`vcl.analysis.trace.tracer`) and does not change a bit of the result.
    """
    path = root / config.name
    folder = RunFolder.open(path) if (path / "run.json").exists() else None
    return _go_on(config, path, folder, reporter, stop, data_dir, seconds_between_checkpoints, trace)


def resume(
    folder: RunFolder,
    *,
    reporter: Reporter | None = None,
    stop: Callable[[], bool] = lambda: False,
    data_dir: Path | None = None,
    seconds_between_checkpoints: float = 15.0,
    trace: Tracing | None = None,
) -> dict[str, Any]:
    """The result of the run in a folder: read if it is complete, else continued."""
    config = from_record(folder.record)
    return _go_on(config, folder.path, folder, reporter, stop, data_dir, seconds_between_checkpoints, trace)


def _go_on(
    config: RunConfig,
    path: Path,
    folder: RunFolder | None,
    reporter: Reporter | None,
    stop: Callable[[], bool],
    data_dir: Path | None,
    seconds_between_checkpoints: float,
    trace: Tracing | None,
) -> dict[str, Any]:
    reporter = reporter or experiment.Silent()
    if folder and folder.result is not None:
        if trace and not folder.looks():
            reporter.warn(
                f"This run is complete in {path}, without a trace: showing what it found. vcl run with "
                "--fresh --trace runs it again and records one."
            )
        else:
            reporter.say(f"This run is complete in {path}: showing what it found. --fresh runs it again.")
        return folder.result
    stream = build(config.benchmark, config.stream, config.seed, data_dir, reporter.say)
    # Whatever the learner refuses, it refuses here: before there is a folder.
    jax.eval_shape(lambda: config.learner.init(jax.random.key(0), stream.spec))
    if not folder:
        facts = {"spec": asdict(stream.spec), "task_names": stream.task_names, "stages": stream.stages}
        folder = RunFolder.create(path, {**describe(config), **facts})
    with folder.lock():
        folder.clean()
        measured = experiment.learn(
            config.learner,
            stream,
            config.seed,
            folder=folder,
            reporter=reporter,
            stop=stop,
            seconds_between_checkpoints=seconds_between_checkpoints,
            trace=functools.partial(trace, folder) if trace else None,
        )
        result = {
            "benchmark": config.benchmark,
            "method": config.method,
            "seed": config.seed,
            "config": config.settings,
            **measured,
            "version": version("vcl"),
            "run": folder.name,
        }
        folder.write_result(result)
    return result


def describe(config: RunConfig) -> dict[str, Any]:
    """What a run folder says of its own making."""
    return {
        "benchmark": config.benchmark,
        "method": config.method,
        "seed": config.seed,
        "config": config.settings,
        "version": version("vcl"),
        "versions": {
            "python": platform.python_version(),
            **{name: version(name) for name in ("jax", "jaxlib", "numpy", "optax", "equinox")},
        },
        "command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def unused_root(root: Path, config: RunConfig) -> Path:
    """A folder below `root` in which this configuration has not been run: nothing is ever overwritten."""
    number = 2
    while (root / f"again-{number}" / config.name).exists():
        number += 1
    return root / f"again-{number}" if (root / config.name).exists() else root


def spec_from_record(record: dict[str, Any]) -> StreamSpec:
    return StreamSpec(**{k: _hashable(v) for k, v in record["spec"].items()})


def _hashable(value: Any) -> Any:
    """JSON's lists were tuples."""
    return tuple(value) if isinstance(value, list) else value


def predict(
    folder: RunFolder, inputs: np.ndarray, *, task: int | None = None, stage: int | None = None
) -> Prediction:
    """Predictions of a stored run, for inputs of the shape it was trained on.

    `task` counts from 1 and is needed where every task has its own head; `stage` is the last stage by default.
    """
    record = folder.record
    config, spec = from_record(record), spec_from_record(record)
    rows = as_rows(inputs, spec)
    if task is None:
        if spec.num_heads > 1:
            raise VclError(
                f"The run in {folder.path} has a head for each of its {spec.num_tasks} tasks. Say which one the "
                f"inputs belong to: --task 1 … {spec.num_tasks}."
            )
        task = 1
    if not 1 <= task <= spec.num_tasks:
        raise VclError(f"--task {task} is not one of this run's tasks, 1 … {spec.num_tasks}.")
    stages = folder.stages()
    if not stages:
        raise VclError(f"The run in {folder.path} has not learnt a task yet. Go on with: vcl resume {folder.path}")
    root = jax.random.key(config.seed)
    like = config.learner.init(root, spec)
    stage = stage or stages[-1]
    state = folder.state_after(stage, like)
    key = experiment.stage_key(root, stage - 1, 1)
    params = config.learner.readout(key, state, spec.task(task - 1), Fitter())
    return evaluation.predict(config.learner, jax.random.fold_in(key, task - 1), params, rows)


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
