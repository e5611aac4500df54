"""Streams of tasks, each a pure function of its options and the seed."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from vcl.benchmarks.streams import hold_out, joint, online, permuted, split
from vcl.core import Scenario, Stream
from vcl.data import Dataset, load
from vcl.errors import VclError, choose

__all__ = ["STREAMS", "Benchmark", "StreamOptions", "build", "hold_out", "joint", "online"]

Family = Literal["split", "permuted"]


@dataclass(frozen=True)
class Benchmark:
    """Where a stream's images come from and what is done with them."""

    family: Family
    dataset: str
    summary: str


STREAMS: dict[str, Benchmark] = {
    "split-mnist": Benchmark("split", "mnist", "5 tasks: tell 0 from 1, 2 from 3, … 8 from 9 (the paper's first)"),
    "permuted-mnist": Benchmark(
        "permuted", "mnist", "10 digits; each task shuffles the pixels (the paper's second)"
    ),
    "split-fashion": Benchmark("split", "fashion-mnist", "5 tasks: pairs of garments"),
    "permuted-fashion": Benchmark("permuted", "fashion-mnist", "10 garments; each task shuffles the pixels"),
    "split-cifar10": Benchmark("split", "cifar10", "5 tasks: pairs of objects in colour photographs"),
    "split-digits": Benchmark("split", "digits", "5 tasks on 8×8 digits: needs no download, trains in seconds"),
    "permuted-digits": Benchmark("permuted", "digits", "8×8 digits; each task shuffles the pixels; no download"),
}


@dataclass(frozen=True)
class StreamOptions:
    """How a benchmark is cut into tasks. None means the benchmark's own default."""

    scenario: Scenario | None = None
    num_tasks: int | None = None
    permute_first: bool = False
    online: int = 0
    validation: float = 0.0


def build(
    name: str,
    options: StreamOptions,
    seed: int,
    data_dir: Path | None = None,
    say: Callable[[str], None] | None = None,
) -> Stream:
    """The stream called `name`, with its data loaded (and fetched, where that is needed)."""
    benchmark = STREAMS[choose("benchmark", name, STREAMS)]
    check(benchmark, options)
    stream = arrange(name, benchmark, load(benchmark.dataset, data_dir, say), options, seed)
    if options.validation:
        stream = hold_out(stream, options.validation, seed)
    if options.online:
        stream = online(stream, options.online, seed)
    return stream


def arrange(name: str, benchmark: Benchmark, data: Dataset, options: StreamOptions, seed: int) -> Stream:
    if benchmark.family == "split":
        return split(name, data, options.scenario or "task", options.num_tasks)
    return permuted(name, data, options.scenario or "domain", options.num_tasks or 10, options.permute_first, seed)


def check(benchmark: Benchmark, options: StreamOptions) -> None:
    """Refuse options that cannot be meant, before any data is loaded."""
    if options.num_tasks is not None and options.num_tasks < 1:
        raise VclError(f"--num-tasks must be at least 1, but it is {options.num_tasks}.")
    if options.online < 0:
        raise VclError(f"--online is the number of examples that arrive at once, but it is {options.online}.")
    if not 0 <= options.validation < 1:
        raise VclError(
            "--validation is the fraction of the training data to hold out, between 0 and 1, "
            f"but it is {options.validation}."
        )
    if benchmark.family == "permuted" and options.scenario == "class":
        raise VclError(
            "Permuted benchmarks have no class scenario: every task has the same ten classes. Use --scenario "
            "domain (one shared head, the default) or task (a head for each task)."
        )
    if benchmark.family == "split" and options.permute_first:
        raise VclError("--permute-first is for the permuted benchmarks; a split benchmark permutes nothing.")
