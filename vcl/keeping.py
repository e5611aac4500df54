"""What the file of a model says beside its arrays: tasks, labels, and the log, as JSON."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vcl.checkpoints import DamagedCheckpoint, read_facts
from vcl.core import Examples, StreamSpec
from vcl.errors import VclError
from vcl.inputs import Label

FORMAT = 1


@dataclass(frozen=True)
class LearntTask:
    """What a model knows of one task."""

    name: Label
    head: int
    batches: int = 0
    examples: int = 0


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
    if facts["format"] > FORMAT:
        raise VclError(
            f"The model in {path} was written by vcl {facts['version']}, in format {facts['format']}; this version "
            f"reads up to format {FORMAT}. Install that version of vcl, or a later one."
        )
    return facts
