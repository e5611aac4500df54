"""vcl reproduce: the paper's tables, figures and counts of units."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter
from rich.table import Table

from vcl.cli.console import err, fail, print_json, say
from vcl.cli.console import out as stdout
from vcl.cli.options import CheckpointSeconds, Dask, DataDir, Json, Out, Quiet, check_counts, whole
from vcl.cli.watch import analysed, watched_all
from vcl.errors import VclError
from vcl.files import write_atomically, writing

if TYPE_CHECKING:
    from vcl.runs import StoredRun
    from vcl.runs.paper import Cell
    from vcl.runs.reproduction import Reproduction

What = Literal["table1", "table2", "figures", "units", "all"]
TOLERANCES = (0.0002, 0.002, 0.01, 0.05)
"""From strict to what the eye sees."""


def reproduce(
    what: Annotated[What, Parameter(help="A table, the figures, the counts of active units, or all of them.")],
    /,
    *,
    recipe: Annotated[
        Literal["paper", "paper-code", "fast"],
        Parameter(help="Recipe of the paper's own results; the others have theirs."),
    ] = "paper",
    seeds: Annotated[
        int, Parameter(help="Number of seeds of each result (0: as many as the paper).", converter=whole)
    ] = 0,
    jobs: Annotated[int, Parameter(help="Number of processes, one core each (0: all cores).", converter=whole)] = 0,
    dask: Dask = None,
    dry_run: Annotated[bool, Parameter(help="Only say what is missing, and how long it will take.")] = False,
    only: Annotated[
        str | None, Parameter(help="Only rows whose name contains this text, such as VCL or 20 tasks.")
    ] = None,
    out: Out = Path("runs"),
    results: Annotated[
        Path, Parameter(help="Folder with results that count as run; tables, figures and new results go there.")
    ] = Path("results"),
    data_dir: DataDir = None,
    checkpoint_seconds: CheckpointSeconds = 15.0,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Run what is missing of the paper's results, and write them beside the paper's numbers.

    First it says how long that will take, measured on a few epochs. Complete runs are not run again, interrupted
    ones are resumed, and nothing is deleted. Figures and counts of units need run folders, not only results.

    Example: [bold]vcl reproduce table1 --dry-run[/bold]
    """
    from vcl import runs
    from vcl.runs import sweep
    from vcl.runs.archive import keep, kept_results
    from vcl.runs.reproduction import as_json, in_folder, survey

    check_counts(jobs=jobs, **({"seeds": seeds} if seeds else {}))
    kept = kept_results(results) if results.is_dir() else []
    asked = cells_of(what, only)
    found = {
        name: [
            survey(cell, cell.configs(seeds or None, recipe), out, () if name == "own" else kept) for cell in cells
        ]
        for name, cells in asked.items()
    }
    # A run can be behind several cells: it is run once.
    missing = {config.name: config for rows in found.values() for one in rows for config in one.missing}
    say_plan([one for rows in found.values() for one in rows], data_dir, jobs or runs.available_threads())
    if dry_run:
        return print_json({name: as_json(rows) for name, rows in found.items()}) if json else None
    failed = {}
    if missing:
        configs = list(missing.values())
        count = jobs or min(runs.available_threads(), len(configs))
        outcomes = watched_all(
            configs, out, count, sweep.attempt_all, data_dir, checkpoint_seconds, quiet, dask=dask
        )
        for config, outcome in zip(configs, outcomes, strict=True):
            if isinstance(outcome, VclError):
                failed[config.name] = str(outcome)
    for config in (config for rows in found.values() for one in rows for config in one.configs):
        if result := in_folder(config, out):
            keep(result, results / "reproduce")
    kept = kept_results(results) if results.is_dir() else []
    for name, cells in asked.items():
        found[name] = [
            survey(cell, cell.configs(seeds or None, recipe), out, () if name == "own" else kept) for cell in cells
        ]
    present(found, results / "reproduce", recipe, as_json=json)
    if "own" in found:
        folders = [
            runs.StoredRun.open(out / config.name)
            for one in found["own"]
            for config in one.configs
            if config not in one.missing
        ]
        if folders and what in ("figures", "all"):
            draw(folders, results / "reproduce" / "figures", data_dir)
        if folders and what in ("units", "all"):
            count_units(folders, results / "reproduce" / f"units-{recipe}.md", data_dir)
    if failed:
        fail("\n".join(f"{name} failed: {reason}" for name, reason in failed.items()))
    return None


