"""The types of what a run folder holds as JSON, and whether a stranger's JSON is of them."""

import types
from pathlib import Path
from typing import Any, NotRequired, TypedDict, Union, cast, get_args, get_origin, get_type_hints, is_typeddict

from vcl.errors import VclError


class TaskScores(TypedDict):
    """How well one task's test data is predicted; entropies in nats."""

    accuracy: float
    log_likelihood: float
    calibration_error: float
    total_entropy: float
    aleatoric_entropy: float
    brier_score: NotRequired[float]
    """Runs before version 0.2 do not have it."""


class Settings(TypedDict):
    """All that decides a run's result but benchmark, method and seed."""

    recipe: str
    stream: dict[str, Any]
    learner: dict[str, Any]
    threads: int


class Summary(TypedDict):
    """Accuracies, and what follows from them."""

    accuracy_matrix: list[list[float | None]]
    """Row i: accuracy on each task after task i + 1; None for tasks not yet seen."""
    average_accuracy: float
    forgetting: float
    backward_transfer: float
    forward_transfer: float | None
    """None where tasks bring outputs of their own: untrained ones say nothing about transfer."""
    prequential_accuracy: NotRequired[float | None]
    """Mean accuracy on each task but the first just before it is learnt; None as for `forward_transfer`."""
    untrained_accuracy: list[float]
    accuracy_before_learning: list[float]
    task_names: list[str]
    scores: list[list[TaskScores]]


class Measured(Summary):
    """What `vcl.learn` finds."""

    steps: int
    train_seconds: float
    cpu_seconds: NotRequired[float | None]
    """The processor's part of them, which other work on the machine does not lengthen. Runs before 0.2 lack it."""
    parameters: int
    stored_examples: int
    state_bytes: int
    state_sha256: str


class Result(Measured):
    """`result.json`: what a complete run found, and how it was made."""

    benchmark: str
    method: str
    seed: int
    config: Settings
    version: str
    processor: NotRequired[str]
    """Which seconds depend on. Runs before 0.2 lack it."""
    run: str


class Record(TypedDict, total=False):
    """`run.json`: what was asked for."""

    format: int
    benchmark: str
    method: str
    seed: int
    config: Settings
    version: str
    versions: dict[str, str]
    command: str
    created: str
    spec: dict[str, Any]
    task_names: list[str]
    stages: list[int]
    origin: dict[str, Any]
    """Of derived runs: the run they come from, and how."""


class Event(TypedDict, total=False):
    """One line of `metrics.jsonl`."""

    event: str
    stage: int
    phase: str
    first: int
    objectives: list[float]
    accuracy: list[float]
    task: int
    ends_task: bool
    scores: list[TaskScores]


LATER = {"parameters", "stored_examples", "state_bytes"}
"""What results of version 0.1 do not have."""
NEEDED = {
    "objective": {"stage", "phase", "first", "objectives"},
    "evaluation": {"stage", "task", "ends_task", "scores"},
    "untrained": {"stage", "accuracy"},
}
"""What each kind of event tells."""


def check_record(record: dict[str, Any], path: Path) -> Record:
    """The same record, if all it has is of its type."""
    if wrong := mismatch(record, Record):
        raise VclError(f"{path} was not written by vcl: {wrong}. Restore it, or start the run again elsewhere.")
    return cast(Record, record)


def check_result(result: dict[str, Any], path: Path) -> Result:
    """The same result, if all of it is there, of its type, and of one number of tasks."""
    wrong = mismatch(result, Result)
    missing = sorted(Result.__required_keys__ - LATER - set(result))
    if not wrong and result and missing:
        wrong = f"it has no {missing[0]!r}"
    if not wrong and result:
        tasks = len(result["task_names"])
        squares = {"accuracy_matrix": [len(row) for row in result["accuracy_matrix"]] == [tasks] * tasks}
        squares["scores"] = [len(row) for row in result["scores"]] == list(range(1, tasks + 1))
        squares["untrained_accuracy"] = len(result["untrained_accuracy"]) == tasks
        wrong = next((f"{name!r} does not fit its {tasks} tasks" for name, fits in squares.items() if not fits), "")
    if wrong:
        raise VclError(f"{path} was not written by vcl: {wrong}. Remove it; `vcl resume` makes it again.")
    return cast(Result, result)


def check_event(event: dict[str, Any]) -> bool:
    """Whether an event has all that its kind tells."""
    return not mismatch(event, Event) and NEEDED.get(event.get("event", ""), set()) <= set(event)


def mismatch(value: Any, hint: Any, name: str = "it") -> str:  # noqa: PLR0911
    """Where a value from JSON is not of a type; empty if it is. A TypedDict may have keys more or less.

    >>> mismatch({"accuracy": "high"}, TaskScores)
    "'accuracy' is a str, not float"
    """
    origin, inside = get_origin(hint), get_args(hint)
    if is_typeddict(hint):
        if not isinstance(value, dict):
            return f"{name} is a {type(value).__name__}, not an object"
        hints = get_type_hints(hint)
        found = (mismatch(value[key], hints[key], repr(key)) for key in hints if key in value)
        return next(filter(None, found), "")
    if origin in (Union, types.UnionType):
        return "" if any(not mismatch(value, one) for one in inside) else f"{name} is a {type(value).__name__}"
    if origin is list and isinstance(value, list):
        return next(filter(None, (mismatch(one, inside[0], f"an entry of {name}") for one in value)), "")
    if origin is dict and isinstance(value, dict):
        return next(filter(None, (mismatch(one, inside[1], f"an entry of {name}") for one in value.values())), "")
    wanted: Any = origin or hint
    if hint is Any or (hint is float and type(value) is int) or type(value) is wanted:
        return ""
    return f"{name} is a {type(value).__name__}, not {getattr(wanted, '__name__', wanted)}"
