"""Trackers: sinks that hand a run's measurements to TensorBoard or MLflow."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vcl.errors import VclError
from vcl.runs.events import Advanced, Ended, Evaluated, Event, Silent

Measurement = tuple[str, float, int]
"""A name, a value and a step."""


def measurements(event: Event) -> Iterator[Measurement]:
    """What an event tells, as numbers. Steps count from 1 and depend on the place alone: resuming repeats none."""
    if isinstance(event, Advanced):
        for number, objective in enumerate(event.objectives, event.first + 1):
            yield f"objective/stage-{event.stage + 1}-{event.phase}", objective, number
    if isinstance(event, Evaluated):
        step = event.stage + 1
        for number, scores in enumerate(event.scores[: event.task + 1], 1):
            yield f"accuracy/task-{number}", scores["accuracy"], step
            yield f"log-likelihood/task-{number}", scores["log_likelihood"], step
        yield "accuracy/average", sum(event.accuracies) / len(event.accuracies), step


class TensorBoard(Silent):
    """Writes a run's measurements where TensorBoard reads them."""

    def __init__(self, folder: str | Path) -> None:
        try:
            from tensorboardX import SummaryWriter
        except ImportError:
            raise VclError("TensorBoard files need tensorboardX: pip install 'vcl[loggers]'.") from None
        self.writer = SummaryWriter(str(folder))

    def receive(self, event: Event) -> None:
        for name, value, step in measurements(event):
            self.writer.add_scalar(name, value, step)
        if isinstance(event, Ended):
            self.writer.close()


class MLflow(Silent):
    """Hands a run's measurements to MLflow: to `client.log_metric(run_id, name, value, step=…)`.

    `client` is an `mlflow.MlflowClient`, and `run_id` the identifier of an MLflow run that was created with it.
    """

    def __init__(self, client: Any, run_id: str) -> None:
        self.client, self.run_id = client, run_id

    def receive(self, event: Event) -> None:
        for name, value, step in measurements(event):
            self.client.log_metric(self.run_id, name, value, step=step)
