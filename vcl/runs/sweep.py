"""Many runs in parallel processes, one core each; the store tells how far they are."""

import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing import get_context, parent_process
from pathlib import Path
from typing import Any, Literal

import jax

from vcl.errors import VclError
from vcl.runs import execute
from vcl.runs.config import RunConfig
from vcl.runs.execute import Tracing
from vcl.runs.fold import Interrupted, Silent
from vcl.runs.folder import RunFolder
from vcl.runs.results import Result

POLL_SECONDS = 0.5


@dataclass(frozen=True)
class RunStatus:
    """How far a run has come, as its folder tells."""

    phase: Literal["queued", "running", "complete", "failed"] = "queued"
    stage: int = 0
    num_stages: int = 1
    unit: Literal["task", "batch"] = "task"
    """What a stage is."""
    epoch: int = 0
    objective: float | None = None
    accuracies: tuple[float, ...] = ()

    @property
    def place(self) -> str:
        """The stage under way."""
        return f"{self.unit} {self.stage + 1}/{self.num_stages}"


Outcome = Result | VclError


def run_all(
    configs: Sequence[RunConfig],
    root: Path,
    jobs: int,
    *,
    watch: Callable[[int, RunStatus], None],
    stop: Callable[[], bool] = lambda: False,
    data_dir: Path | None = None,
    seconds_between_checkpoints: float = 15.0,
    trace: Tracing | None = None,
) -> list[Result]:
    """Results of all runs, in order. The first failure ends the others, after they have saved what they did."""
    outcomes = attempt_all(
        configs,
        root,
        jobs,
        watch=watch,
        stop=stop,
        data_dir=data_dir,
        seconds_between_checkpoints=seconds_between_checkpoints,
        trace=trace,
        end_at_failure=True,
    )
    return [outcome for outcome in outcomes if not isinstance(outcome, VclError)]


def attempt_all(
    configs: Sequence[RunConfig],
    root: Path,
    jobs: int,
    *,
    watch: Callable[[int, RunStatus], None],
    stop: Callable[[], bool] = lambda: False,
    data_dir: Path | None = None,
    seconds_between_checkpoints: float = 15.0,
    trace: Tracing | None = None,
    end_at_failure: bool = False,
) -> list[Outcome]:
    """Results of all runs, in order, or what was wrong with them (raised, to end the others, if so asked).

    When `stop` says so, the runs save what they did, and `Interrupted` is raised.
    """
    with (
        tempfile.TemporaryDirectory(prefix="vcl-sweep-") as folder,
        ProcessPoolExecutor(jobs, get_context("spawn"), _initialise) as pool,
    ):
        signals = Signals(Path(folder))
        with _signals_kept_from_children():
            futures = [
                pool.submit(_work, config, root, data_dir, seconds_between_checkpoints, trace, signals, number)
                for number, config in enumerate(configs)
            ]
        try:
            _follow(configs, root, futures, signals, watch, stop, end_at_failure)
        except BaseException:
            _stop(signals, futures)
            raise
    failures = [
        e
        for future in futures
        if not future.cancelled() and _ends_all(future, end_at_failure) and (e := future.exception())
    ]
    # A run that was asked to stop because another failed is not the one to tell of.
    for failure in sorted(failures, key=lambda e: isinstance(e, Interrupted)):
        if isinstance(failure, BrokenProcessPool):
            raise VclError(
                "A worker process was killed, most often for lack of memory. The saved checkpoints are intact: the "
                "same command continues from them; fewer --jobs need less memory."
            ) from failure
        raise failure
    if any(future.cancelled() for future in futures):
        raise Interrupted
    return [_outcome(future) for future in futures]


