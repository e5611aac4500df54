"""Progress and checkpoints of one call of `Model.learn`."""

import hashlib
import json
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from types import FrameType
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float, PyTree
from rich.console import Console

from vcl.checkpoints import DamagedCheckpoint, dump_tree, load_tree, tree_digest
from vcl.core import Examples
from vcl.errors import VclError
from vcl.files import is_temporary, write_atomically, writing
from vcl.learning import Snapshot
from vcl.progress import Board
from vcl.runs.fold import Interrupted
from vcl.training import Fitter, NoRecorder

SECONDS_BETWEEN_CHECKPOINTS = 15.0
SAVING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that a training with checkpoints answers by saving and stopping."""
USUAL = (signal.SIG_DFL, signal.default_int_handler)


@runtime_checkable
class Shown(Protocol):
    """Where progress is shown."""

    def __call__(self, phase: str, epoch: int, epochs: int, objective: float) -> None: ...


@dataclass
class LearnRecorder(NoRecorder):
    """Keeps checkpoints of one `learn` in a folder, shows progress, and answers Ctrl-C between epochs."""

    folder: Path | None
    fingerprint: str
    show: Shown | None
    stop: Callable[[], bool]
    saved_at: float = field(default_factory=time.monotonic)

    def paths(self, phase: str) -> list[Path]:
        return sorted(self.folder.glob(f"learn-{phase}-*.safetensors")) if self.folder else []

    def restore(self, phase: str, like: PyTree) -> tuple[int, PyTree] | None:
        for path in reversed(self.paths(phase)):
            try:
                tree, facts = load_tree(path, like)
            except (DamagedCheckpoint, VclError):
                continue  # Another call's, or damaged: this one is computed from an earlier one, or anew.
            if facts.get("fingerprint") == self.fingerprint:
                return facts["epoch"], tree
        return None

    def advance(self, phase: str, epoch: int, epochs: int, history: Float[np.ndarray, "epochs"]) -> None:
        if self.show:
            self.show(phase, epoch, epochs, float(history[epoch - 1]))

    def save(self, phase: str, epoch: int, carry: PyTree, *, last: bool) -> None:
        due = time.monotonic() - self.saved_at >= SECONDS_BETWEEN_CHECKPOINTS
        if self.folder and (due or last or self.stop()):
            path = self.folder / f"learn-{phase}-{epoch:06d}.safetensors"
            with writing(path):
                self.folder.mkdir(parents=True, exist_ok=True)
                write_atomically(path, dump_tree(carry, {"fingerprint": self.fingerprint, "epoch": epoch}))
            for old in self.paths(phase)[:-2]:
                old.unlink(missing_ok=True)
            self.saved_at = time.monotonic()
        if self.stop():
            raise Interrupted

    def clean(self) -> None:
        """The batch is learnt: its checkpoints have served, and what a killed process left half-written."""
        for path in self.folder.iterdir() if self.folder and self.folder.is_dir() else ():
            name = path.name
            if fnmatch(name, "learn-*.safetensors") or (name.startswith(".learn-") and is_temporary(name)):
                path.unlink(missing_ok=True)


@contextmanager
def recording(
    before: Snapshot,
    task: int,
    examples: Examples,
    checkpoint: str | Path | None,
    progress: bool,
    stop: Callable[[], bool] | None = None,
) -> Iterator[Fitter]:
    """A fitter that shows progress and keeps checkpoints; Ctrl-C, or `stop`, stops it between epochs."""
    folder = Path(checkpoint) if checkpoint else None
    fingerprint = batch_fingerprint(before, task, examples) if folder else ""
    with (
        shown(f"batch {before.stages + 1}") if progress else nullcontext() as show,
        interrupts(SAVING if folder else (signal.SIGINT,)) as asked,
    ):
        recorder = LearnRecorder(folder, fingerprint, show, lambda: asked() or (stop is not None and stop()))
        try:
            yield Fitter(recorder)
        except Interrupted:
            where = f" Its checkpoints are in {folder}: the same call continues there." if folder else ""
            raise KeyboardInterrupt(f"Stopped. The model is as it was before this batch.{where}") from None
        recorder.clean()


@contextmanager
def interrupts(signals: Sequence[signal.Signals] = (signal.SIGINT,)) -> Iterator[Callable[[], bool]]:
    """Turn the first Ctrl-C into a request that is answered between epochs; a second one interrupts at once.

    So are the other `signals`, where nobody else cares for them. Only the main thread can ask for that; in others,
    nothing is changed.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    asked = False

    def ask(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True

    heard = [number for number in signals if signal.getsignal(number) in USUAL or number == signal.SIGINT]
    before = {number: signal.signal(number, ask) for number in heard}
    try:
        yield lambda: asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def batch_fingerprint(before: Snapshot, task: int, examples: Examples) -> str:
    """Differs wherever anything that decides the outcome of one `learn` does."""
    about = [
        repr(before.learner),
        before.seed,
        before.stages,
        task,
        tree_digest(before.state),
        tree_digest(examples),
    ]
    return hashlib.sha256(json.dumps(about).encode()).hexdigest()


@contextmanager
def shown(title: str) -> Iterator[Shown]:
    """A progress bar on standard error."""
    with Board(Console(stderr=True, highlight=False), [title], quiet=False) as board:

        def show(phase: str, epoch: int, epochs: int, objective: float) -> None:
            board.show(
                0,
                epoch / epochs,
                f"{phase}  epoch {epoch}/{epochs}  objective {objective:.4f}",
                milestone=epoch == epochs,
            )

        yield show
