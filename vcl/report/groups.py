"""Which runs belong together: seeds of one configuration, and configurations on one stream."""

import json
from collections.abc import Callable, Sequence
from typing import Any

from vcl.errors import VclError
from vcl.store import RunFolder


def configurations(folders: Sequence[RunFolder]) -> list[list[RunFolder]]:
    """Runs that differ in their seeds alone, together."""
    seen: dict[str, RunFolder] = {}
    for folder in folders:
        same = seen.setdefault(_key(_asked_for(folder.record), folder.record["seed"]), folder)
        if same is not folder:
            raise VclError(
                f"{same.path} and {folder.path} are the same run: one configuration, one seed. Name one of them."
            )
    return _together(folders, _asked_for)


def streams(folders: Sequence[RunFolder]) -> list[list[RunFolder]]:
    """Runs that learn the same tasks, together."""
    return _together(folders, lambda record: [record["benchmark"], record["config"]["stream"], record["task_names"]])


def _together(folders: Sequence[RunFolder], facts: Callable[[dict[str, Any]], Any]) -> list[list[RunFolder]]:
    groups: dict[str, list[RunFolder]] = {}
    for folder in folders:
        groups.setdefault(_key(facts(folder.record)), []).append(folder)
    return list(groups.values())


def _asked_for(record: dict[str, Any]) -> list[Any]:
    """All but the seed."""
    return [record["benchmark"], record["method"], record["config"]]


def _key(*facts: Any) -> str:
    return json.dumps(facts, sort_keys=True)


def stream_name(record: dict[str, Any]) -> str:
    """The benchmark, and what was changed about it, fit for a file's name."""
    changes = [f"{option}-{value}" for option, value in record["config"]["stream"].items() if value]
    return "-".join([record["benchmark"], *changes]).replace("_", "-")


def configuration_name(folder: RunFolder) -> str:
    """A run's name without its seed."""
    return folder.name.removesuffix(f"-seed{folder.record['seed']}")


def labels(records: Sequence[dict[str, Any]]) -> list[str]:
    """What tells configurations on one stream apart: method, recipe, and settings within the same recipe."""
    told = []
    coresets = _several(_settings(record).get("coreset", 0) for record in records)
    for record in records:
        siblings = [other for other in records if other["method"] == record["method"]]
        close = [_settings(other) for other in siblings if _recipe(other) == _recipe(record)]
        parts = [record["method"]]
        if _several(_recipe(other) for other in siblings):
            parts.append(_recipe(record))
        for name, value in _settings(record).items():
            if (name == "coreset" and coresets) or _several(other.get(name) for other in close):
                parts.append(_setting(name, value))
        told.append(", ".join(parts))
    return told


def _settings(record: dict[str, Any]) -> dict[str, Any]:
    return {**record["config"]["learner"], "threads": record["config"]["threads"]}


def _recipe(record: dict[str, Any]) -> str:
    return str(record["config"]["recipe"])


def _setting(name: str, value: Any) -> str:
    return "no coreset" if (name, value) == ("coreset", 0) else f"{name}={value}"


def _several(values: Any) -> bool:
    return len({json.dumps(value) for value in values}) > 1
