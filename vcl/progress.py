"""Showing how runs are getting on: a bar on a terminal, a line now and then elsewhere."""

import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import TypeVar

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from vcl.core import Stream
from vcl.runs import RunConfig
from vcl.sweep import Standing

SECONDS_BETWEEN_LINES = 10.0
MOST_ROWS = 8
"""With more runs than this, only those under way have a row."""

AnyBoard = TypeVar("AnyBoard", bound="Board")


class Board:
    """One row for each run: a bar on a terminal; plain lines, not too often, where there is none."""

    def __init__(self, console: Console, names: Sequence[str], *, quiet: bool) -> None:
        self.console, self.names, self.quiet = console, names, quiet
        self.spoken = [time.monotonic()] * len(names)
        self.bars = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[text]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(elapsed_when_finished=False),
            console=console,
            disable=quiet or not console.is_terminal,
        )
        self.rows: list[TaskID] = [self.bars.add_task(name, total=1.0, text="starting") for name in names]

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
        self.console.print(escape(message), soft_wrap=True)

    def show(self, row: int, fraction: float, text: str, *, milestone: bool = False) -> None:
        self.bars.update(self.rows[row], completed=fraction, text=escape(text))
        now = time.monotonic()
        if (
            not self.quiet
            and not self.console.is_terminal
            and (milestone or now - self.spoken[row] > SECONDS_BETWEEN_LINES)
        ):
            self.spoken[row] = now
            self.say(f"{self.names[row]}: {100 * fraction:3.0f} %  {text}")


class SingleRun(Board):
    """Watches a run in this process (an `experiment.Reporter`)."""

    def __init__(self, console: Console, config: RunConfig, *, quiet: bool) -> None:
        super().__init__(console, [f"{config.benchmark} {config.method}"], quiet=quiet)
        self.accuracies: Sequence[float] = ()
        self.num_stages, self.what, self.done = 1, "task", 0.0

    def begin(self, stream: Stream) -> None:
        self.num_stages = len(stream.stages)
        self.what = "task" if self.num_stages == stream.spec.num_tasks else "batch"

    def advance(self, stage: int, phase: str, epoch: int, epochs: int, objective: float) -> None:
        self.done = max(self.done, (stage + epoch / epochs) / self.num_stages)
        name = "" if phase == "train" else f"{phase} "
        text = f"{self.what} {stage + 1}/{self.num_stages}  {name}epoch {epoch}/{epochs}  objective {objective:.4f}"
        self.show(0, self.done, text + average(self.accuracies))

    def evaluated(self, stage: int, task: int, accuracies: list[float]) -> None:
        self.accuracies = accuracies
        text = f"{self.what} {stage + 1}/{self.num_stages} learnt" + average(accuracies)
        self.show(0, (stage + 1) / self.num_stages, text, milestone=True)


class SeveralRuns(Board):
    """Watches runs in other processes, by what their folders tell."""

    def __init__(self, console: Console, configs: Sequence[RunConfig], *, quiet: bool) -> None:
        super().__init__(console, [f"{c.benchmark} {c.method} seed {c.seed}" for c in configs], quiet=quiet)
        self.whole = self.bars.add_task(f"{len(configs)} runs", total=len(configs), text="complete")
        self.fractions = [0.0] * len(configs)
        if len(configs) > MOST_ROWS:
            for task in self.rows:
                self.bars.update(task, visible=False)
        self.epochs = [getattr(c.learner, "epochs", 0) for c in configs]

    def watch(self, row: int, now: Standing) -> None:
        self.note(row, now)
        self.fractions[row] = self.bars.tasks[row].completed
        running = 0.0 < self.fractions[row] < 1.0
        self.bars.update(self.rows[row], visible=running or len(self.rows) <= MOST_ROWS)
        self.bars.update(self.whole, completed=sum(self.fractions))

    def note(self, row: int, now: Standing) -> None:
        if now.complete:
            return self.show(row, 1.0, "complete" + average(now.accuracies), milestone=True)
        if now.objective is None:
            return None
        within = min(1.0, now.epoch / self.epochs[row]) if self.epochs[row] else 0.0
        text = (
            f"task {now.stage + 1}/{now.num_stages}  epoch {now.epoch}/{self.epochs[row]}  "
            f"objective {now.objective:.4f}{average(now.accuracies)}"
        )
        return self.show(row, (now.stage + within) / now.num_stages, text)


def average(accuracies: Sequence[float]) -> str:
    return f"  accuracy so far {100 * sum(accuracies) / len(accuracies):.2f} %" if accuracies else ""


@contextmanager
def asked_to_stop() -> Iterator[Callable[[], bool]]:
    """Turn Ctrl-C (and a polite kill) into a question that the run asks between epochs."""
    asked = False

    def ask(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
