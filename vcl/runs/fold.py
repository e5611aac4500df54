"""One run: a learner on a stream with a seed. It can be killed at any moment and continued, to the same bits."""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import jax
import numpy as np
from jaxtyping import Float, PyTree

from vcl import evaluation, learning
from vcl.benchmarks import joint
from vcl.checkpoints import tree_digest
from vcl.core import Learner, Stream
from vcl.learning import Snapshot
from vcl.runs.events import Advanced, Begun, Channel, Evaluated, Saved, Silent, Sink, Untrained, from_json
from vcl.runs.folder import RunFolder
from vcl.runs.results import Measured, Summary, TaskScores
from vcl.training import Fitter, NoRecorder, NoTracer, Tracer


class Interrupted(Exception):
    """The user asked to stop. What was done is saved."""


@dataclass
class Progress:
    """What a run has to show so far; the events in the store, read back."""

    untrained: list[float] = field(default_factory=list)
    """Accuracy on each task before any learning."""
    rows: list[list[TaskScores]] = field(default_factory=list)
    """Scores on each task seen, after each task."""
    before: list[float] = field(default_factory=list)
    """Accuracy on each task just before it is learnt."""


def clocks() -> dict[str, float]:
    """The clock's seconds, and those that the processor worked for this process."""
    return {"train_seconds": time.monotonic(), "cpu_seconds": time.process_time()}


def times(facts: dict[str, Any]) -> dict[str, float | None]:
    """What training took, as saved with a checkpoint; earlier versions did not count the processor's seconds."""
    return {name: facts.get(name) for name in ("train_seconds", "cpu_seconds")}


@dataclass
class StageRecorder:
    """Keeps a stage's checkpoints and metrics in the run folder, and passes on how it goes."""

    folder: RunFolder | None
    stage: int
    channel: Channel
    stop: Callable[[], bool]
    seconds_between: float
    before: dict[str, float | None]
    """What training took up to `began`, as in `facts`."""
    began: dict[str, float] = field(default_factory=clocks)
    saved_at: float = field(default_factory=time.monotonic)
    told: dict[str, int] = field(default_factory=dict)

    @property
    def taken(self) -> dict[str, float | None]:
        """The time that training took so far: on the clock, and of the processor."""
        return {
            name: None if past is None else past + clocks()[name] - self.began[name]
            for name, past in self.before.items()
        }

    def restore(self, phase: str, like: PyTree) -> tuple[int, PyTree] | None:
        found = self.folder and self.folder.newest_during(self.stage + 1, phase, like, self.channel.warn)
        epoch = found[0] if found else 0
        self.told[phase] = epoch
        if found:
            self.before, self.began = times(found[2]), clocks()
        if self.folder:
            self.folder.replace_events(
                e
                for e in self.folder.events()
                if (e.get("stage"), e.get("phase")) != (self.stage, phase) or e["first"] < epoch
            )
        return (epoch, found[1]) if found else None

    def advance(self, phase: str, epoch: int, epochs: int, history: Float[np.ndarray, "epochs"]) -> None:
        objectives = [float(o) for o in history[self.told[phase] : epoch]]
        self.channel.receive(Advanced(self.stage, phase, self.told[phase], objectives, epochs))
        self.told[phase] = epoch

    def save(self, phase: str, epoch: int, carry: PyTree, *, last: bool) -> None:
        due = time.monotonic() - self.saved_at >= self.seconds_between
        if self.folder and (due or last or self.stop()):
            self.folder.save_during(self.stage + 1, phase, epoch, carry, self.taken)
            self.saved_at = time.monotonic()
            self.channel.receive(Saved(self.stage))
        if self.stop():
            raise Interrupted


@dataclass(frozen=True)
class ReadoutRecorder(NoRecorder):
    """A read-out is short and starts afresh after an interruption: only its progress is passed on."""

    stage: int
    sinks: Channel
    """Without the store: what is not kept is not told there."""
    stop: Callable[[], bool]

    def advance(self, phase: str, epoch: int, epochs: int, history: Float[np.ndarray, "epochs"]) -> None:
        self.sinks.receive(Advanced(self.stage, phase, epoch - 1, [float(history[epoch - 1])], epochs))
        if self.stop():
            raise Interrupted


