"""A sweep as a file: which benchmark and method, what is fixed, and what is varied.

    benchmark = "split-digits"
    method = "vcl"
    seeds = 2

    [settings]
    epochs = 20

    [grid]
    learning_rate = [0.001, 0.003]
    hidden = [[50], [100]]

In place of [grid], [search] lets Optuna choose: `trials`, `sampler`, `pruner`, and a [search.space] in which each
setting has `choices`, or `low` and `high` (with `log = true` or a `step`). With `recipe_first = true` the first
trial has the settings of the recipe.
"""

import itertools
import json
import math
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from pathlib import Path
from statistics import mean
from typing import Any

from vcl.benchmarks import StreamOptions
from vcl.errors import VclError, choose
from vcl.files import read_regular
from vcl.methods import settings_of
from vcl.runs.config import RunConfig, configure
from vcl.runs.results import Result

VALIDATION = 0.1
MOST_CANDIDATES = 10_000
KEYS = ("benchmark", "method", "recipe", "seeds", "first_seed", "threads", "stream", "settings", "grid", "search")
SEARCH_KEYS = ("trials", "sampler", "pruner", "seed", "recipe_first", "space")

Settings = dict[str, Any]


@dataclass(frozen=True)
class Search:
    """What Optuna is asked to do."""

    trials: int
    space: dict[str, dict[str, Any]]
    sampler: str = "tpe"
    pruner: str = "none"
    seed: int = 0
    recipe_first: bool = False
    """Whether the first trial has the settings of the recipe, so that the best is never worse."""


@dataclass(frozen=True)
class Plan:
    """A sweep: candidates are compared by their average accuracy on validation data, over all seeds."""

    name: str
    benchmark: str
    method: str = "vcl"
    recipe: str | None = None
    seeds: int = 1
    first_seed: int = 0
    threads: int = 1
    stream: StreamOptions = field(default_factory=lambda: StreamOptions(validation=VALIDATION))
    settings: Settings = field(default_factory=dict)
    grid: dict[str, list[Any]] = field(default_factory=dict)
    search: Search | None = None

    def candidates(self) -> list[Settings]:
        """Every combination of the grid."""
        return [dict(zip(self.grid, values, strict=True)) for values in itertools.product(*self.grid.values())]

    def configs(self, candidate: Settings) -> list[RunConfig]:
        """The runs of a candidate: one for each seed."""
        return [
            configure(
                self.benchmark,
                self.method,
                recipe=self.recipe,
                seed=self.first_seed + number,
                threads=self.threads,
                stream=self.stream,
                **{**self.settings, **candidate},
            )
            for number in range(self.seeds)
        ]


def read_plan(path: Path) -> Plan:
    """The plan in a TOML file, or an error that says what is wrong with it."""
    try:
        document = tomllib.loads(read_regular(path).decode())
    except (OSError, ValueError, RecursionError) as error:
        raise VclError(f"{path} cannot be read as TOML: {error}.") from None
    return plan_from(document, path.stem)


def plan_from(document: dict[str, Any], name: str) -> Plan:
    """A plan from what its file says.

    >>> plan = plan_from({"benchmark": "split-digits", "grid": {"epochs": [1, 2]}}, "mine")
    >>> plan.candidates()
    [{'epochs': 1}, {'epochs': 2}]
    """
    for key in document:
        choose("entry of a sweep's file", key, KEYS)
    if not isinstance(document.get("benchmark"), str):
        raise VclError('A sweep needs a benchmark: benchmark = "split-mnist".')
    if odd := [key for key in ("method", "recipe") if not isinstance(document.get(key, ""), str)]:
        raise VclError(f"{odd[0]} must be a name in quotes, but it is {document[odd[0]]!r}.")
    if ("grid" in document) == ("search" in document):
        raise VclError("A sweep needs either a [grid] or a [search].")
    for key in ("stream", "settings", "grid", "search"):
        if not isinstance(document.get(key, {}), dict):
            raise VclError(f"[{key}] must be a table of names and values.")
    for key, least in (("seeds", 1), ("first_seed", 0), ("threads", 1)):
        value = document.get(key, least)
        if type(value) is not int or not least <= value <= MOST_CANDIDATES:
            raise VclError(f"{key} must be a whole number of at least {least}, but it is {value!r}.")
    for varied, values in document.get("grid", {}).items():
        if not isinstance(values, list) or not values:
            raise VclError(f"[grid] {varied} must be a list of values, but it is {values!r}.")
    options = document.get("stream", {})
    for option in options:
        choose("option of [stream]", option, [f.name for f in fields(StreamOptions)])
    given = {key: value for key, value in document.items() if key not in ("stream", "search")}
    search = search_from(document["search"]) if "search" in document else None
    plan = Plan(name, **given, stream=StreamOptions(**{"validation": VALIDATION, **options}), search=search)
    if not plan.stream.validation:
        raise VclError("Settings are chosen on validation data: leave [stream] validation above 0.")
    check_grid(plan)
    return plan


