"""What runs are called beside each other: the settings in which they differ, in words."""

import json
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from vcl.runs.results import Record, Result

Run = Record | Result
"""Both say which benchmark, method, settings and seed a run has."""


def labels(runs: Sequence[Run], *, always: Collection[str] = ("method",), over_seeds: bool = False) -> list[str]:
    """A label for each run: what tells it apart from the others, and no more.

    A benchmark, a method and a recipe each stand for many settings. So runs of different ones are told apart by
    these names, and settings are named only where they differ within the same benchmark, method and recipe.

    Parameters
    ----------
    runs
        The runs that stand beside each other.
    always
        What is named even where it is the same for all: of `benchmark`, `method`, `recipe` and `seed`.
    over_seeds
        Each run stands for all seeds of its configuration, so that seeds are left out.

    Examples
    --------
    >>> def run(method, seed, **settings):
    ...     config = {"recipe": "fast", "stream": {}, "learner": settings, "threads": 1}
    ...     return {"benchmark": "split-mnist", "method": method, "seed": seed, "config": config}
    >>> labels([run("vcl", 0, epochs=5), run("vcl", 0, epochs=10), run("ewc", 0, epochs=7)])
    ['vcl, epochs=5', 'vcl, epochs=10', 'ewc']
    >>> labels([run("vcl", 0), run("vcl", 1)])
    ['vcl, seed 0', 'vcl, seed 1']
    """
    coresets_differ = _several(_settings(run).get("coreset", 0) for run in runs)
    found = []
    for run in runs:
        on_same = [other for other in runs if other["benchmark"] == run["benchmark"]]
        of_same = [other for other in on_same if other["method"] == run["method"]]
        close = [_settings(other) for other in of_same if _recipe(other) == _recipe(run)]
        parts = []
        if "benchmark" in always or len(on_same) < len(runs):
            parts.append(run["benchmark"])
        if "method" in always or len(of_same) < len(on_same):
            parts.append(run["method"])
        if "recipe" in always or _several(map(_recipe, of_same)):
            parts.append(_recipe(run))
        for name, value in run["config"]["stream"].items():
            if _several(other["config"]["stream"].get(name) for other in on_same):
                parts.append(setting(name, value))
        for name, value in _settings(run).items():
            if (name == "coreset" and coresets_differ) or _several(other.get(name) for other in close):
                parts.append(setting(name, value))
        if not over_seeds and ("seed" in always or _several(other["seed"] for other in runs)):
            parts.append(f"seed {run['seed']}")
        found.append(", ".join(parts))
    return _numbered(found)


def setting(name: str, value: Any) -> str:
    """A setting with its value.

    >>> setting("epochs", 10), setting("coreset", 0), setting("hidden", [100, 100])
    ('epochs=10', 'no coreset', 'hidden=100×100')
    >>> setting("permute_first", True), setting("num_tasks", None)
    ('permute_first', 'default num_tasks')
    """
    if value is None:
        return f"default {name}"
    if value is False or (name, value) == ("coreset", 0):
        return f"no {name}"
    return name if value is True else f"{name}={_text(value)}"


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return " ".join(map(_text, value.values()))
    return "×".join(map(_text, value)) if isinstance(value, list | tuple) else str(value)


def _numbered(found: Sequence[str]) -> list[str]:
    """The same run from several places is counted: nothing else tells its copies apart."""
    total, seen = Counter(found), Counter[str]()
    numbered = []
    for label in found:
        seen[label] += 1
        numbered.append(f"{label} ({seen[label]})" if total[label] > 1 else label)
    return numbered


def _settings(run: Run) -> dict[str, Any]:
    return {**run["config"]["learner"], "threads": run["config"]["threads"]}


def _recipe(run: Run) -> str:
    return run["config"]["recipe"]


def _several(values: Iterable[Any]) -> bool:
    return len({json.dumps(value) for value in values}) > 1
