"""Commands that learn: run, resume, extend."""

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from vcl.cli import tables
from vcl.cli.console import out as stdout
from vcl.cli.console import print_json, say
from vcl.cli.console import show as show_text
from vcl.cli.options import (
    Benchmark,
    CheckpointSeconds,
    Dask,
    DataDir,
    ExamplesPerTask,
    Json,
    NumTasks,
    Online,
    Out,
    PermuteFirst,
    Quiet,
    RunPath,
    ScenarioFlag,
    TensorBoardDir,
    Trace,
    Validation,
    check_counts,
    whole,
)
from vcl.cli.watch import watched, watched_all
from vcl.errors import VclError

if TYPE_CHECKING:
    from vcl.runs import Result, RunConfig, StoredRun, Tracing


def run(
    benchmark: Benchmark,
    /,
    *,
    method: Annotated[str, Parameter(help="Name of the method; `vcl methods` lists them.")] = "vcl",
    recipe: Annotated[str | None, Parameter(help="Named settings.")] = None,
    seed: Annotated[int, Parameter(help="Seed of the random numbers.", converter=whole)] = 0,
    seeds: Annotated[
        int,
        Parameter(
            help="Number of seeds, counted up from --seed; prints mean ± standard deviation.", converter=whole
        ),
    ] = 1,
    jobs: Annotated[
        int, Parameter(help="Number of processes for several seeds, one core each (0: all cores).", converter=whole)
    ] = 0,
    threads: Annotated[
        int, Parameter(help="Number of cores for each run (0: all for a single run).", converter=whole)
    ] = 0,
    scenario: ScenarioFlag = None,
    num_tasks: NumTasks = None,
    permute_first: PermuteFirst = False,
    online: Online = 0,
    validation: Validation = 0.0,
    examples: ExamplesPerTask = 0,
    out: Out = Path("runs"),
    data_dir: DataDir = None,
    fresh: Annotated[bool, Parameter(help="Run again even if this run exists; the old one is kept.")] = False,
    trace: Trace = False,
    checkpoint_seconds: CheckpointSeconds = 15.0,
    dask: Dask = None,
    tensorboard: TensorBoardDir = None,
    json: Json = False,
    quiet: Quiet = False,
    **settings: Any,
) -> None:
    """Learn a stream of tasks, one after the other, and measure what is remembered.

    The same command resumes an interrupted run, and shows the result of a complete one.
    """
    from vcl import runs
    from vcl.benchmarks import StreamOptions
    from vcl.runs.sweep import run_all

    check_counts(seeds=seeds, jobs=jobs, threads=threads)
    several = seeds > 1 or dask is not None
    cores = runs.available_threads()
    configs = [
        runs.configure(
            benchmark,
            method,
            recipe=recipe,
            seed=seed + number,
            threads=threads or (1 if several else cores),
            stream=StreamOptions(scenario, num_tasks, permute_first, online, validation, examples),
            **settings,
        )
        for number in range(seeds)
    ]
    tracing = tracer_of(configs[0]) if trace else None
    root = runs.unused_root(out, configs[0]) if fresh else out
    if not quiet and (twin := same_but_threads(root, configs[0])):
        say(tables.threads_note(twin.path, twin.config.threads, configs[0].threads))
    if several:
        work_all = functools.partial(run_all, trace=tracing)
        jobs = min(jobs or cores, seeds)
        results = watched_all(
            configs,
            root,
            jobs,
            work_all,
            data_dir,
            checkpoint_seconds,
            quiet,
            dask=dask,
            tensorboard=tensorboard,
        )
        if seeds > 1:
            present_several(results, root, as_json=json)
        else:
            present(results[0], root / configs[0].name, as_json=json)
    else:
        path = root / configs[0].name
        work = functools.partial(runs.run, configs[0], root, trace=tracing)
        found = watched(configs[0], path, work, data_dir, checkpoint_seconds, quiet, tensorboard)
        present(found, path, as_json=json)


