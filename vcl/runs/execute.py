"""From a configuration to a finished run: what the command line, sweeps and Python users call."""

import functools
import gc
import os
import platform
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import jax
from platformdirs import user_cache_path

from vcl.benchmarks import build
from vcl.learning import template
from vcl.runs import fold
from vcl.runs.config import RunConfig, from_record, processor
from vcl.runs.events import Channel, Ended, Silent, Sink, replay
from vcl.runs.folder import RunFolder
from vcl.runs.results import Record, Result
from vcl.training import Tracer

MOST_MAPPINGS = 20_000

Tracing = Callable[[RunFolder, int], Tracer]
"""Gives the tracer of a run's stage (from 1). It is handed to other processes, which find it by its name."""


def prepare_jax(threads: int) -> None:
    """Use so many cores, and keep compiled programs. To be called before anything is computed.

    If JAX's own variable JAX_COMPILATION_CACHE_DIR is set, it and its companions decide where and which are kept.
    """
    os.environ["NPROC"] = str(threads)
    if os.environ.get("JAX_COMPILATION_CACHE_DIR"):
        return
    jax.config.update("jax_compilation_cache_dir", str(user_cache_path("vcl") / "compiled"))
    # All of them: a run has some thirty small programs, which take most of a second to compile again.
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)


def make_room() -> None:
    """Drop compiled programs before their mappings run out, of which Linux gives a process 65530.

    A program takes some hundred, and one is kept for each configuration that was run in this process.
    """
    mappings = Path("/proc/self/maps")
    if mappings.exists() and mappings.read_bytes().count(b"\n") > MOST_MAPPINGS:
        jax.clear_caches()
        gc.collect()


def run(
    config: RunConfig,
    root: str | Path = Path("runs"),
    *,
    reporter: Sink | None = None,
    sinks: Sequence[Sink] = (),
    stop: Callable[[], bool] = lambda: False,
    data_dir: Path | None = None,
    seconds_between_checkpoints: float = 15.0,
    trace: Tracing | None = None,
) -> Result:
    """The result of a run: read if it is complete in `root`, continued if it was interrupted, else made.

    The `reporter` shows progress; all `sinks` receive the events of the run (`vcl.runs.sinks`), and one that fails
    does not stop it. A `trace` watches the learning (`vcl.analysis.trace.tracer`). None of them changes a bit of the
    result.
    """
    path = Path(root) / config.name
    folder = RunFolder.open(path) if (path / "run.json").exists() else None
    seconds = seconds_between_checkpoints
    return _run_or_resume(config, path, folder, reporter, sinks, stop, data_dir, seconds, trace)


def resume(
    folder: RunFolder,
    *,
    reporter: Sink | None = None,
    sinks: Sequence[Sink] = (),
    stop: Callable[[], bool] = lambda: False,
    data_dir: Path | None = None,
    seconds_between_checkpoints: float = 15.0,
    trace: Tracing | None = None,
) -> Result:
    """The result of the run in a folder: read if it is complete, else continued."""
    config = from_record(folder.record)
    seconds = seconds_between_checkpoints
    return _run_or_resume(config, folder.path, folder, reporter, sinks, stop, data_dir, seconds, trace)


def _run_or_resume(
    config: RunConfig,
    path: Path,
    folder: RunFolder | None,
    reporter: Sink | None,
    sinks: Sequence[Sink],
    stop: Callable[[], bool],
    data_dir: Path | None,
    seconds_between_checkpoints: float,
    trace: Tracing | None,
) -> Result:
    channel = Channel([reporter or Silent(), *sinks])
    if folder and folder.result is not None:
        if trace and not folder.snapshots():
            channel.warn(
                f"This run is complete in {path}, without a trace: showing what it found. vcl run with "
                "--fresh --trace runs it again and records one."
            )
        else:
            channel.say(f"This run is complete in {path}: showing what it found. --fresh runs it again.")
        replay(folder, sinks)
        channel.receive(Ended())
        return folder.result
    stream = build(config.benchmark, config.stream, config.seed, data_dir, channel.say)
    # Whatever the learner refuses, it refuses here: before there is a folder.
    template(config.learner, stream.spec)
    if not folder:
        facts = {"spec": asdict(stream.spec), "task_names": stream.task_names, "stages": stream.stages}
        folder = RunFolder.create(path, {**describe(config), **facts})  # type: ignore[typeddict-item]
    make_room()
    with folder.lock(), closing(channel):
        folder.clean()
        if trace:
            folder.begin_trace()
        measured = fold.learn(
            config.learner,
            stream,
            config.seed,
            folder=folder,
            reporter=channel,
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
            "processor": processor(),
            "run": folder.name,
        }
        folder.write_result(result)
    return result


@contextmanager
def closing(channel: Channel) -> Iterator[None]:
    """Tell all who listen when a run has ended, however it did."""
    try:
        yield
    finally:
        channel.receive(Ended())


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
