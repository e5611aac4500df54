"""What the file of a model says beside its arrays: tasks, labels, and the log, as JSON."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

import numpy as np

from vcl.checkpoints import DamagedCheckpoint, read_facts
from vcl.core import Examples, StreamSpec
from vcl.errors import VclError
from vcl.inputs import Label
from vcl.runs.results import mismatch

FORMAT = 1


@dataclass(frozen=True)
class LearntTask:
    """What a model knows of one task."""

    name: Label
    head: int
    batches: int = 0
    examples: int = 0


class TaskFacts(TypedDict):
    """A task in the file of a model."""

    name: Any
    head: int
    batches: int
    examples: int


class LogFacts(TypedDict):
    """An entry of the log in the file of a model."""

    task: Any
    examples: int
    new_classes: list[Any]


class ModelFacts(TypedDict):
    """What the file of a model says, as JSON."""

    version: str
    method: str | None
    settings: dict[str, Any] | None
    seed: int
    shared_head: bool
    spec: dict[str, Any]
    stages: int
    classes: list[Any]
    head_classes: list[list[int]]
    tasks: list[TaskFacts]
    kept: list[int]
    notes: dict[str, Any]
    log: list[LogFacts]


def with_task(tasks: Sequence[LearntTask], name: Label, shared_head: bool) -> tuple[list[LearntTask], int]:
    """The tasks with this one among them, and its place."""
    names = [task.name for task in tasks]
    if name in names:
        return list(tasks), names.index(name)
    return [*tasks, LearntTask(name, 0 if shared_head else len(tasks))], len(tasks)


def relabelled(entry: dict[str, Any], change: Callable[[Any], Any]) -> dict[str, Any]:
    """An entry of the log with its task and classes as JSON has them, or back."""
    return {**entry, "task": change(entry["task"]), "new_classes": [*map(change, entry["new_classes"])]}


def kept_like(spec: StreamSpec, examples: int) -> Examples:
    """The shapes of kept examples."""
    labels = np.empty(examples, np.int32)
    return Examples(np.empty((examples, spec.input_size), spec.input_dtype), labels, labels)


def read_model_facts(path: Path, kind: str) -> dict[str, Any]:
    """What a model's file says of itself; its checksum is compared when the arrays are read."""
    if not path.exists():
        raise VclError(f"There is no model {path}. Model.save writes one.")
    try:
        facts = read_facts(path)
    except DamagedCheckpoint as damage:
        raise VclError(f"{damage} Restore it from a copy.") from None
    if facts.get("kind") != kind:
        raise VclError(f"{path} is not a model that {kind.removeprefix('vcl.')}.save wrote.")
    if type(number := facts.get("format")) is not int:
        raise VclError(f"{path} was not written by vcl: it has no format. Restore it from a copy.")
    if number > FORMAT:
        raise VclError(
            f"The model in {path} was written by vcl {facts.get('version', '?')}, in format {number}; this version "
            f"reads up to format {FORMAT}. Install that version of vcl, or a later one."
        )
    facts.setdefault("notes", {})
    check_facts(facts, ModelFacts, path)
    for entry in facts["tasks"]:
        check_facts(entry, TaskFacts, path)
    for entry in facts["log"]:
        check_facts(entry, LogFacts, path)
    heads, classes = len(facts["head_classes"]), len(facts["classes"])
    fits = facts["tasks"] and all(0 <= task["head"] < heads for task in facts["tasks"])
    if kind == "vcl.Model":
        fits = fits and all(0 <= number < classes for known in facts["head_classes"] for number in known)
    if not fits or any(examples < 0 for examples in facts["kept"]):
        raise VclError(f"{path} was not written by vcl: its tasks and classes do not fit. Restore it from a copy.")
    return facts


def check_facts(facts: Any, kind: Any, path: Path) -> None:
    """Refuse an object that lacks what vcl writes, or has it of another type."""
    wrong = mismatch(facts, kind)
    missing = sorted(kind.__required_keys__ - set(facts)) if not wrong else []
    if wrong or missing:
        reason = wrong or f"it has no {missing[0]!r}"
        raise VclError(f"{path} was not written by vcl: {reason}. Restore it from a copy.")
