"""Many runs on any executor: local processes, one core each, or a Dask cluster. The store tells how far they are."""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from importlib.metadata import version
from itertools import count
from multiprocessing import get_context, parent_process
from pathlib import Path
from shutil import rmtree
from typing import Any, Protocol, runtime_checkable

import jax

from vcl.errors import VclError
from vcl.files import is_alive, machine, writing
from vcl.runs import execute
from vcl.runs.config import RunConfig
from vcl.runs.events import Channel, Ended, Silent, Sink, replay
from vcl.runs.execute import Tracing
from vcl.runs.fold import Interrupted
from vcl.runs.folder import RunFolder
from vcl.runs.results import Result
from vcl.runs.status import RunStatus, run_status

POLL_SECONDS = 0.5
_numbers = count()


Outcome = Result | VclError


Watch = Callable[[int, RunStatus], None]
Prune = Callable[[int, RunStatus], bool]
"""Whether a run is not worth completing."""
Sinks = Callable[[RunConfig], Sequence[Sink]]
"""The trackers of a run; they live in the calling process, which reads the store."""


@dataclass(frozen=True)
class Place:
    """Where a worker works on a run: in this folder, until it is asked to stop, telling these sinks."""

    root: Path
    stop: Callable[[], bool]
    sinks: Sequence[Sink] = ()


@runtime_checkable
class Link(Protocol):
    """What a worker is given to reach the caller's store; it is pickled."""

    def place(self, number: int, name: str) -> AbstractContextManager[Place]:
        """Used by a worker: where to work on run `number`, called `name`."""


@runtime_checkable
class Pool(Protocol):
    """An executor, and what travels between its workers and the store."""

    @property
    def executor(self) -> Executor: ...

    @property
    def link(self) -> Link: ...

    def collect(self) -> None:
        """Take in what workers have sent."""

    def started(self, number: int) -> bool:
        """Whether a worker has begun with a run."""

    def stop(self, number: int | None = None) -> None:
        """Ask the worker of a run, or all of them, to save and stop."""

    def explain(self, failure: BaseException) -> BaseException:
        """The failure as the user is to read it."""


Pools = Callable[[Path, Sequence[RunConfig]], AbstractContextManager[Pool]]


def never(number: int, status: RunStatus) -> bool:
    """Prune no run."""
    return False


def run_all(configs: Sequence[RunConfig], root: Path, jobs: int, **options: Any) -> list[Result]:
    """Results of all runs, in order. The first failure ends the others, after they have saved what they did."""
    outcomes = attempt_all(configs, root, jobs, **options, end_at_failure=True)
    return [outcome for outcome in outcomes if not isinstance(outcome, VclError)]


def attempt_all(
    configs: Sequence[RunConfig],
    root: Path,
    jobs: int,
    *,
    watch: Watch,
    stop: Callable[[], bool] = lambda: False,
    data_dir: Path | None = None,
    seconds_between_checkpoints: float = 15.0,
    trace: Tracing | None = None,
    sinks: Sinks | None = None,
    pool: Pools | None = None,
    prune: Prune = never,
    end_at_failure: bool = False,
) -> list[Outcome]:
    """Results of all runs, in order, or what was wrong with them (raised, to end the others, if so asked).

    When `stop` says so, the runs save what they did, and `Interrupted` is raised. A run of which `prune` says so is
    stopped by itself, and its outcome is `Pruned`.
    """
    chosen: AbstractContextManager[Pool] = pool(root, configs) if pool else local(jobs, root)
    with chosen as used:
        work = Work(used.link, data_dir, seconds_between_checkpoints, trace, version("vcl"))
        with _signals_kept_from_children():
            futures = [
                _known(root, config) or used.executor.submit(_work, work, config, number)
                for number, config in enumerate(configs)
            ]
        follower = Follower(configs, root, futures, used, watch, sinks, prune)
        try:
            follower.follow(stop, end_at_failure)
        except BaseException:
            _stop(used, futures)
            raise
    failures = [
        used.explain(e)
        for future in futures
        if not future.cancelled() and _ends_all(future, end_at_failure) and (e := future.exception())
    ]
    # A run that was asked to stop because another failed is not the one to tell of.
    for failure in sorted(failures, key=lambda e: isinstance(e, Interrupted)):
        if not (isinstance(failure, Interrupted) and follower.pruned):
            raise failure
    if any(future.cancelled() for future in futures):
        raise Interrupted
    return [
        Pruned("It was stopped early.") if number in follower.pruned and future.exception() else _outcome(future)
        for number, future in enumerate(futures)
    ]


class Pruned(VclError):
    """The outcome of a run that was not worth completing."""


def _known(root: Path, config: RunConfig) -> Future[Result] | None:
    """A run that is complete in the store is sent to nobody."""
    path = root / config.name
    if not (path / "result.json").exists():
        return None
    future: Future[Result] = Future()
    try:
        result = RunFolder.open(path).result
    except VclError as error:
        future.set_exception(error)
        return future
    if result is None:
        return None
    future.set_result(result)
    return future