def learn(
    learner: Learner,
    stream: Stream,
    seed: int = 0,
    *,
    folder: RunFolder | None = None,
    reporter: Sink | None = None,
    stop: Callable[[], bool] = lambda: False,
    seconds_between_checkpoints: float = 15.0,
    trace: Callable[[int], Tracer] | None = None,
) -> Measured:
    """Fold `learner` over `stream`; return the measurements, and the final state's fingerprint.

    With a folder, the run continues from what it holds and keeps everything there. `trace` gives the tracer of a
    stage (from 1); it is asked for those that end a task.
    """
    channel = Channel([reporter or Silent()], folder)
    channel.receive(Begun(stream))
    if learner.joint:
        stream = joint(stream)
    now = learning.begin(learner, stream.spec, seed)
    facts: dict[str, Any] = {"steps": 0, "train_seconds": 0.0, "cpu_seconds": 0.0}
    if folder and (found := folder.newest_after(now.state, channel.warn)):
        stages, state, facts = found
        now = replace(now, state=state, stages=stages)
        channel.say(f"Continuing after stage {now.stages} of {len(stream.stages)}.")
    progress = recover(now, stream, channel, stop)

    for stage in range(now.stages, len(stream.stages)):
        recorder = StageRecorder(folder, stage, channel, stop, seconds_between_checkpoints, times(facts))
        fit = Fitter(recorder, trace(stage + 1) if trace and stream.ends_task(stage) else NoTracer())
        now = learning.observe(now, stream.task(stage), stream.train(stage), fit)
        facts = {"steps": facts["steps"] + fit.steps, **recorder.taken}
        if folder:
            ends = [s + 1 for s in range(stage) if stream.ends_task(s)]
            folder.save_after(stage + 1, now.state, facts, keep=ends)
            channel.receive(Saved(stage))
        evaluate_stage(now, stream, progress, channel, stop)

    footprint = learner.footprint(now.state)
    return {
        **summary(progress, stream),
        "steps": facts["steps"],
        "train_seconds": facts["train_seconds"],
        "cpu_seconds": facts.get("cpu_seconds"),
        "parameters": footprint.parameters,
        "stored_examples": footprint.stored_examples,
        "state_bytes": sum(leaf.nbytes for leaf in jax.tree.leaves(now.state)),
        "state_sha256": tree_digest(now.state),
    }


def evaluate_stage(
    now: Snapshot, stream: Stream, progress: Progress, channel: Channel, stop: Callable[[], bool]
) -> None:
    """Score all tasks seen so far, and the next one before it is learnt."""
    stage = now.stages - 1
    task = stream.stages[stage]
    fit = Fitter(ReadoutRecorder(stage, Channel(channel.sinks), stop))
    ends = stream.ends_task(stage)
    seen = range(task + 1 + (ends and task + 1 < stream.spec.num_tasks))
    scores = [asdict(learning.score(now, stream.spec.task(t), stream.test(t), fit)) for t in seen]
    event = Evaluated(stage, task, ends, scores)  # type: ignore[arg-type]
    channel.receive(event)
    apply_event(progress, event)


def apply_event(progress: Progress, event: Untrained | Evaluated) -> None:
    """Add one event to what a run has to show."""
    if isinstance(event, Untrained):
        progress.untrained = event.accuracy
    elif event.ends_task:
        seen = event.task + 1
        progress.rows.append(event.scores[:seen])
        progress.before += [s["accuracy"] for s in event.scores[seen:]]


def recover(now: Snapshot, stream: Stream, channel: Channel, stop: Callable[[], bool]) -> Progress:
    """What the store tells of the stages that are done; events of work that must be done again are dropped.

    What it should tell and does not, because lines were lost, is measured again from the checkpoints.
    """
    progress, folder = Progress(), channel.store
    events = folder.intact_events(channel.warn) if folder else []
    # Objectives of the stage under way stay until its checkpoint is known: see StageRecorder.restore.
    limits = {Advanced.kind: now.stages + 1}
    events = [e for e in events if e["stage"] < limits.get(e["event"], now.stages)]
    if folder:
        folder.replace_events(events)
    told = [from_json(e) for e in events if e["event"] in (Untrained.kind, Evaluated.kind)]
    untrained = next((e for e in told if isinstance(e, Untrained)), None)
    if untrained is None:
        untrained = measure_untrained(now, stream)
        channel.receive(untrained)
    apply_event(progress, untrained)
    scored = {e.stage: e for e in told if isinstance(e, Evaluated)}
    for stage in range(now.stages):
        if event := scored.get(stage):
            apply_event(progress, event)
        elif stage == now.stages - 1:
            evaluate_stage(now, stream, progress, channel, stop)
        elif folder and stream.ends_task(stage):
            earlier = replace(now, state=folder.state_after(stage + 1, now.state), stages=stage + 1)
            evaluate_stage(earlier, stream, progress, channel, stop)
    return progress


def measure_untrained(now: Snapshot, stream: Stream) -> Untrained:
    """The accuracy on each task before any learning."""
    start = learning.begin(now.learner, stream.spec, now.seed)
    scores = [learning.score(start, stream.spec.task(t), stream.test(t)) for t in range(stream.spec.num_tasks)]
    return Untrained(-1, [s.accuracy for s in scores])


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
        "prequential_accuracy": evaluation.prequential(before) if shared else None,
        "untrained_accuracy": progress.untrained,
        "accuracy_before_learning": before,
        "task_names": list(stream.task_names),
        "scores": progress.rows,
    }