def _follow(
    configs: Sequence[RunConfig],
    root: Path,
    futures: Sequence[Future[Result]],
    signals: "Signals",
    watch: Callable[[int, RunStatus], None],
    stop: Callable[[], bool],
    end_at_failure: bool,
) -> None:
    """Tell `watch` how far the runs are until all have ended; end them early where that is asked for."""
    ended: set[int] = set()
    while len(ended) < len(futures):
        time.sleep(POLL_SECONDS)
        for number, (config, future) in enumerate(zip(configs, futures, strict=True)):
            if number not in ended:
                # Asked before the folder is read: what is read of a run that has ended is its end.
                if future.done():
                    ended.add(number)
                watch(number, _status(run_status(root / config.name), future, signals.started(number).exists()))
        if stop() or any(future.done() and _ends_all(future, end_at_failure) for future in futures):
            _stop(signals, futures)


def _status(found: RunStatus, future: Future[Result], started: bool) -> RunStatus:
    """What the folder tells, with the phase, of which the process knows more."""
    if future.done() and not future.cancelled() and isinstance(future.exception(), VclError):
        return replace(found, phase="failed")
    return found if found.phase == "complete" else replace(found, phase="running" if started else "queued")


def _ends_all(future: Future[Any], end_at_failure: bool) -> bool:
    """Whether this run's end is the end of all: it failed, and not just by itself."""
    failure = None if future.cancelled() else future.exception()
    return failure is not None and (end_at_failure or not isinstance(failure, VclError))


def _outcome(future: Future[Result]) -> Outcome:
    failure = future.exception()
    return failure if isinstance(failure, VclError) else future.result()


def run_status(path: Path) -> RunStatus:
    """Read from a run's folder how far it is; it is running or stopped unless it is complete.

    A folder that does not exist yet has not started.
    """
    try:
        folder = RunFolder.open(path)
        stages, complete = folder.record["stages"], folder.result is not None
    except VclError:
        return RunStatus()
    events = folder.events()
    objectives = [e for e in events if e["event"] == "objective"]
    scored = [e for e in events if e["event"] == "evaluation"]
    nothing: dict[str, Any] = {"stage": 0, "first": 0, "objectives": []}
    last = objectives[-1] if objectives else nothing
    return RunStatus(
        phase="complete" if complete else "running",
        stage=last["stage"],
        num_stages=len(stages),
        unit="task" if len(stages) == len(set(stages)) else "batch",
        epoch=last["first"] + len(last["objectives"]),
        objective=last["objectives"][-1] if last["objectives"] else None,
        accuracies=tuple(s["accuracy"] for s in scored[-1]["scores"][: scored[-1]["task"] + 1]) if scored else (),
    )


@dataclass(frozen=True)
class Signals:
    """Empty files by which processes tell each other what must not wait: that a run has started, and to stop."""

    folder: Path

    @property
    def stop(self) -> Path:
        return self.folder / "stop"

    def started(self, number: int) -> Path:
        return self.folder / f"started-{number}"


class Worker(Silent):
    """Reports through the store; only what must be read goes to standard error."""

    def warn(self, message: str) -> None:
        print(message, file=sys.stderr, flush=True)


_busy = threading.Lock()
"""Held while a run is under way in this process."""


def _initialise() -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """An idle process would wait for ever for work from a parent that was killed."""
    if parent := parent_process():
        parent.join()
        with _busy:
            os._exit(1)


def _work(
    config: RunConfig,
    root: Path,
    data_dir: Path | None,
    seconds: float,
    trace: Tracing | None,
    signals: Signals,
    number: int,
) -> Result:
    parent = parent_process()

    def stop() -> bool:
        return signals.stop.exists() or (parent is not None and not parent.is_alive())

    with _busy:
        if stop():
            raise Interrupted
        signals.started(number).touch()
        execute.prepare_jax(config.threads)
        # A process does many runs: what the last one compiled is of no use to the next.
        jax.clear_caches()
        return execute.run(
            config,
            root,
            reporter=Worker(),
            stop=stop,
            data_dir=data_dir,
            seconds_between_checkpoints=seconds,
            trace=trace,
        )


@contextmanager
def _signals_kept_from_children() -> Iterator[None]:
    """Processes started meanwhile never see Ctrl-C, which a terminal sends to all: files tell them to stop."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _stop(signals: Signals, futures: Sequence[Future[Any]]) -> None:
    """Let running work save itself, and begin no more."""
    signals.stop.touch()
    for future in futures:
        future.cancel()
