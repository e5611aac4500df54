"""From a configuration to a finished run: what the command line, sweeps and Python users call."""

import functools
import os
import platform
import shlex
import sys
from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import jax
from platformdirs import user_cache_path

from vcl.benchmarks import build
from vcl.learning import template
from vcl.runs import fold
from vcl.runs.config import RunConfig, from_record
from vcl.runs.fold import Reporter
from vcl.runs.folder import RunFolder
from vcl.runs.results import Record, Result
from vcl.training import Tracer

Tracing = Callable[[RunFolder, int], Tracer]
"""Gives the tracer of a run's stage (from 1). It is handed to other processes, which find it by its name."""


def prepare_jax(threads: int) -> None:
    """Use so many cores, and keep compiled programs. To be called before anything is computed."""
    os.environ["NPROC"] = str(threads)
    jax.config.update("jax_compilation_cache_dir", str(user_cache_path("vcl") / "compiled"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.3)


def run(
    config: RunConfig,
    root: str | Path = Path("runs"),
    *,
    reporter: Reporter | None = None,
    stop: Callable[[], bool] = lambda: False,
    data_dir: Path | None = None,
    seconds_between_checkpoints: float = 15.0,
    trace: Tracing | None = None,
) -> Result:
    """The result of a run: read if it is complete in `root`, continued if it was interrupted, else made.

    A `trace` watches the learning (`vcl.analysis.trace.tracer`) and does not change a bit of the result.
    """
    path = Path(root) / config.name
    folder = RunFolder.open(path) if (path / "run.json").exists() else None
    return _run_or_resume(config, path, folder, reporter, stop, data_dir, seconds_between_checkpoints, trace)


def resume(
    folder: RunFolder,
    *,
    reporter: Reporter | None = None,
    stop: Callable[[], bool] = lambda: False,
    data_dir: Path | None = None,
    seconds_between_checkpoints: float = 15.0,
    trace: Tracing | None = None,
) -> Result:
    """The result of the run in a folder: read if it is complete, else continued."""
    config = from_record(folder.record)
    return _run_or_resume(config, folder.path, folder, reporter, stop, data_dir, seconds_between_checkpoints, trace)


def _run_or_resume(
    config: RunConfig,
    path: Path,
    folder: RunFolder | None,
    reporter: Reporter | None,
    stop: Callable[[], bool],
    data_dir: Path | None,
    seconds_between_checkpoints: float,
    trace: Tracing | None,
) -> Result:
    reporter = reporter or fold.Silent()
    if folder and folder.result is not None:
        if trace and not folder.snapshots():
            reporter.warn(
                f"This run is complete in {path}, without a trace: showing what it found. vcl run with "
                "--fresh --trace runs it again and records one."
            )
        else:
            reporter.say(f"This run is complete in {path}: showing what it found. --fresh runs it again.")
        return folder.result
    stream = build(config.benchmark, config.stream, config.seed, data_dir, reporter.say)
    # Whatever the learner refuses, it refuses here: before there is a folder.
    template(config.learner, stream.spec)
    if not folder:
        facts = {"spec": asdict(stream.spec), "task_names": stream.task_names, "stages": stream.stages}
        folder = RunFolder.create(path, {**describe(config), **facts})  # type: ignore[typeddict-item]
    with folder.lock():
        folder.clean()
        measured = fold.learn(
            config.learner,
            stream,
            config.seed,
            folder=folder,
            reporter=reporter,
            stop=stop,
            seconds_between_checkpoints=seconds_between_checkpoints,
            trace=functools.partial(trace, folder) if trace else None,
        )
        result: Result = {
            "benchmark": config.benchmark,
            "method": config.method,
            "seed": config.seed,
            "config": config.settings,
            **measured,
            "version": version("vcl"),
            "run": folder.name,
        }
        folder.write_result(result)
    return result


def describe(config: RunConfig) -> Record:
    """What a run folder says of its own making."""
    return {
        "benchmark": config.benchmark,
        "method": config.method,
        "seed": config.seed,
        "config": config.settings,
        "version": version("vcl"),
        "versions": {
            "python": platform.python_version(),
            **{name: version(name) for name in ("jax", "jaxlib", "numpy", "optax", "equinox")},
        },
        "command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
    }
