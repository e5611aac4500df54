"""What decides a run's result: the benchmark, the method and their settings."""

import hashlib
import json
import os
import platform
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NotRequired, TypedDict

from vcl.benchmarks import STREAMS, StreamOptions, settings_for
from vcl.core import Learner, StreamSpec
from vcl.errors import VclError, choose
from vcl.methods import METHODS, make, settings_of
from vcl.methods.base.settings import Recipes
from vcl.runs.legacy import completed, translated
from vcl.runs.results import Record, Settings, mismatch

MOST_THREADS = 1024


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
    def settings(self) -> Settings:
        """All but the seed, as JSON has it."""
        return {
            "recipe": self.recipe,
            "stream": self.stream.as_json(),
            "learner": settings_of(self.learner),
            "threads": self.threads,
        }

    @property
    def name(self) -> str:
        """The run folder's name: the same configuration finds its run again."""
        fingerprint = hashlib.sha256(json.dumps([self.benchmark, self.method, self.settings]).encode()).hexdigest()
        return f"{self.benchmark}-{self.method}-{fingerprint[:8]}-seed{self.seed}"


def configure(
    benchmark: str,
    method: str = "vcl",
    *,
    recipe: str | None = None,
    seed: int = 0,
    threads: int | None = None,
    stream: StreamOptions | None = None,
    **settings: Any,
) -> RunConfig:
    """A recipe's settings for a benchmark, with some of them changed.

    The default recipe is `fast`; `online`, where a task's data arrive in batches and the method has one for that.

    Examples
    --------
    >>> import vcl
    >>> vcl.configure("permuted-mnist", epochs=50).learner.epochs
    50
    """
    options = stream or StreamOptions()
    choose("benchmark", benchmark, STREAMS)
    kind = METHODS[choose("method", method, METHODS)]
    recipe = recipe or default_recipe(kind.recipes, options.online)
    by_benchmark = kind.recipes[choose("recipe", recipe, kind.recipes)]
    if not isinstance(seed, int) or isinstance(seed, bool):
        raise VclError(f"--seed must be a whole number, but it is {seed!r}.")
    check_threads(threads)
    if not 0 <= seed < 2**31:
        raise VclError(f"--seed must be between 0 and {2**31 - 1}, but it is {seed}.")
    learner = make(method, {**settings_for(by_benchmark, benchmark), **settings})
    return RunConfig(benchmark, method, seed, recipe, options, learner, threads or available_threads())


def check_threads(threads: int | None) -> None:
    """Refuse what is no number of cores; 0 and None are all of them."""
    if threads is not None and not (isinstance(threads, int) and 0 <= threads <= MOST_THREADS):
        raise VclError(
            f"--threads must be a whole number from 0 to {MOST_THREADS}, but it is {threads!r}. This process may "
            f"use {available_threads()} cores."
        )


def default_recipe(recipes: Recipes, online: int) -> str:
    """The recipe that is used where none is named."""
    return "online" if online and "online" in recipes else "fast"


def from_record(record: Record) -> RunConfig:
    """The configuration that a run folder holds."""
    try:
        config = record["config"]
        method, settings = record["method"], config["learner"]
        if record["format"] == 1:
            method, settings = translated(method, settings)
        return configure(
            record["benchmark"],
            method,
            recipe=config["recipe"],
            seed=record["seed"],
            threads=config["threads"],
            stream=StreamOptions(**config["stream"]),
            **completed(method, settings),
        )
    except (KeyError, TypeError) as error:
        raise VclError(f"This run's run.json was changed or is incomplete ({error}). Restore it.") from None


def processor() -> str:
    """The name of this machine's processor, on which seconds depend."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor())


def available_threads() -> int:
    """How many cores this process may use."""
    wanted = os.environ.get("NPROC")
    if wanted and not (wanted.isdecimal() and int(wanted) > 0):
        raise VclError(f"The environment variable NPROC is the number of cores to use, but it is {wanted!r}.")
    return int(wanted or len(os.sched_getaffinity(0)))


def unused_root(root: Path, config: RunConfig) -> Path:
    """A folder below `root` in which this configuration has not been run: nothing is ever overwritten."""
    number = 2
    while (root / f"again-{number}" / config.name).exists():
        number += 1
    return root / f"again-{number}" if (root / config.name).exists() else root


def spec_from_record(record: Record) -> StreamSpec:
    return spec_from(record["spec"])


class Sizes(TypedDict):
    """A `StreamSpec` as JSON."""

    input_shape: list[int]
    input_dtype: str
    num_classes: int
    heads: list[int]
    capacity: int
    scenario: NotRequired[str]


def spec_from(value: dict[str, Any]) -> StreamSpec:
    """The sizes that a run or a model was made for; a stranger's JSON may hold anything."""
    wrong = mismatch(value, Sizes)
    names = set(Sizes.__annotations__)
    if wrong or not Sizes.__required_keys__ <= set(value) <= names or not value["heads"] or min(value["heads"]) < 0:
        reason = wrong or f"it must have {', '.join(sorted(names))}, and heads from 0"
        raise VclError(f"What is stored of the sizes of a stream was not written by vcl: {reason}.")
    return StreamSpec.from_json(value)
