"""The types of what a run folder holds as JSON."""

from typing import Any, TypedDict


class TaskScores(TypedDict):
    """How well one task's test data is predicted; entropies in nats."""

    accuracy: float
    log_likelihood: float
    calibration_error: float
    total_entropy: float
    aleatoric_entropy: float


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
    untrained_accuracy: list[float]
    accuracy_before_learning: list[float]
    task_names: list[str]
    scores: list[list[TaskScores]]


class Measured(Summary):
    """What `vcl.learn` finds."""

    steps: int
    train_seconds: float
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
