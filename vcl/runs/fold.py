"""One run: a learner on a stream with a seed. It can be killed at any moment and continued, to the same bits."""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Protocol, runtime_checkable

import jax
import numpy as np
from jaxtyping import Float, PyTree

from vcl import evaluation, learning
from vcl.benchmarks import joint
from vcl.checkpoints import tree_digest
from vcl.core import Learner, Stream
from vcl.learning import Snapshot
from vcl.runs.folder import RunFolder
from vcl.runs.results import Measured, Summary, TaskScores
from vcl.training import Fitter, NoRecorder, NoTracer, Tracer


class Interrupted(Exception):
    """The user asked to stop. What was done is saved."""


@runtime_checkable
class Reporter(Protocol):
    """Somebody who watches a run."""

    def say(self, message: str) -> None:
        """A word about how it goes."""

    def warn(self, message: str) -> None:
        """A word that the user must read, even one who asked for quiet."""

    def begin(self, stream: Stream) -> None:
        """The run starts or resumes."""

    def advance(self, stage: int, phase: str, epoch: int, epochs: int, objective: float) -> None:
        """Epochs of the current stage are done."""

    def evaluated(self, stage: int, task: int, accuracies: list[float]) -> None:
        """The accuracy on each task so far."""


class Silent:
    """Nobody watches."""

    def say(self, message: str) -> None: ...

    def warn(self, message: str) -> None: ...

    def begin(self, stream: Stream) -> None: ...

    def advance(self, stage: int, phase: str, epoch: int, epochs: int, objective: float) -> None: ...

    def evaluated(self, stage: int, task: int, accuracies: list[float]) -> None: ...


@dataclass
class Progress:
    """What a run has to show so far; the events in the store, read back."""

    untrained: list[float] = field(default_factory=list)
    """Accuracy on each task before any learning."""
    rows: list[list[TaskScores]] = field(default_factory=list)
    """Scores on each task seen, after each task."""
    before: list[float] = field(default_factory=list)
    """Accuracy on each task just before it is learnt."""


@dataclass
class StageRecorder:
    """Keeps a stage's checkpoints and metrics in the run folder, and passes on how it goes."""

    folder: RunFolder | None
    stage: int
    reporter: Reporter
    stop: Callable[[], bool]
    seconds_between: float
    began: float
    """When training would have begun, had it never been interrupted."""
    saved_at: float = field(default_factory=time.monotonic)
    told: dict[str, int] = field(default_factory=dict)

    @property
    def train_seconds(self) -> float:
        return time.monotonic() - self.began

    def restore(self, phase: str, like: PyTree) -> tuple[int, PyTree] | None:
        found = self.folder and self.folder.newest_during(self.stage + 1, phase, like, self.reporter.warn)
        epoch = found[0] if found else 0
        self.told[phase] = epoch
        if found:
            self.began = time.monotonic() - found[2]["train_seconds"]
        if self.folder:
            self.folder.replace_events(
                e
                for e in self.folder.events()
                if (e.get("stage"), e.get("phase")) != (self.stage, phase) or e["first"] < epoch
            )
        return (epoch, found[1]) if found else None

    def advance(self, phase: str, epoch: int, epochs: int, history: Float[np.ndarray, "epochs"]) -> None:
        first = self.told[phase]
        if self.folder:
            objectives = [float(o) for o in history[first:epoch]]
            self.folder.append_event(
                {
                    "event": "objective",
                    "stage": self.stage,
                    "phase": phase,
                    "first": first,
                    "objectives": objectives,
                }
            )
        self.told[phase] = epoch
        self.reporter.advance(self.stage, phase, epoch, epochs, float(history[epoch - 1]))

    def save(self, phase: str, epoch: int, carry: PyTree, *, last: bool) -> None:
        due = time.monotonic() - self.saved_at >= self.seconds_between
        if self.folder and (due or last or self.stop()):
            facts = {"train_seconds": self.train_seconds}
            self.folder.save_during(self.stage + 1, phase, epoch, carry, facts)
            self.saved_at = time.monotonic()
        if self.stop():
            raise Interrupted


@dataclass(frozen=True)
class ReadoutRecorder(NoRecorder):
    """A read-out is short and starts afresh after an interruption: only its progress is passed on."""

    stage: int
    reporter: Reporter
    stop: Callable[[], bool]

    def advance(self, phase: str, epoch: int, epochs: int, history: Float[np.ndarray, "epochs"]) -> None:
        self.reporter.advance(self.stage, phase, epoch, epochs, float(history[epoch - 1]))
        if self.stop():
            raise Interrupted


