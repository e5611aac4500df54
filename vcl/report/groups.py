"""Which runs belong together: seeds of one configuration, and configurations on one stream."""

import json
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from vcl.errors import VclError
from vcl.runs.folder import RunFolder
from vcl.runs.results import Record, Result

Member = TypeVar("Member")


def configurations(folders: Sequence[RunFolder]) -> list[list[RunFolder]]:
    """Runs that differ in their seeds alone, together."""
    seen: dict[str, RunFolder] = {}
    for folder in folders:
        same = seen.setdefault(_key(configuration(folder.record), folder.record["seed"]), folder)
        if same is not folder:
            raise VclError(
                f"{same.path} and {folder.path} are the same run: one configuration, one seed. Name one of them."
            )
    return together(folders, lambda folder: configuration(folder.record))


def streams(folders: Sequence[RunFolder]) -> list[list[RunFolder]]:
    """Runs that learn the same tasks, together."""
    return together(folders, lambda folder: stream(folder.record))


def results_by_configuration(results: Sequence[Result]) -> list[list[Result]]:
    """Results that differ in their seeds alone, together."""
    return together(results, configuration)


def together(members: Sequence[Member], facts: Callable[[Member], Any]) -> list[list[Member]]:
    """Members of which the same facts hold, in the order in which they first occur."""
    groups: dict[str, list[Member]] = {}
    for member in members:
        groups.setdefault(_key(facts(member)), []).append(member)
    return list(groups.values())


def configuration(run: Record | Result) -> list[Any]:
    """All that was asked for but the seed."""
    return [run["benchmark"], run["method"], run["config"]]


def stream(run: Record | Result) -> list[Any]:
    """What decides which tasks are learnt, but the seed."""
    return [run["benchmark"], run["config"]["stream"], run["task_names"]]


def _key(*facts: Any) -> str:
    return json.dumps(facts, sort_keys=True)


def stream_name(record: Record) -> str:
    """The benchmark, and what was changed about it, fit for a file's name."""
    changes = [f"{option}-{value}" for option, value in record["config"]["stream"].items() if value]
    return "-".join([record["benchmark"], *changes]).replace("_", "-")


def configuration_name(folder: RunFolder) -> str:
    """A run's name without its seed."""
    return folder.name.removesuffix(f"-seed{folder.record['seed']}")
