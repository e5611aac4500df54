"""Progress of runs: bars on a terminal, occasional lines elsewhere."""

import time
from collections.abc import Sequence
from types import TracebackType
from typing import TypeVar

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskID, TextColumn
from rich.table import Column
from rich.text import Text

from vcl.core import Stream
from vcl.errors import printable
from vcl.runs import RunConfig
from vcl.runs.events import Silent
from vcl.runs.status import RunStatus

SECONDS_BETWEEN_LINES = 10.0
MOST_ROWS = 8
"""With more runs than this, only those that are running have a row."""

AnyBoard = TypeVar("AnyBoard", bound="Board")


class Clock(ProgressColumn):
    """Time taken and time left; nothing for a run that is queued."""

    max_refresh = 0.5

    def render(self, task: Task) -> Text:
        seconds = task.finished_time if task.finished else task.elapsed
        if seconds is None:
            return Text("")
        left = None if task.finished else task.time_remaining
        return Text(clock(seconds) + ("" if left is None else f", {clock(float(left))} left"))

    def get_table_column(self) -> Column:
        return Column(no_wrap=True, min_width=16)


class Board:
    """One row for each run: a bar on a terminal; plain lines, not too often, where there is none."""

    def __init__(self, console: Console, names: Sequence[str], *, quiet: bool, first: str = "starting") -> None:
        self.console, self.names, self.quiet = console, names, quiet
        self.last_line = [time.monotonic()] * len(names)
        self.bars = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=16),
            TextColumn("{task.fields[text]}"),
            Clock(),
            console=console,
            disable=quiet or not console.is_terminal,
        )
        started = first == "starting"
        self.rows: list[TaskID] = [
            self.bars.add_task(escape(printable(name)), start=started, total=1.0, text=first) for name in names
        ]

    def __enter__(self: AnyBoard) -> AnyBoard:
        self.bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bars.stop()

    def say(self, message: str) -> None:
        if not self.quiet:
            self.warn(message)

    def warn(self, message: str) -> None:
        self.console.print(escape(printable(message)), soft_wrap=True)

    def show(self, row: int, fraction: float, text: str, *, milestone: bool = False) -> None:
        self.bars.update(self.rows[row], completed=fraction, text=escape(text))
        now = time.monotonic()
        if (
            not self.quiet
            and not self.console.is_terminal
            and (milestone or now - self.last_line[row] > SECONDS_BETWEEN_LINES)
        ):
            self.last_line[row] = now
            self.say(f"{self.names[row]}: {100 * fraction:3.0f} %  {text}")


class SingleRun(Board, Silent):
    """Shows a run in this process."""

    def __init__(self, console: Console, config: RunConfig, *, quiet: bool) -> None:
        super().__init__(console, [f"{config.benchmark} {config.method}"], quiet=quiet)
        self.accuracies: Sequence[float] = ()
        self.num_stages, self.unit, self.done = 1, "task", 0.0
        self.learning = False
        """Whether an epoch is complete that was not before this process started."""

    def begin(self, stream: Stream) -> None:
        self.num_stages = len(stream.stages)
        self.unit = "task" if self.num_stages == stream.spec.num_tasks else "batch"

    def advance(self, stage: int, phase: str, epoch: int, epochs: int, objective: float) -> None:
        self.learning = True
        self.done = max(self.done, (stage + epoch / epochs) / self.num_stages)
        name = "" if phase == "train" else f"{phase} "
        text = f"{self.unit} {stage + 1}/{self.num_stages}  {name}epoch {epoch}/{epochs}  objective {objective:.4f}"
        self.show(0, self.done, text + average(self.accuracies))

    def evaluated(self, stage: int, task: int, accuracies: list[float]) -> None:
        self.accuracies = accuracies
        text = f"{self.unit} {stage + 1}/{self.num_stages} learnt" + average(accuracies)
        self.show(0, (stage + 1) / self.num_stages, text, milestone=True)


class SeveralRuns(Board):
    """Shows runs in other processes, from what their folders tell."""

    def __init__(self, console: Console, configs: Sequence[RunConfig], *, quiet: bool) -> None:
        names = [f"{c.benchmark} {c.method} seed {c.seed}" for c in configs]
        super().__init__(console, names, quiet=quiet, first="queued")
        self.statuses = [RunStatus()] * len(configs)
        self.epochs = [getattr(c.learner, "epochs", 0) for c in configs]
        self.whole = self.bars.add_task(f"{len(configs)} runs", total=len(configs), text=self.tally())
        for row in self.rows:
            self.bars.update(row, visible=len(configs) <= MOST_ROWS)

    def watch(self, row: int, now: RunStatus) -> None:
        """Show how far a run has come."""
        if now.phase == "queued":
            return
        self.bars.start_task(self.rows[row])
        fraction, text = progress(now, self.epochs[row])
        self.show(row, fraction, text, milestone=now.phase in ("complete", "failed"))
        if now.phase == "failed":
            self.bars.stop_task(self.rows[row])
        self.bars.update(self.rows[row], visible=now.phase == "running" or len(self.rows) <= MOST_ROWS)
        self.statuses[row] = now
        done = sum(progress(status, epochs)[0] for status, epochs in zip(self.statuses, self.epochs, strict=True))
        self.bars.update(self.whole, completed=done, text=self.tally())

    def tally(self) -> str:
        return f"{sum(status.phase == 'complete' for status in self.statuses)} of {len(self.statuses)} complete"


def progress(now: RunStatus, epochs: int) -> tuple[float, str]:
    """How much of a run is done, and what to say of it."""
    if now.phase == "complete":
        return 1.0, "complete" + average(now.accuracies)
    within = min(1.0, now.epoch / epochs) if epochs else 0.0
    fraction = (now.stage + within) / now.num_stages
    if now.phase != "running":
        return fraction, now.phase
    if now.objective is None:
        return fraction, "starting"
    return fraction, (
        f"{now.place}  epoch {now.epoch}/{epochs}  objective {now.objective:.4f}{average(now.accuracies)}"
    )


def clock(seconds: float) -> str:
    """Minutes and seconds, with hours where there are some.

    >>> clock(65.0), clock(3665.0)
    ('1:05', '1:01:05')
    """
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def average(accuracies: Sequence[float]) -> str:
    return f"  accuracy so far {100 * sum(accuracies) / len(accuracies):.2f} %" if accuracies else ""
