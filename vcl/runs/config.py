"""What decides a run's result: the benchmark, the method and their settings."""

import hashlib
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from vcl.benchmarks import STREAMS, StreamOptions
from vcl.core import Learner, StreamSpec
from vcl.errors import VclError, choose
from vcl.methods import METHODS, make, settings_of
from vcl.methods.base.settings import Recipes
from vcl.runs.legacy import translated
from vcl.runs.results import Record, Settings


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
            "stream": asdict(self.stream),
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
    family = STREAMS[choose("benchmark", benchmark, STREAMS)].family
    kind = METHODS[choose("method", method, METHODS)]
    recipe = recipe or default_recipe(kind.recipes, options.online)
    by_benchmark = kind.recipes[choose("recipe", recipe, kind.recipes)]
    if not 0 <= seed < 2**31:
        raise VclError(f"--seed must be between 0 and {2**31 - 1}, but it is {seed}.")
    learner = make(method, {**by_benchmark.get(benchmark, by_benchmark[family]), **settings})
    return RunConfig(benchmark, method, seed, recipe, options, learner, threads or available_threads())


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
            **settings,
        )
    except (KeyError, TypeError) as error:
        raise VclError(f"This run's run.json was changed or is incomplete ({error}). Restore it.") from None


def available_threads() -> int:
    """How many cores this process may use."""
    return int(os.environ.get("NPROC") or len(os.sched_getaffinity(0)))


def unused_root(root: Path, config: RunConfig) -> Path:
    """A folder below `root` in which this configuration has not been run: nothing is ever overwritten."""
    number = 2
    while (root / f"again-{number}" / config.name).exists():
        number += 1
    return root / f"again-{number}" if (root / config.name).exists() else root


def spec_from_record(record: Record) -> StreamSpec:
    return StreamSpec.from_json(record["spec"])