def cells_of(what: What, only: str | None) -> dict[str, list["Cell"]]:
    """The cells of each table asked for; `own` are the runs that figures and counts of units look into."""
    from vcl.runs.paper import OWN, TABLES

    asked = {
        name: [cell for cell in cells if not only or only.lower() in cell.name.lower()]
        for name, cells in {**TABLES, "own": OWN}.items()
        if what in (name, "all") or (name == "own" and what in ("figures", "units"))
    }
    if not any(asked.values()):
        raise VclError(
            f"No row of the paper's tables has {only!r} in its name. `vcl reproduce all --dry-run` lists them."
        )
    return asked


def say_plan(found: Sequence["Reproduction"], data_dir: Path | None, jobs: int) -> None:
    """What is there, what is missing, and for how long it will run."""
    from vcl import runs
    from vcl.progress import Board
    from vcl.runs.reproduction import estimate

    lacking = [one for one in found if one.missing]
    if not lacking:
        return say("All of it is there.")
    runs.prepare_jax(1)
    seconds: dict[str, float] = {}

    with Board(err, ["timing a few epochs"], quiet=False) as board:
        for number, one in enumerate(lacking):
            board.show(0, number / len(lacking), one.cell.name)
            config = one.missing[0]
            if config.name not in seconds:
                seconds[config.name] = estimate(config, data_dir)
    table = Table("to run", "runs missing", "hours each", "core-hours", title="About this long, from a few epochs")
    total, counted = 0.0, set()
    for one in lacking:
        each = seconds[one.missing[0].name] / 3600
        new = [config.name for config in one.missing if config.name not in counted]
        counted.update(new)
        total += each * len(new)
        table.add_row(one.cell.name, str(len(one.missing)), f"{each:.2f}", f"{each * len(new):.2f}")
    err.print(table)
    return say(f"{total:.1f} core-hours in all: about {total / jobs:.1f} hours on {jobs} cores.")


def present(found: dict[str, list["Reproduction"]], folder: Path, recipe: str, *, as_json: bool) -> None:
    """Write each table and show it."""
    from vcl.runs import reproduction

    for name, rows in found.items():
        if name == "own":
            continue
        text = reproduction.markdown(rows)
        path = folder / f"{name}-{recipe}.md"
        with writing(path):
            folder.mkdir(parents=True, exist_ok=True)
            write_atomically(path, text.encode())
        if not as_json:
            stdout().print(text, markup=False)
            say(f"Written to {path}")
    if as_json:
        print_json({name: reproduction.as_json(rows) for name, rows in found.items()})


def draw(stored: Sequence["StoredRun"], out: Path, data_dir: Path | None) -> None:
    """All figures of the paper, from these runs."""
    from vcl.report.figures import gallery
    from vcl.runs import StoredRun

    folders = [run.folder for run in stored]
    for path in gallery.figures(folders, out, analysed=lambda f: analysed(StoredRun(f), data_dir), say=say):
        stdout().print(str(path), markup=False)


def count_units(stored: Sequence["StoredRun"], path: Path, data_dir: Path | None) -> None:
    """The number of active units after each task, for tolerances from strict to the eye's."""
    lines = ["| run | tolerance | active units after each task, layer by layer |", "| --- | ---: | --- |"]
    for run in stored:
        for tolerance in TOLERANCES:
            counts = analysed(run, data_dir, tolerance).counts
            layers = "; ".join(", ".join(map(str, layer)) for layer in counts.tolist())
            lines.append(f"| {run.name} | {tolerance} | {layers} |")
    text = "\n".join(lines) + "\n"
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, text.encode())
    stdout().print(text, markup=False)
