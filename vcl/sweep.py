"""Many runs in parallel processes, one core each; the store tells how they are getting on."""

import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import jax

from vcl import runs
from vcl.errors import VclError
from vcl.experiment import Interrupted, Silent
from vcl.runs import RunConfig, Tracing
from vcl.store import RunFolder

POLL_SECONDS = 0.5


@dataclass(frozen=True)
class Standing:
    """How far a run has come, as its folder tells."""

    stage: int = 0
    num_stages: int = 1
    epoch: int = 0
    objective: float | None = None
    accuracies: tuple[float, ...] = ()
    complete: bool = False


Outcome = dict[str, Any] | VclError


def run_all(
    configs: Sequence[RunConfig],
    root: Path,
    jobs: int,
    *,
    watch: Callable[[int, Standing], None],
    data_dir: Path | None = None,
    seconds_between_checkpoints: float = 15.0,
    trace: Tracing | None = None,
) -> list[dict[str, Any]]:
    """Results of all runs, in order. The first failure ends the others, after they have saved what they did."""
    outcomes = attempt_all(
        configs,
        root,
        jobs,
        watch=watch,
        data_dir=data_dir,
        seconds_between_checkpoints=seconds_between_checkpoints,
        trace=trace,
        end_at_failure=True,
    )
    return [outcome for outcome in outcomes if isinstance(outcome, dict)]


def attempt_all(
    configs: Sequence[RunConfig],
    root: Path,
    jobs: int,
    *,
    watch: Callable[[int, Standing], None],
    data_dir: Path | None = None,
    seconds_between_checkpoints: float = 15.0,
    trace: Tracing | None = None,
    end_at_failure: bool = False,
) -> list[Outcome]:
    """Results of all runs, in order, or what was wrong with them (raised, to end the others, if so asked)."""
    with ProcessPoolExecutor(jobs, get_context("spawn"), _initialise, (os.getpid(),)) as pool:
        futures = [
            pool.submit(_work, config, root, data_dir, seconds_between_checkpoints, trace) for config in configs
        ]
        told: set[int] = set()
        try:
            while len(told) < len(futures):
                time.sleep(POLL_SECONDS)
                for number, config in enumerate(configs):
                    if number not in told:
                        if futures[number].done():
                            told.add(number)
                        watch(number, standing(root / config.name))
                if any(future.done() and _ends_all(future, end_at_failure) for future in futures):
                    _stop(pool, futures)
        except KeyboardInterrupt:
            _stop(pool, futures)
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
                    "A process that did some of the runs was ended from outside, most often for lack of memory. "
                    "What was saved is intact: the same command goes on from there; fewer --jobs need less memory."
                ) from failure
            raise failure
        return [_outcome(future) for future in futures]


def _ends_all(future: Future[Any], end_at_failure: bool) -> bool:
    """Whether this run's end is the end of all: it failed, and not just by itself."""
    failure = None if future.cancelled() else future.exception()
    return failure is not None and (end_at_failure or not isinstance(failure, VclError))


def _outcome(future: Future[Any]) -> Outcome:
    failure = future.exception()
    return failure if isinstance(failure, VclError) else future.result()


def standing(path: Path) -> Standing:
    """Read from a run's folder how far it is; a folder that is not there yet has not begun."""
    try:
        folder = RunFolder.open(path)
        num_stages, complete = len(folder.record["stages"]), folder.result is not None
    except VclError:
        return Standing()
    events = folder.events()
    objectives = [e for e in events if e["event"] == "objective"]
    scored = [e for e in events if e["event"] == "evaluation"]
    nothing: dict[str, Any] = {"stage": 0, "first": 0, "objectives": []}
    last = objectives[-1] if objectives else nothing
    return Standing(
        stage=last["stage"],
        num_stages=num_stages,
        epoch=last["first"] + len(last["objectives"]),
        objective=last["objectives"][-1] if last["objectives"] else None,
        accuracies=tuple(s["accuracy"] for s in scored[-1]["scores"][: scored[-1]["task"] + 1]) if scored else (),
        complete=complete,
    )


class Worker(Silent):
    """Reports through the store; only what must be read goes to standard error."""

    def warn(self, message: str) -> None:
        print(message, file=sys.stderr, flush=True)


class _Parent:
    """The process that started this one: when it is gone, or when it asks, work stops."""

    pid = 0
    asked = False


def _initialise(parent: int) -> None:
    _Parent.pid = parent
    signal.signal(signal.SIGINT, lambda *_: setattr(_Parent, "asked", True))


def _work(
    config: RunConfig, root: Path, data_dir: Path | None, seconds: float, trace: Tracing | None
) -> dict[str, Any]:
    runs.prepare_jax(config.threads)
    # A process does many runs: what the last one compiled is of no use to the next.
    jax.clear_caches()
    return runs.run(
        config,
        root,
        reporter=Worker(),
        stop=lambda: _Parent.asked or os.getppid() != _Parent.pid,
        data_dir=data_dir,
        seconds_between_checkpoints=seconds,
        trace=trace,
    )


def _stop(pool: ProcessPoolExecutor, futures: Sequence[Future[Any]]) -> None:
    """Let running work save itself, and begin no more."""
    for future in futures:
        future.cancel()
    for process in list((pool._processes or {}).values()):
        if process.is_alive() and process.pid:
            os.kill(process.pid, signal.SIGINT)
