"""Carrying out runs with progress; Ctrl-C saves what was learnt."""

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vcl.cli.console import err, fail
from vcl.cli.interrupts import STOPPED, saving

if TYPE_CHECKING:
    from vcl.analysis import Analysis
    from vcl.analysis.stored import Watch
    from vcl.runs import Result, RunConfig, StoredRun
    from vcl.runs.events import Sink
    from vcl.runs.sweep import Pools

SAVED = "Stopped; everything so far is saved."


def watched(
    config: "RunConfig",
    path: Path,
    work: Callable[..., "Result"],
    data_dir: Path | None,
    checkpoint_seconds: float,
    quiet: bool,
    tensorboard: Path | None = None,
) -> "Result":
    """The result of one run: `work` is `vcl.runs.run` or `vcl.runs.resume`, all but applied."""
    from vcl import runs
    from vcl.progress import SingleRun

    def hint() -> str:
        return f" Continue with: vcl resume {path}" if (path / "run.json").exists() else ""

    runs.prepare_jax(config.threads)
    with (
        SingleRun(err, config, quiet=quiet) as reporter,
        # Before the first epoch nothing is lost by stopping at once.
        saving(reporter.warn, hint, lambda: reporter.learning) as stop,
    ):
        try:
            return work(
                reporter=reporter,
                sinks=trackers(tensorboard, config),
                stop=stop,
                data_dir=data_dir,
                seconds_between_checkpoints=checkpoint_seconds,
            )
        except runs.Interrupted:
            pass
    fail(f"{SAVED}{hint()}", STOPPED)


def watched_all(
    configs: Sequence["RunConfig"],
    root: Path,
    jobs: int,
    work: Callable[..., list[Any]],
    data_dir: Path | None,
    checkpoint_seconds: float,
    quiet: bool,
    *,
    dask: str | None = None,
    tensorboard: Path | None = None,
) -> list[Any]:
    """The outcomes of several runs: `work` is `run_all` or `attempt_all` of `vcl.runs.sweep`."""
    from vcl.benchmarks import build
    from vcl.progress import SeveralRuns
    from vcl.runs import Interrupted

    # Fetch the data and see whether the options fit before any process starts.
    build(configs[0].benchmark, configs[0].stream, configs[0].seed, data_dir)
    hint = " Continue with the same command."
    with (
        SeveralRuns(err, configs, quiet=quiet) as board,
        saving(board.warn, lambda: hint) as stop,
    ):
        try:
            return work(
                configs,
                root,
                jobs,
                watch=board.watch,
                sinks=functools.partial(trackers, tensorboard),
                pool=cluster(dask),
                stop=stop,
                data_dir=data_dir,
                seconds_between_checkpoints=checkpoint_seconds,
            )
        except Interrupted:
            pass
    fail(f"{SAVED}{hint}", STOPPED)


def trackers(tensorboard: Path | None, config: "RunConfig") -> list["Sink"]:
    """Those who listen to a run beside the progress bar."""
    from vcl.runs.sinks import TensorBoard

    return [TensorBoard(tensorboard / config.name)] if tensorboard else []


def cluster(address: str | None) -> "Pools | None":
    """The pool that was asked for; local processes by default."""
    from vcl.runs.cluster import dask

    return None if address is None else dask(address)


def analysed(run: "StoredRun", data_dir: Path | None, tolerance: float | None = None) -> "Analysis":
    """The analysis of a run's units, with progress."""
    from vcl.analysis import analyse

    settings = {} if tolerance is None else {"tolerance": tolerance}
    with measuring(run) as watch:
        return analyse(run.folder, data_dir=data_dir, **settings, watch=watch)


@contextlib.contextmanager
def measuring(run: "StoredRun") -> "Iterator[Watch]":
    """Shows how far the measurements of a stored run are."""
    from vcl import runs
    from vcl.progress import Board

    runs.prepare_jax(runs.available_threads())
    with Board(err, [run.name], quiet=False) as board:
        yield lambda fraction, text: board.show(0, fraction, text)
