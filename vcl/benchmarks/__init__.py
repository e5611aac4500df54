"""Streams of tasks, each a pure function of its options and the seed."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from vcl.benchmarks.streams import hold_out, joint, limited, online, permuted, real, split
from vcl.core import Scenario, Stream, StreamSpec
from vcl.data import DATASETS, load, load_table
from vcl.data.tables import read_covertype_in_order
from vcl.errors import VclError, choose

__all__ = ["STREAMS", "Benchmark", "StreamOptions", "build", "hold_out", "joint", "limited", "online"]

MOST_TASKS = 20_000

Family = Literal["split", "permuted", "real"]


@dataclass(frozen=True)
class Benchmark:
    """Where a stream's examples come from and what is done with them."""

    family: Family
    dataset: str
    summary: str
    read: Callable[..., Any] | None = None
    """How rows are arranged into tasks, where not as the data set has them."""


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
    "covertype-areas": Benchmark("real", "covertype", "4 wilderness areas: which kind of forest grows where"),
    "covertype-time": Benchmark(
        "real", "covertype", "10 parts of Covertype in the order of its file", read_covertype_in_order
    ),
    "elec2": Benchmark("real", "elec2", "12 parts: will the price of electricity rise in the next half hour"),
    "weather": Benchmark("real", "weather", "10 parts: will it rain, from fifty years of measurements"),
    "flights-months": Benchmark("real", "flights", "12 months of flights out of New York: delayed or not"),
}


@dataclass(frozen=True)
class StreamOptions:
    """How a benchmark is cut into tasks. None means the benchmark's own default."""

    scenario: Scenario | None = None
    num_tasks: int | None = None
    permute_first: bool = False
    online: int = 0
    validation: float = 0.0
    examples: int = 0
    """How many training examples a task has; 0 for all."""

    def as_json(self) -> dict[str, Any]:
        """As runs keep it; without `examples` where it is 0, so that runs from before it keep their names."""
        return {name: value for name, value in asdict(self).items() if name != "examples" or value}


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
    if not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed < 2**31:
        raise VclError(f"--seed must be a whole number from 0 to {2**31 - 1}, but it is {seed!r}.")
    stream = arrange(name, benchmark, options, seed, data_dir, say)
    if options.validation:
        stream = hold_out(stream, options.validation, seed)
    if options.examples:
        stream = limited(stream, options.examples, seed)
    if options.online:
        stream = online(stream, options.online, seed)
    return stream


def arrange(
    name: str,
    benchmark: Benchmark,
    options: StreamOptions,
    seed: int,
    data_dir: Path | None,
    say: Callable[[str], None] | None,
) -> Stream:
    if benchmark.family == "real":
        table = load_table(benchmark.dataset, data_dir, say, benchmark.read)
        return real(name, table, options.scenario or "domain", options.num_tasks)
    data = load(benchmark.dataset, data_dir, say)
    if benchmark.family == "split":
        return split(name, data, options.scenario or "task", options.num_tasks)
    return permuted(name, data, options.scenario or "domain", options.num_tasks or 10, options.permute_first, seed)


def class_names(name: str, spec: StreamSpec) -> list[tuple[str, ...]]:
    """What the outputs of each head stand for; `class 0`, … where nothing is known about a stream.

    >>> class_names("split-fashion", StreamSpec((28, 28), "uint8", 2, (0, 1), capacity=1, scenario="task"))[1]
    ('pullover', 'dress')
    """
    known = named_classes(name)
    split = name in STREAMS and STREAMS[name].family == "split"
    if split and spec.scenario == "task":
        return [known[2 * head : 2 * head + 2] for head in range(spec.num_heads)]
    if split and spec.scenario == "domain":
        return [tuple(" or ".join(known[side : 2 * spec.num_tasks : 2]) for side in (0, 1))]
    numbers = tuple(f"class {number}" for number in range(spec.num_classes))
    return [known if len(known) == spec.num_classes else numbers] * spec.num_heads


def readable_tasks(name: str, task_names: Sequence[str]) -> list[str]:
    """The names of tasks; of pairs of things that are no digits, the things.

    >>> readable_tasks("split-fashion", ["0v1", "2v3"]), readable_tasks("split-mnist", ["0v1"])
    (['T-shirt v trousers', 'pullover v dress'], ['0v1'])
    """
    if name not in STREAMS or STREAMS[name].family != "split":
        return list(task_names)
    known = named_classes(name)
    things = [c for c in range(0, len(known) - 1, 2) if known[c] != str(c)]
    pairs = {f"{c}v{c + 1}": f"{known[c]} v {known[c + 1]}" for c in things}
    return [pairs.get(task, task) for task in task_names]


def named_classes(name: str) -> tuple[str, ...]:
    return DATASETS[STREAMS[name].dataset].class_names if name in STREAMS else ()


def settings_for(recipe: Mapping[str, dict[str, Any]], benchmark: str) -> dict[str, Any]:
    """A recipe's settings for a benchmark: its own, or else its family's; for real streams, those of split ones."""
    for name in (benchmark, STREAMS[benchmark].family, "split"):
        if name in recipe:
            return recipe[name]
    raise VclError(f"This recipe has no settings for {benchmark}. Name another recipe.")


def check(benchmark: Benchmark, options: StreamOptions) -> None:
    """Refuse options that cannot be meant, before any data is loaded."""
    if options.scenario is not None:
        choose("scenario", options.scenario, get_args(Scenario))
    for name in ("num_tasks", "online", "examples"):
        value = getattr(options, name)
        if value is None and name == "num_tasks":
            continue
        if not isinstance(value, int) or isinstance(value, bool):
            raise VclError(f"--{name.replace('_', '-')} must be a whole number, but it is {value!r}.")
    if (tasks := options.num_tasks or 0) > MOST_TASKS:
        raise VclError(
            f"--num-tasks {tasks} are more than {MOST_TASKS}: the matrix of accuracies alone would have "
            f"{tasks:.3g}² numbers, {8e-9 * tasks**2:,.0f} GB, and at a second for each task learning would take "
            f"{tasks / 86400:,.1f} days."
        )
    if options.num_tasks is not None and options.num_tasks < 1:
        raise VclError(f"--num-tasks must be at least 1, but it is {options.num_tasks}.")
    if options.online < 0:
        raise VclError(f"--online is the number of examples that arrive at once, but it is {options.online}.")
    if options.examples < 0:
        raise VclError(f"--examples is the number of training examples of a task, but it is {options.examples}.")
    if not (isinstance(options.validation, int | float) and 0 <= options.validation < 1):
        raise VclError(
            "--validation is the fraction of the training data to hold out, between 0 and 1, "
            f"but it is {options.validation}."
        )
    if benchmark.family != "split" and options.scenario == "class":
        kind = "Permuted" if benchmark.family == "permuted" else "Real"
        raise VclError(
            f"{kind} benchmarks have no class scenario: every task has the same classes. Use --scenario "
            "domain (one shared head, the default) or task (a head for each task)."
        )
    if benchmark.family != "permuted" and options.permute_first:
        raise VclError(
            f"--permute-first is for the permuted benchmarks; a {benchmark.family} benchmark permutes nothing."
        )
