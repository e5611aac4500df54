"""What happens during a run, as events: one channel, to which the store, progress bars and trackers listen."""

import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Protocol, runtime_checkable

from vcl.core import Stream
from vcl.runs.folder import RunFolder
from vcl.runs.results import TaskScores


@dataclass(frozen=True)
class Begun:
    """The run starts or resumes."""

    stream: Stream


@dataclass(frozen=True)
class Said:
    """A message for the user; an urgent one is shown even to one who asked for quiet."""

    message: str
    urgent: bool = False


@dataclass(frozen=True)
class Saved:
    """A checkpoint was written."""

    stage: int


@dataclass(frozen=True)
class Ended:
    """No further events will come: the run is complete, or was stopped."""


@dataclass(frozen=True)
class Untrained:
    """The accuracy on each task before any learning."""

    kind: ClassVar[str] = "untrained"
    stage: int
    accuracy: list[float]


@dataclass(frozen=True)
class Advanced:
    """Epochs of a stage (from 0) are done: the objective of each, after the `first` ones."""

    kind: ClassVar[str] = "objective"
    stage: int
    phase: str
    first: int
    objectives: list[float]
    epochs: int = 0
    """All that the phase will have; not stored."""

    @property
    def epoch(self) -> int:
        return self.first + len(self.objectives)


@dataclass(frozen=True)
class Evaluated:
    """The scores on each task so far, after a stage (from 0); and on the next one, where this one ends a task."""

    kind: ClassVar[str] = "evaluation"
    stage: int
    task: int
    ends_task: bool
    scores: list[TaskScores]

    @property
    def accuracies(self) -> list[float]:
        return [scores["accuracy"] for scores in self.scores[: self.task + 1]]


Stored = Untrained | Advanced | Evaluated
Event = Begun | Said | Saved | Ended | Stored
KINDS: dict[str, type[Stored]] = {kind.kind: kind for kind in (Untrained, Advanced, Evaluated)}


def to_json(event: Stored) -> dict[str, Any]:
    """The line of `metrics.jsonl` for an event."""
    fields = {name: value for name, value in asdict(event).items() if name != "epochs"}
    return {"event": event.kind, **fields}


def from_json(line: dict[str, Any]) -> Stored:
    """The event of a line of `metrics.jsonl`."""
    kind = KINDS[line["event"]]
    return kind(**{name: value for name, value in line.items() if name in kind.__dataclass_fields__})


@runtime_checkable
class Sink(Protocol):
    """Somebody who listens to a run."""

    def receive(self, event: Event) -> None: ...


class Silent:
    """A sink that does nothing; subclasses say what they do about the events that they care for."""

    def receive(self, event: Event) -> None:
        match event:
            case Said(message, urgent):
                (self.warn if urgent else self.say)(message)
            case Begun(stream):
                self.begin(stream)
            case Advanced():
                self.advance(event.stage, event.phase, event.epoch, event.epochs, event.objectives[-1])
            case Evaluated():
                self.evaluated(event.stage, event.task, event.accuracies)

    def say(self, message: str) -> None: ...

    def warn(self, message: str) -> None: ...

    def begin(self, stream: Stream) -> None: ...

    def advance(self, stage: int, phase: str, epoch: int, epochs: int, objective: float) -> None: ...

    def evaluated(self, stage: int, task: int, accuracies: list[float]) -> None: ...


@dataclass
class Channel:
    """Passes events on: first to the store, whose failure ends the run, then to sinks, whose failure does not."""

    sinks: list[Sink]
    store: RunFolder | None = None

    def receive(self, event: Event) -> None:
        if self.store and isinstance(event, Stored):
            self.store.append_event(to_json(event))
        for sink in list(self.sinks):
            try:
                sink.receive(event)
            except Exception as error:  # whatever a tracker does wrong, the run is worth more
                self.sinks.remove(sink)
                reason = f"{type(error).__name__}: {error}"
                self.warn(f"{type(sink).__name__} failed and gets no further events; the run continues ({reason}).")

    def say(self, message: str) -> None:
        self.receive(Said(message))

    def warn(self, message: str) -> None:
        self.receive(Said(message, urgent=True))
        if not self.sinks:
            with suppress(OSError, ValueError):  # standard error may be what failed
                print(message, file=sys.stderr, flush=True)


def replay(folder: RunFolder, sinks: Sequence[Sink], start: int = 0) -> int:
    """Pass on what a run has stored, from event number `start`; return how many there are."""
    events = folder.events()
    channel = Channel(list(sinks))
    for line in events[start:]:
        if line["event"] in KINDS:
            channel.receive(from_json(line))
    return len(events)