def check_grid(plan: Plan) -> None:
    """Refuse a grid whose candidates are not sound, before any of them is run."""
    count = math.prod(map(len, plan.grid.values()))
    if count * plan.seeds > MOST_CANDIDATES:
        raise VclError(f"The grid has {count} candidates and {plan.seeds} seeds, more than {MOST_CANDIDATES} runs.")
    for candidate in plan.candidates() if plan.grid else ():
        plan.configs(candidate)


def recipe_of(plan: Plan) -> Settings:
    """What the recipe has for the settings that are searched."""
    used = settings_of(plan.configs({})[0].learner)
    return {name: used[choose("setting", name, used)] for name in plan.search.space} if plan.search else {}


def search_from(table: dict[str, Any]) -> Search:
    """The table [search]."""
    for key in table:
        choose("entry of [search]", key, SEARCH_KEYS)
    trials, space = table.get("trials"), table.get("space")
    if type(trials) is not int or not 1 <= trials <= MOST_CANDIDATES:
        raise VclError(f"[search] trials must be a number from 1 to {MOST_CANDIDATES}, but it is {trials!r}.")
    if not isinstance(space, dict) or not space:
        raise VclError("[search.space] must name at least one setting.")
    for name, values in space.items():
        if not (isinstance(values, dict) and (is_choice(values) or is_range(values))):
            raise VclError(
                f"[search.space] {name} needs choices = [...], or low = ... and high = ..., with low at most high, "
                f"and above 0 where log = true; a step is above 0, and not for log = true. It is {values!r}."
            )
    if type(table.get("seed", 0)) is not int or table.get("seed", 0) < 0:
        raise VclError(f"[search] seed must be a whole number from 0, but it is {table['seed']!r}.")
    if type(table.get("recipe_first", False)) is not bool:
        raise VclError(f"[search] recipe_first must be true or false, but it is {table['recipe_first']!r}.")
    choose("sampler", table.get("sampler", "tpe"), ("tpe", "random"))
    choose("pruner", table.get("pruner", "none"), ("none", "median", "hyperband"))
    return Search(**table)


def is_choice(values: dict[str, Any]) -> bool:
    """Whether these are choices for a setting."""
    return set(values) == {"choices"} and isinstance(values["choices"], list) and bool(values["choices"])


def is_range(values: dict[str, Any]) -> bool:
    """Whether these are the ends of a range for a setting.

    >>> is_range({"low": 1, "high": 3}), is_range({"low": 0, "high": 1, "log": True})
    (True, False)
    """
    if not {"low", "high"} <= set(values) <= {"low", "high", "log", "step"}:
        return False
    numbers = [values[name] for name in ("low", "high", "step") if name in values]
    if not all(type(number) in (int, float) and math.isfinite(number) for number in numbers):
        return False
    log, whole = values.get("log", False), all(type(values[end]) is int for end in ("low", "high"))
    if type(log) is not bool or (log and ("step" in values or values["low"] <= 0)):
        return False
    steps_fit = "step" not in values or (values["step"] > 0 and (type(values["step"]) is int or not whole))
    return values["low"] <= values["high"] and steps_fit


def shard(candidates: list[Settings], part: str | None) -> list[Settings]:
    """The candidates of one of several machines: part "2/3" is the second of three.

    >>> shard([{"epochs": 1}, {"epochs": 2}, {"epochs": 3}], "2/2")
    [{'epochs': 2}]
    """
    if part is None:
        return candidates
    first, _, of = part.partition("/")
    if not (first.isdecimal() and of.isdecimal() and 1 <= int(first) <= int(of)):
        raise VclError(f"--shard is a part such as 2/3, the second of three, but it is {part!r}.")
    return candidates[int(first) - 1 :: int(of)]


@dataclass(frozen=True)
class Candidate:
    """Settings that were tried, and the average accuracy of each seed on validation data."""

    settings: Settings
    accuracies: tuple[float, ...]
    note: str = ""
    """Why there are no accuracies."""

    @property
    def accuracy(self) -> float | None:
        return mean(self.accuracies) if self.accuracies else None


def best_first(candidates: Iterable[Candidate]) -> list[Candidate]:
    return sorted(candidates, key=lambda c: -1.0 if c.accuracy is None else c.accuracy, reverse=True)


def judged(settings: Settings, outcomes: Iterable[Result | VclError]) -> Candidate:
    """A candidate with what its runs came to."""
    found = list(outcomes)
    failures = [outcome for outcome in found if isinstance(outcome, VclError)]
    if failures:
        return Candidate(settings, (), str(failures[0]))
    return Candidate(settings, tuple(r["average_accuracy"] for r in found if not isinstance(r, VclError)))


def as_markdown(plan: Plan, candidates: Iterable[Candidate]) -> str:
    """The candidates as a table, best first."""
    lines = [f"# {plan.name}: {plan.method} on {plan.benchmark}, accuracy on validation data", ""]
    lines += ["| settings | accuracy (%) | seeds |", "|---|---|---|"]
    for c in best_first(candidates):
        accuracy = c.note or ("–" if c.accuracy is None else f"{100 * c.accuracy:.2f}")
        lines.append(f"| `{json.dumps(c.settings)}` | {accuracy} | {len(c.accuracies)} |")
    return "\n".join(lines) + "\n"