class Follower:
    """Tells `watch` and the sinks how far runs are, from what is in the store."""

    def __init__(
        self,
        configs: Sequence[RunConfig],
        root: Path,
        futures: Sequence[Future[Result]],
        pool: Pool,
        watch: Watch,
        sinks: Sinks | None,
        prune: Prune,
    ) -> None:
        self.paths = [root / config.name for config in configs]
        self.futures, self.pool, self.watch, self.prune = futures, pool, watch, prune
        self.sinks = [list(sinks(config)) if sinks else [] for config in configs]
        self.told = [0] * len(configs)
        self.pruned: set[int] = set()

    def follow(self, stop: Callable[[], bool], end_at_failure: bool) -> None:
        """Until all have ended; end them early where that is asked for."""
        ended: set[int] = set()
        while len(ended) < len(self.futures):
            time.sleep(POLL_SECONDS)
            # Asked before the store is read: what is read of a run that has ended is its end.
            done = {number for number, future in enumerate(self.futures) if future.done()}
            self.pool.collect()
            for number in sorted(set(range(len(self.futures))) - ended):
                self.look(number)
            for number in done - ended:
                Channel(self.sinks[number]).receive(Ended())
            ended |= done
            if stop() or any(f.done() and self._ends_all(n, f, end_at_failure) for n, f in enumerate(self.futures)):
                _stop(self.pool, self.futures)

    def look(self, number: int) -> None:
        """Tell of one run."""
        future, path = self.futures[number], self.paths[number]
        status = _status(run_status(path), future, self.pool.started(number))
        self.watch(number, status)
        if self.sinks[number] and (path / "metrics.jsonl").exists():
            self.told[number] = replay(RunFolder(path), self.sinks[number], self.told[number])
        if number not in self.pruned and not future.done() and self.prune(number, status):
            self.pruned.add(number)
            self.pool.stop(number)

    def _ends_all(self, number: int, future: Future[Any], end_at_failure: bool) -> bool:
        return number not in self.pruned and _ends_all(future, end_at_failure)


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


def _stop(pool: Pool, futures: Sequence[Future[Any]]) -> None:
    """Let running work save itself, and begin no more."""
    pool.stop()
    for future in futures:
        future.cancel()


# Workers


@dataclass(frozen=True)
class Work:
    """What all runs have in common, as a worker is told."""

    link: Link
    data_dir: Path | None
    seconds: float
    trace: Tracing | None
    version: str


def _work(work: Work, config: RunConfig, number: int) -> Result:
    """One run, in a worker."""
    if work.version != version("vcl"):
        raise VclError(
            f"A worker has vcl {version('vcl')}, and the caller {work.version}: install the same version."
        )
    with _busy, work.link.place(number, config.name) as place:
        if place.stop():
            raise Interrupted
        execute.prepare_jax(config.threads)
        # A process does many runs: what the last one compiled is of no use to the next.
        jax.clear_caches()
        return execute.run(
            config,
            place.root,
            reporter=Worker(),
            sinks=place.sinks,
            stop=place.stop,
            data_dir=work.data_dir,
            seconds_between_checkpoints=work.seconds,
            trace=work.trace,
        )


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


# Local processes


@dataclass(frozen=True)
class SharedDisk:
    """Processes of this machine work in the store itself. Empty files tell what must not wait."""

    root: Path
    signals: Path

    def stop_file(self, number: int | None) -> Path:
        return self.signals / ("stop" if number is None else f"stop-{number}")

    def started_file(self, number: int) -> Path:
        return self.signals / f"started-{number}"

    @contextmanager
    def place(self, number: int, name: str) -> Iterator[Place]:
        parent = parent_process()

        def stop() -> bool:
            asked = any(self.stop_file(who).exists() for who in (None, number))
            return asked or (parent is not None and not parent.is_alive())

        with suppress(OSError):  # the parent may have ended and taken the folder with it: then `stop` says so
            self.started_file(number).touch()
        yield Place(self.root, stop)


@dataclass(frozen=True)
class LocalPool:
    """Processes of this machine."""

    executor: Executor
    link: SharedDisk

    def collect(self) -> None:
        """They write to the store themselves."""

    def started(self, number: int) -> bool:
        return self.link.started_file(number).exists()

    def stop(self, number: int | None = None) -> None:
        self.link.stop_file(number).touch()

    def explain(self, failure: BaseException) -> BaseException:
        if isinstance(failure, BrokenProcessPool):
            return VclError(
                "A worker process was killed, most often for lack of memory. The saved checkpoints are intact: the "
                "same command continues from them; fewer --jobs need less memory."
            )
        return failure


@contextmanager
def local(jobs: int, root: Path) -> Iterator[LocalPool]:
    """So many processes, which end with this one."""
    signals = root / f".sweep-{machine()}-{os.getpid()}-{next(_numbers)}"
    with ExitStack() as stack:
        with writing(root):
            new = not root.exists()
            signals.mkdir(parents=True)
        stack.callback(lambda: _rmdir(root) if new else None)
        stack.callback(rmtree, signals, ignore_errors=True)
        for left in root.glob(f".sweep-{machine()}-*"):
            if not is_alive(int(left.name.split("-")[2])):
                rmtree(left, ignore_errors=True)
        executor = stack.enter_context(ProcessPoolExecutor(jobs, get_context("spawn"), _initialise))
        yield LocalPool(executor, SharedDisk(root, signals))


def _rmdir(folder: Path) -> None:
    """Remove a folder in which nothing came to be."""
    with suppress(OSError):
        folder.rmdir()


@contextmanager
def _signals_kept_from_children() -> Iterator[None]:
    """Processes started meanwhile never see Ctrl-C, which a terminal sends to all: files tell them to stop."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
