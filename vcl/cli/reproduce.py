"""vcl reproduce: the paper's tables, figures and counts of units."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

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
MOST_SEEDS = 10
"""How many seeds of a row are looked for, at the least."""


def reproduce(
    what: Annotated[What, Parameter(help="A table, the figures, the counts of active units, or all of them.")],
    /,
    *,
    recipe: Annotated[
        Literal["paper", "paper-code", "fast"],
        Parameter(help="Recipe of the paper's own results; those of other publications use published."),
    ] = "paper",
    seeds: Annotated[
        int, Parameter(help="Number of seeds of each result (0: as many as the paper).", converter=whole)
    ] = 0,
    jobs: Annotated[int, Parameter(help="Number of processes, one core each (0: all cores).", converter=whole)] = 0,
    dask: Dask = None,
    dry_run: Annotated[
        bool, Parameter(help="Only show what there is, and say what is missing and how long it will take.")
    ] = False,
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
    from vcl.runs.archive import keep
    from vcl.runs.reproduction import as_json, in_folder

    check_counts(jobs=jobs, **({"seeds": seeds} if seeds else {}))
    if results.exists() and not results.is_dir():
        raise VclError(f"--results {results} is a file. Name a folder: new results and tables are written there.")
    asked = cells_of(what, only)
    found = surveyed(asked, seeds or None, recipe, out, results)
    # A run can be behind several cells: it is run once.
    missing = {config.name: config for rows in found.values() for one in rows for config in one.missing}
    say_plan([one for rows in found.values() for one in rows], data_dir, jobs or runs.available_threads())
    if dry_run:
        show_tables(found, as_they_stand(asked, seeds, recipe, out, results), quietly=json)
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
        if (result := in_folder(config, out)) and (other := keep(result, results / "reproduce")):
            say(f"{other} holds another result of {config.name} and stays. To keep the new one, move it away.")
    found = surveyed(asked, seeds or None, recipe, out, results)
    whole_tables = as_they_stand(asked, seeds, recipe, out, results)
    write_tables(whole_tables, results / "reproduce", recipe)
    show_tables(found, whole_tables, quietly=json)
    document: dict[str, Any] = {name: as_json(rows) for name, rows in found.items()}
    complete = [config for one in found.get("own", []) for config in one.configs if config not in one.missing]
    folders = [runs.StoredRun.open(out / config.name) for config in complete]
    if folders and what in ("figures", "all"):
        drawn = draw(folders, results / "reproduce" / "figures", data_dir)
        document["figures"] = [str(path) for path in drawn]
    if folders and what in ("units", "all"):
        document["units"] = count_units(folders, data_dir)
        write_units(document["units"], results / "reproduce" / f"units-{recipe}.md", quietly=json)
    if json:
        print_json(document)
    if failed:
        fail("\n".join(f"{name} failed: {reason}" for name, reason in failed.items()))
    return None


def cells_of(what: What, only: str | None) -> dict[str, list["Cell"]]:
    """The cells of each table asked for; `own` are the runs that figures and counts of units look into."""
    from vcl.runs.paper import OWN, TABLES

    behind = {
        name: cells
        for name, cells in {**TABLES, "own": OWN}.items()
        if what in (name, "all") or (name == "own" and what in ("figures", "units"))
    }
    asked = {
        name: [cell for cell in cells if not only or only.lower() in cell.name.lower()]
        for name, cells in behind.items()
    }
    if not any(asked.values()):
        names = dict.fromkeys(cell.name for cells in behind.values() for cell in cells)
        raise VclError(f"No row of {what!r} has {only!r} in its name. There are: {'; '.join(names)}.")
    return {name: cells for name, cells in asked.items() if cells}


def surveyed(
    asked: Mapping[str, Sequence["Cell"]], seeds: int | None, recipe: str, out: Path, results: Path
) -> dict[str, list["Reproduction"]]:
    """What there is of each cell. Figures and counts of units need run folders; for tables kept results do."""
    from vcl.runs.archive import kept_results
    from vcl.runs.reproduction import survey

    kept = kept_results(results) if results.is_dir() else []
    return {
        name: [survey(cell, cell.configs(seeds, recipe), out, () if name == "own" else kept) for cell in cells]
        for name, cells in asked.items()
    }


def as_they_stand(
    asked: Mapping[str, Sequence["Cell"]], seeds: int, recipe: str, out: Path, results: Path
) -> dict[str, list["Reproduction"]]:
    """All rows of the tables asked for, with every seed that there is: a table is written whole or not at all."""
    from vcl.runs.paper import TABLES

    whole = {name: TABLES[name] for name in asked if name in TABLES}
    most = max([MOST_SEEDS, seeds, *(cell.seeds for cells in whole.values() for cell in cells)])
    return surveyed(whole, most, recipe, out, results)


def say_plan(found: Sequence["Reproduction"], data_dir: Path | None, jobs: int) -> None:
    """What is there, what is missing, and for how long it will run."""
    from vcl import runs
    from vcl.progress import Board
    from vcl.runs.reproduction import estimate

    lacking = [one for one in found if one.missing]
    if not lacking:
        return say("Nothing is missing.")
    runs.prepare_jax(1)
    seconds: dict[str, float] = {}

    with Board(err, ["timing a few epochs"], quiet=False) as board:
        for number, one in enumerate(lacking):
            board.show(0, number / len(lacking), one.cell.name)
            config = one.missing[0]
            if config.name not in seconds:
                seconds[config.name] = estimate(config, data_dir)
    table = Table(
        "to run",
        "runs missing",
        "hours each",
        "core-hours",
        title="About this long, from a few epochs of the first task",
        caption="Not included: curvatures, coresets, tests, and costs that grow with the number of tasks.",
    )
    total, counted = 0.0, set()
    for one in lacking:
        each = seconds[one.missing[0].name] / 3600
        new = [config.name for config in one.missing if config.name not in counted]
        counted.update(new)
        total += each * len(new)
        table.add_row(one.cell.name, str(len(one.missing)), f"{each:.2f}", f"{each * len(new):.2f}")
    err.print(table)
    return say(f"{total:.1f} core-hours in all: about {total / jobs:.1f} hours on {jobs} cores.")


def write_tables(tables: Mapping[str, Sequence["Reproduction"]], folder: Path, recipe: str) -> None:
    """A file for each table, all its rows in it."""
    from vcl.runs import reproduction

    for name, rows in tables.items():
        path = folder / f"{name}-{recipe}.md"
        with writing(path):
            folder.mkdir(parents=True, exist_ok=True)
            write_atomically(path, reproduction.markdown(rows).encode())
        say(f"Written to {path}")


def show_tables(
    found: Mapping[str, Sequence["Reproduction"]], tables: Mapping[str, Sequence["Reproduction"]], *, quietly: bool
) -> None:
    """The rows asked for, as they stand."""
    from vcl.runs import reproduction

    if quietly:
        return
    for name, rows in tables.items():
        asked = {one.cell.name for one in found[name]}
        text = reproduction.markdown([one for one in rows if one.cell.name in asked])
        stdout().print(text, markup=False)


def draw(stored: Sequence["StoredRun"], out: Path, data_dir: Path | None) -> list[Path]:
    """All figures of the paper, from these runs."""
    from vcl.report.figures import gallery
    from vcl.runs import StoredRun

    folders = [run.folder for run in stored]
    drawn = []
    for path in gallery.figures(folders, out, analysed=lambda f: analysed(StoredRun(f), data_dir), say=say):
        say(f"Written to {path}")
        drawn.append(path)
    return drawn


def count_units(stored: Sequence["StoredRun"], data_dir: Path | None) -> list[dict[str, Any]]:
    """The number of active units in each layer after each task, for tolerances from strict to the eye's."""
    return [
        {"run": run.name, "tolerance": tolerance, "active": analysed(run, data_dir, tolerance).counts.tolist()}
        for run in stored
        for tolerance in TOLERANCES
    ]


def write_units(counted: Sequence[dict[str, Any]], path: Path, *, quietly: bool) -> None:
    """Add the counts to a table; rows of other runs that it has already stay."""
    rows = kept_rows(path) if path.exists() else {}
    for one in counted:
        layers = "; ".join(", ".join(map(str, layer)) for layer in one["active"])
        rows[one["run"], str(one["tolerance"])] = layers
    lines = ["| run | tolerance | active units after each task, layer by layer |", "| --- | ---: | --- |"]
    lines += [f"| {run} | {tolerance} | {layers} |" for (run, tolerance), layers in rows.items()]
    text = "\n".join(lines) + "\n"
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, text.encode())
    say(f"Written to {path}")
    if not quietly:
        stdout().print(text, markup=False)


def kept_rows(path: Path) -> dict[tuple[str, str], str]:
    """The counts in a table, by run and tolerance."""
    rows = [line.strip("| ").split(" | ") for line in path.read_text().splitlines()[2:]]
    if any(len(cells) != 3 for cells in rows):
        raise VclError(f"{path} is not a table of run, tolerance and counts. Restore or remove it.")
    return {(run, tolerance): layers for run, tolerance, layers in rows}
