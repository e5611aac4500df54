"""vcl sweep: settings chosen on validation data."""

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from vcl.cli import tables
from vcl.cli.console import out as stdout
from vcl.cli.console import print_json, say
from vcl.cli.options import (
    CheckpointSeconds,
    Dask,
    DataDir,
    Json,
    Out,
    Quiet,
    TensorBoardDir,
    check_counts,
    whole,
)
from vcl.cli.watch import watched_all
from vcl.errors import VclError

if TYPE_CHECKING:
    from vcl.runs import RunConfig
    from vcl.runs.plans import Candidate, Plan
    from vcl.runs.sweep import Outcome, Prune


def sweep(
    file: Annotated[Path, Parameter(help="TOML file with the benchmark, the method and what is varied.")],
    /,
    *,
    jobs: Annotated[int, Parameter(help="Number of processes, one core each (0: all cores).", converter=whole)] = 0,
    shard: Annotated[
        str | None,
        Parameter(help="Make only this part of a grid, such as 2/3: for job arrays on several machines."),
    ] = None,
    out: Out = Path("runs"),
    data_dir: DataDir = None,
    checkpoint_seconds: CheckpointSeconds = 15.0,
    dask: Dask = None,
    tensorboard: TensorBoardDir = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Try settings and compare them by their accuracy on validation data, best first.

    The file has a grid, or a search space for Optuna. Complete runs are not made again, and interrupted ones are
    resumed: the same command continues.

    Example: [bold]vcl sweep sweep.toml --jobs 4[/bold]
    """
    from vcl.runs import available_threads, plans
    from vcl.runs import sweep as execution

    check_counts(jobs=jobs)
    plan = plans.read_plan(file)
    at_once = jobs or available_threads()

    def attempt(configs: "Sequence[RunConfig]", prune: "Prune" = execution.never) -> "list[Outcome]":
        work = functools.partial(execution.attempt_all, prune=prune)
        processes = min(at_once, len(configs))
        places = (data_dir, checkpoint_seconds, quiet)
        return watched_all(configs, out, processes, work, *places, dask=dask, tensorboard=tensorboard)

    if plan.search:
        if shard:
            raise VclError("--shard divides a grid. The trials of a [search] depend on each other.")
        from vcl.runs.tuning import search

        found = search(plan, out, max(1, at_once // plan.seeds), attempt)
    else:
        chosen = plans.shard(plan.candidates(), shard)
        if not chosen:
            raise VclError(
                f"There is nothing to do in part {shard}: the grid has {len(plan.candidates())} candidates."
            )
        outcomes = attempt([config for candidate in chosen for config in plan.configs(candidate)])
        found = [
            plans.judged(candidate, outcomes[number * plan.seeds : (number + 1) * plan.seeds])
            for number, candidate in enumerate(chosen)
        ]
    present(plan, found, out, shard, as_json=json)


def present(plan: "Plan", found: "list[Candidate]", out: Path, shard: str | None, *, as_json: bool) -> None:
    """Show the candidates, and write them beside the runs; a part is not written over the whole."""
    from vcl.files import write_atomically, writing
    from vcl.runs import plans

    ranked = plans.best_first(found)
    if as_json:
        rows = [{"settings": c.settings, "accuracy": c.accuracy, "accuracies": c.accuracies} for c in ranked]
        print_json([{**row, "note": c.note} for row, c in zip(rows, ranked, strict=True)])
    else:
        stdout().print(tables.candidates_table(ranked, plan.name))
    if shard is None:
        path = out / f"{plan.name}.md"
        with writing(path):
            write_atomically(path, plans.as_markdown(plan, found).encode())
        say(f"Table: {path}")
    if failed := [
        c for c in ranked if c.note and not c.accuracies and c.note not in ("PRUNED", "It was stopped early.")
    ]:
        say("\n".join(f"{c.settings} failed: {c.note}" for c in failed))