def resume(
    run: RunPath,
    /,
    *,
    data_dir: DataDir = None,
    trace: Trace = False,
    checkpoint_seconds: CheckpointSeconds = 15.0,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Resume an interrupted run; a killed run resumes too.

    The result is identical, bit by bit, to that of an uninterrupted run. If the run was recorded with --trace, the
    recording continues.
    """
    from vcl.runs import StoredRun

    continue_run(StoredRun.open(run.resolve()), run, data_dir, trace, checkpoint_seconds, json, quiet)


def extend(
    run: RunPath,
    /,
    *,
    num_tasks: Annotated[
        int, Parameter(help="Number of tasks in all, those already learnt included.", converter=whole)
    ],
    out: Annotated[
        Path | None,
        Parameter(
            help="Folder to write; default: beside RUN, named like a run with NUM-TASKS tasks, or "
            "RUN-extended-NUM-TASKS if RUN was pruned or widened."
        ),
    ] = None,
    data_dir: DataDir = None,
    checkpoint_seconds: CheckpointSeconds = 15.0,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Continue a complete run with further tasks of its stream, as a new run.

    RUN itself is not changed. If the command is interrupted, `vcl resume` continues the new run.

    Example: [bold]vcl extend runs/permuted-mnist-vcl-1a2b3c4d-seed0 --num-tasks 20[/bold]
    """
    from vcl import runs
    from vcl.runs import StoredRun
    from vcl.runs.derived import extended_path

    old = StoredRun.open(run.resolve())
    path = out or extended_path(old, num_tasks)
    if num_tasks > old.spec.num_tasks and path.exists():
        raise VclError(
            f"{path} exists already. If it is this run, continue or show it with: vcl resume {path}; otherwise "
            "choose another folder with --out."
        )
    runs.prepare_jax(old.config.threads)
    new = runs.extend(old, num_tasks, path, data_dir)
    continue_run(new, path, data_dir, False, checkpoint_seconds, json, quiet)


def continue_run(
    stored: "StoredRun",
    path: Path,
    data_dir: Path | None,
    trace: bool,
    checkpoint_seconds: float,
    as_json: bool,
    quiet: bool,
) -> None:
    """Resume a stored run, which the user knows as `path`, and show its result."""
    from vcl import runs

    config = stored.config
    tracing = tracer_of(config) if trace or stored.folder.is_traced else None
    work = functools.partial(runs.resume, stored.folder, trace=tracing)
    present(watched(config, path, work, data_dir, checkpoint_seconds, quiet), path, as_json=as_json)


def tracer_of(config: "RunConfig") -> "Tracing":
    from vcl.analysis.trace import tracer

    return tracer(config.method, config.learner)


def same_but_threads(root: Path, config: "RunConfig") -> "StoredRun | None":
    """A run that differs from a new one only in its number of threads."""
    from vcl.runs import StoredRun

    if (root / config.name).exists():
        return None
    for path in sorted(root.glob(f"{config.benchmark}-{config.method}-*-seed{config.seed}/run.json")):
        try:
            other = StoredRun.open(path.parent)
            if other.record["config"] == {**config.settings, "threads": other.config.threads}:
                return other
        except VclError:
            continue
    return None


def present(result: "Result", path: Path, *, as_json: bool) -> None:
    """Show one result."""
    if as_json:
        return print_json(result)
    stdout().print(tables.accuracy_table(result))
    stdout().print(tables.summary(result))
    return show_text(f"Run folder: {path}")


def present_several(results: list["Result"], root: Path, *, as_json: bool) -> None:
    """Show the results of several seeds."""
    if as_json:
        return print_json({**tables.over_seeds(results), "runs": results})
    stdout().print(tables.seeds_table(results))
    stdout().print(tables.seeds_summary(results))
    return show_text(f"Run folders: {root}")
