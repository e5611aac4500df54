"""From the paper's cells to ours: what is there already, how long the rest takes, and the tables."""

import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np
from jaxtyping import Float, PyTree

from vcl import learning
from vcl.benchmarks import build, joint, limited
from vcl.methods import settings_of
from vcl.runs.archive import find
from vcl.runs.config import RunConfig
from vcl.runs.folder import RunFolder
from vcl.runs.paper import Cell
from vcl.runs.results import Result
from vcl.training import Fitter, NoRecorder

MEASURED_SECONDS = 2.0
"""For how long a run is timed, after it is compiled."""
FEWEST_EXAMPLES, FEWEST_STEPS = 1000, 16
"""How much of a task is timed, at the least: an epoch of a wide network takes minutes."""
WITHOUT_EFFECT = ("noise",)
"""Settings by which results may differ and still count as the same: accuracies agree within the spread of seeds."""


@dataclass
class Reproduction:
    """A cell of the paper with our runs, those that are complete and those that are missing."""

    cell: Cell
    configs: list[RunConfig]
    results: list[Result] = field(default_factory=list)
    missing: list[RunConfig] = field(default_factory=list)


def survey(cell: Cell, configs: list[RunConfig], root: Path, kept: Sequence[Result] = ()) -> Reproduction:
    """Which runs of a cell are complete, in run folders below `root` or among `kept` results."""
    found = Reproduction(cell, configs)
    for config in configs:
        result = in_folder(config, root) or find(config, kept, WITHOUT_EFFECT)
        if result is None:
            found.missing.append(config)
        else:
            found.results.append(result)
    return found


def in_folder(config: RunConfig, root: Path) -> Result | None:
    path = root / config.name
    return RunFolder.open(path).result if (path / "result.json").exists() else None


class EnoughMeasured(Exception):
    """Ends a fit that is only timed."""


@dataclass
class Stopwatch(NoRecorder):
    """Times the fits of a task one by one: each is begun once to compile it, then timed, and then left out."""

    compiled: set[str] = field(default_factory=set)
    seconds: dict[str, float] = field(default_factory=dict)
    """What all epochs of a fit take, by its name."""
    began: float = 0.0

    def restore(self, phase: str, like: PyTree) -> tuple[int, PyTree] | None:
        self.began = time.process_time()
        return (sys.maxsize, like) if phase in self.seconds else None

    def advance(self, phase: str, epoch: int, epochs: int, history: Float[np.ndarray, "epochs"]) -> None:
        elapsed = time.process_time() - self.began
        if phase not in self.compiled:
            self.compiled.add(phase)
            raise EnoughMeasured
        if epoch == epochs or elapsed > MEASURED_SECONDS:
            self.seconds[phase] = elapsed * epochs / epoch
            raise EnoughMeasured


def fitting_seconds(observe: Callable[[Fitter], object]) -> float:
    """Seconds that all fits of a task take, compiling left out, from some epochs of each."""
    watch = Stopwatch()
    while True:
        try:
            observe(Fitter(watch))
        except EnoughMeasured:
            continue
        return sum(watch.seconds.values())


def estimate(config: RunConfig, data_dir: Path | None = None) -> float:
    """Seconds that a run will take on one core of its own, from a few steps on some of its first task's examples.

    Measured on the processor, so that other work on the machine does not count. Work outside the training loop (a
    Fisher information, coresets, tests) and costs that grow with the number of tasks are not in it.
    """
    whole = build(config.benchmark, config.stream, config.seed, data_dir)
    batch_size = settings_of(config.learner)["batch_size"]
    stream = limited(whole, max(FEWEST_EXAMPLES, FEWEST_STEPS * batch_size), config.seed)
    stream = joint(stream) if config.learner.joint else stream
    start = learning.begin(config.learner, stream.spec, config.seed)
    seconds = fitting_seconds(lambda fitter: learning.observe(start, stream.task(0), stream.train(0), fitter))
    steps, measured = (-(-len(one.train(0).labels) // batch_size) for one in (whole, stream))
    tasks = len(stream.stages)
    return seconds * steps / measured * (tasks * (tasks + 1) / 2 if config.learner.joint else tasks)


def accuracy(results: Sequence[Result]) -> str:
    """Mean ± standard deviation of the final average accuracy, in per cent.

    >>> accuracy([{"average_accuracy": 0.9}, {"average_accuracy": 0.92}])
    '91.00 ± 1.41'
    """
    values = [100.0 * result["average_accuracy"] for result in results]
    if not values:
        return "not run"
    return f"{mean(values):.2f} ± {stdev(values):.2f}" if len(values) > 1 else f"{values[0]:.2f}"


def markdown(found: Iterable[Reproduction]) -> str:
    """A table of the paper beside ours."""
    lines = ["| | paper (%) | ours (%) | seeds | recipe | note |", "| --- | ---: | ---: | ---: | --- | --- |"]
    for one in found:
        cells = [one.cell.name, one.cell.paper, accuracy(one.results), str(len(one.results))]
        lines.append(f"| {' | '.join([*cells, one.configs[0].recipe, one.cell.note])} |")
    return "\n".join(lines) + "\n"


def as_json(found: Iterable[Reproduction]) -> list[dict[str, Any]]:
    """The same for programs."""
    return [
        {
            "name": one.cell.name,
            "paper": one.cell.paper,
            "average_accuracy": [result["average_accuracy"] for result in one.results],
            "seeds": [result["seed"] for result in one.results],
            "missing": [config.name for config in one.missing],
            "recipe": one.configs[0].recipe,
            "note": one.cell.note,
        }
        for one in found
    ]