def learn(
    learner: Learner,
    stream: Stream,
    seed: int = 0,
    *,
    folder: RunFolder | None = None,
    reporter: Reporter | None = None,
    stop: Callable[[], bool] = lambda: False,
    seconds_between_checkpoints: float = 15.0,
    trace: Callable[[int], Tracer] | None = None,
) -> Measured:
    """Fold `learner` over `stream`; return the measurements, and the final state's fingerprint.

    With a folder, the run continues from what it holds and keeps everything there. `trace` gives the tracer of a
    stage (from 1); it is asked for those that end a task.
    """
    reporter = reporter or Silent()
    reporter.begin(stream)
    if learner.joint:
        stream = joint(stream)
    now = learning.begin(learner, stream.spec, seed)
    facts: dict[str, Any] = {"steps": 0, "train_seconds": 0.0}
    if folder and (found := folder.newest_after(now.state, reporter.warn)):
        stages, state, facts = found
        now = replace(now, state=state, stages=stages)
        reporter.say(f"Continuing after stage {now.stages} of {len(stream.stages)}.")
    progress = recover(folder, now.stages)

    if not progress.untrained:
        start = learning.begin(learner, stream.spec, seed)
        scores = [learning.score(start, stream.spec.task(t), stream.test(t)) for t in range(stream.spec.num_tasks)]
        progress.untrained = [s.accuracy for s in scores]
        record(folder, {"event": "untrained", "stage": -1, "accuracy": progress.untrained})
    if now.stages > 0 and not evaluated(folder, now.stages - 1):
        evaluate_stage(now, stream, progress, folder, reporter, stop)

    for stage in range(now.stages, len(stream.stages)):
        began = time.monotonic() - facts["train_seconds"]
        recorder = StageRecorder(folder, stage, reporter, stop, seconds_between_checkpoints, began)
        fit = Fitter(recorder, trace(stage + 1) if trace and stream.ends_task(stage) else NoTracer())
        now = learning.observe(now, stream.task(stage), stream.train(stage), fit)
        facts = {"steps": facts["steps"] + fit.steps, "train_seconds": recorder.train_seconds}
        if folder:
            ends = [s + 1 for s in range(stage) if stream.ends_task(s)]
            folder.save_after(stage + 1, now.state, facts, keep=ends)
        evaluate_stage(now, stream, progress, folder, reporter, stop)

    footprint = learner.footprint(now.state)
    return {
        **summary(progress, stream),
        "steps": facts["steps"],
        "train_seconds": facts["train_seconds"],
        "parameters": footprint.parameters,
        "stored_examples": footprint.stored_examples,
        "state_bytes": sum(leaf.nbytes for leaf in jax.tree.leaves(now.state)),
        "state_sha256": tree_digest(now.state),
    }


def evaluate_stage(
    now: Snapshot,
    stream: Stream,
    progress: Progress,
    folder: RunFolder | None,
    reporter: Reporter,
    stop: Callable[[], bool],
) -> None:
    """Score all tasks seen so far, and the next one before it is learnt."""
    stage = now.stages - 1
    task = stream.stages[stage]
    fit = Fitter(ReadoutRecorder(stage, reporter, stop))
    ends = stream.ends_task(stage)
    seen = range(task + 1 + (ends and task + 1 < stream.spec.num_tasks))
    scores = [asdict(learning.score(now, stream.spec.task(t), stream.test(t), fit)) for t in seen]
    event = {"event": "evaluation", "stage": stage, "task": task, "ends_task": ends, "scores": scores}
    record(folder, event)
    apply_event(progress, event)
    reporter.evaluated(stage, task, [s["accuracy"] for s in scores[: task + 1]])


def apply_event(progress: Progress, event: dict[str, Any]) -> None:
    """Add one event to what a run has to show."""
    if event["event"] == "untrained":
        progress.untrained = event["accuracy"]
    if event["event"] == "evaluation" and event["ends_task"]:
        seen = event["task"] + 1
        progress.rows.append(event["scores"][:seen])
        progress.before += [s["accuracy"] for s in event["scores"][seen:]]


def recover(folder: RunFolder | None, stages: int) -> Progress:
    """What the store tells of the first `stages` stages; events of work that must be done again are dropped."""
    progress = Progress()
    if folder:
        # Objectives of the stage under way stay until its checkpoint is known: see StageRecorder.restore.
        limits = {"objective": stages + 1}
        events = [e for e in folder.events() if e["stage"] < limits.get(e["event"], stages)]
        folder.replace_events(events)
        for event in events:
            apply_event(progress, event)
    return progress


def evaluated(folder: RunFolder | None, stage: int) -> bool:
    return folder is not None and any(e["event"] == "evaluation" and e["stage"] == stage for e in folder.events())


def record(folder: RunFolder | None, event: dict[str, Any]) -> None:
    if folder:
        folder.append_event(event)


def summary(progress: Progress, stream: Stream) -> Summary:
    """The accuracy matrix and what follows from it."""
    tasks = stream.spec.num_tasks
    matrix = [[s["accuracy"] for s in row] + [None] * (tasks - len(row)) for row in progress.rows]
    before = [progress.untrained[0], *progress.before]
    shared = stream.spec.scenario == "domain"
    return {
        "accuracy_matrix": matrix,
        "average_accuracy": evaluation.average_accuracy(matrix),
        "forgetting": evaluation.forgetting(matrix),
        "backward_transfer": evaluation.backward_transfer(matrix),
        # Before its task is learnt, an output of its own answers at random.
        "forward_transfer": evaluation.forward_transfer(before, progress.untrained) if shared else None,
        "untrained_accuracy": progress.untrained,
        "accuracy_before_learning": before,
        "task_names": list(stream.task_names),
        "scores": progress.rows,
    }
