"""vcl compare: several methods side by side."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter
from rich.markup import escape

from vcl.cli import tables as tabulate
from vcl.cli.console import err, fail, print_json, say
from vcl.cli.console import out as stdout
from vcl.cli.options import (
    Benchmark,
    CheckpointSeconds,
    Dask,
    DataDir,
    ExamplesPerTask,
    Hidden,
    Json,
    NetworkFlag,
    NumTasks,
    Online,
    Out,
    PermuteFirst,
    Quiet,
    ScenarioFlag,
    TensorBoardDir,
    Validation,
    check_counts,
    whole,
)
from vcl.cli.watch import watched_all
from vcl.errors import VclError, choose

if TYPE_CHECKING:
    from vcl.benchmarks import StreamOptions
    from vcl.core import StreamSpec
    from vcl.nets import Network
    from vcl.runs import RunConfig
    from vcl.runs.comparison import Entry, Row

Configs = dict[tuple[str, int], "RunConfig"]
"""By label and seed."""
Refusals = dict[str, str]
"""Why methods are not in the table, by label."""


def compare(
    benchmark: Benchmark,
    /,
    *,
    methods: Annotated[
        str,
        Parameter(
            help="Names with commas between; all stands for every method. A name may bring settings: "
            "all,vcl:coreset=200:recipe=paper."
        ),
    ] = "all",
    seeds: Annotated[int, Parameter(help="Number of seeds of each method: 0, 1, …", converter=whole)] = 1,
    jobs: Annotated[int, Parameter(help="Number of processes, one core each (0: all cores).", converter=whole)] = 0,
    hidden: Hidden = None,
    network: NetworkFlag = None,
    scenario: ScenarioFlag = None,
    num_tasks: NumTasks = None,
    permute_first: PermuteFirst = False,
    online: Online = 0,
    validation: Validation = 0.0,
    examples: ExamplesPerTask = 0,
    out: Out = Path("runs"),
    tables: Annotated[
        Path | None,
        Parameter(help="Folder for the table (.md, .csv) and the plot (.svg, .png); default OUT/compare."),
    ] = None,
    reference: Annotated[
        str | None,
        Parameter(
            help="A method of --methods: also tabulate paired differences to it, with 95 % intervals, for which two "
            "seeds are needed."
        ),
    ] = None,
    uncertainty: Annotated[
        bool,
        Parameter(
            help="Also measure every run as `vcl uncertainty` does; as NAME-uncertainty.md, .json, .svg and .png.",
            negative="",
        ),
    ] = False,
    results: Annotated[
        Path | None,
        Parameter(
            help="Folder with results, as JSON, that count as run, such as those of another machine; new ones are "
            "added below it. Not with --uncertainty, which needs run folders."
        ),
    ] = None,
    data_dir: DataDir = None,
    checkpoint_seconds: CheckpointSeconds = 15.0,
    dask: Dask = None,
    tensorboard: TensorBoardDir = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Run several methods on the same stream and compare them in one table, best first.

    Complete runs are not run again, and interrupted ones are resumed. Methods that are not defined for the stream or
    the network, and methods that fail, are listed below the table; the others are not affected.
    """
    from vcl import runs
    from vcl.benchmarks import StreamOptions
    from vcl.runs import archive, comparison, sweep

    check_counts(seeds=seeds, jobs=jobs)
    if results and uncertainty:
        raise VclError("--uncertainty needs run folders, so that --results cannot stand for them. Leave one out.")
    options = StreamOptions(scenario, num_tasks, permute_first, online, validation, examples)
    common = {"hidden": hidden} if hidden else {}
    if reference is not None:
        choose("method of --methods for --reference", reference, [e.label for e in comparison.entries(methods)])
    configs, refused = configured(benchmark, comparison.entries(methods), seeds, options, common, network)
    spec = spec_of(benchmark, options, data_dir)
    refused |= undefined({label: config for (label, seed), config in configs.items() if seed == 0}, spec)
    chosen = {place: config for place, config in configs.items() if place[0] not in refused}
    if not chosen:
        reasons = " ".join(f"{label}: {reason}" for label, reason in refused.items())
        raise VclError(f"None of these methods can learn this stream. {reasons}")
    kept = archive.kept_results(results) if results and results.is_dir() else []
    kept = [result for result in kept if archive.is_whole(result)]
    outcomes = {place: found for place, config in chosen.items() if (found := archive.find(config, kept))}
    missing = {place: config for place, config in chosen.items() if place not in outcomes}
    if missing:
        jobs = min(jobs or runs.available_threads(), len(missing))
        new = watched_all(
            list(missing.values()),
            out,
            jobs,
            sweep.attempt_all,
            data_dir,
            checkpoint_seconds,
            quiet,
            dask=dask,
            tensorboard=tensorboard,
        )
        for result in new:
            if results and not isinstance(result, VclError):
                archive.keep(result, results / "compare" / "runs")
        outcomes |= dict(zip(missing, new, strict=True))
    rows, failed = rows_of(chosen, outcomes, spec)
    name, folder = name_of(benchmark, options, network, hidden), tables or out / "compare"
    present(rows, name, folder, reference, as_json=json)
    if uncertainty:
        present_uncertainty(rows, chosen, name, folder, out, data_dir, as_json=json)
    for label, reason in refused.items():
        err.print(f"[bold]{escape(label)}[/bold] is not in the table: {escape(reason)}", soft_wrap=True)
    if failed:
        fail("\n".join(f"{label} failed: {reason}" for label, reason in failed.items()))


def name_of(benchmark: str, options: "StreamOptions", network: str | None, hidden: tuple[int, ...] | None) -> str:
    """What the files of a table are called: all that tells its stream and its networks from others.

    >>> from vcl.benchmarks import StreamOptions
    >>> name_of("split-digits", StreamOptions(num_tasks=2, online=50, validation=0.1), None, (8, 8))
    'split-digits-2-tasks-online-50-8x8-validation-0.1'
    """
    parts = [
        benchmark,
        options.scenario,
        f"{options.num_tasks}-tasks" if options.num_tasks else None,
        "permute-first" if options.permute_first else None,
        f"online-{options.online}" if options.online else None,
        f"{options.examples}-examples" if options.examples else None,
        network,
        "x".join(map(str, hidden)) if hidden else None,
        f"validation-{options.validation}" if options.validation else None,
    ]
    return "-".join(part for part in parts if part)


def configured(
    benchmark: str,
    entries: list["Entry"],
    seeds: int,
    options: "StreamOptions",
    common: dict[str, Any],
    network: str | None,
) -> tuple[Configs, Refusals]:
    """The configurations of all methods, and why some are not defined for the network."""
    from vcl import runs

    def configure(entry: "Entry", seed: int, **settings: Any) -> "RunConfig":
        return runs.configure(
            benchmark,
            entry.method,
            recipe=entry.recipe,
            seed=seed,
            threads=1,
            stream=options,
            **{**common, **settings, **entry.settings},
        )

    configs: Configs = {}
    refused: Refusals = {}
    for entry in entries:
        try:
            for seed in range(seeds):
                configs[entry.label, seed] = configure(entry, seed, **({"network": network} if network else {}))
        except VclError as error:
            # Without the network it must be sound: other mistakes are the user's.
            configure(entry, 0)
            refused[entry.label] = str(error)
    return configs, refused


def spec_of(benchmark: str, options: "StreamOptions", data_dir: Path | None) -> "StreamSpec":
    """What the stream is like, the same for every seed."""
    from vcl.benchmarks import build

    return build(benchmark, options, 0, data_dir, say).spec


def undefined(configs: dict[str, "RunConfig"], spec: "StreamSpec") -> Refusals:
    """Why some methods cannot learn this stream, before anything is run."""
    from vcl.learning import template

    refused: Refusals = {}
    for label, config in configs.items():
        try:
            template(config.learner, spec)
        except VclError as error:
            refused[label] = str(error)
    return refused


def rows_of(
    configs: Configs, outcomes: dict[tuple[str, int], Any], spec: "StreamSpec"
) -> tuple[list["Row"], Refusals]:
    """A row for each method all of whose seeds are complete, and why the others failed."""
    from vcl.runs import comparison

    complete: dict[str, list[Any]] = {}
    failed = {}
    by_label: dict[str, list[Any]] = {}
    for label, seed in configs:
        by_label.setdefault(label, []).append(outcomes[label, seed])
    for label, found in by_label.items():
        failures = [outcome for outcome in found if isinstance(outcome, VclError)]
        if failures:
            failed[label] = str(failures[-1])
        else:
            complete[label] = found
    joint = [label for label in complete if configs[label, 0].method == "joint"]
    bound = "joint" if "joint" in joint else next(iter(joint), "")
    if len(joint) > 1:
        say(f"Intransigence is measured against {bound}, of {', '.join(joint)}.")
    rows = [
        comparison.row(label, found, spec, architecture(configs[label, 0].learner), complete.get(bound, []))
        for label, found in complete.items()
    ]
    return rows, failed


def architecture(learner: Any) -> "Network":
    """The network of a learner; the protocol of learners does not ask for one."""
    return learner.architecture


def present(rows: list["Row"], name: str, folder: Path, reference: str | None, *, as_json: bool) -> None:
    """Write the table and the plot as files, and show the table."""
    from vcl.files import write_atomically, writing
    from vcl.report.figures.accuracy import draw_comparison
    from vcl.runs import comparison

    if not rows:
        return
    ranked = comparison.best_first(rows)
    curves = [(row.label, row.curve) for row in ranked]
    text = comparison.as_markdown(rows)
    against = next((row for row in rows if row.label == reference), None)
    missing = reference and why_no_differences(rows, reference)
    differences = comparison.differences_as_markdown(rows, against) if against and not missing else ""
    files = {
        "md": (f"{text}\n{differences}" if differences else text).encode(),
        "csv": comparison.as_csv(rows).encode(),
        **{kind: draw_comparison(name, curves, kind) for kind in ("svg", "png")},
    }
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for kind, content in files.items():
            write_atomically(folder / f"{name}.{kind}", content)
    if as_json:
        print_json([as_json_row(row, against) for row in ranked])
    else:
        stdout().print(tabulate.comparison_table(comparison.cells(rows, comparison.SHOWN), name))
        if differences:
            stdout().print(differences, markup=False)
    if missing:
        say(missing)
    say(f"Tables and plot: {folder / name}.md, .csv, .svg, .png")


def why_no_differences(rows: list["Row"], reference: str) -> str | None:
    """Why there is no table of paired differences to a method, if there is none."""
    row = next((row for row in rows if row.label == reference), None)
    if row is None:
        return f"There are no paired differences to {reference}, since it is not in the table."
    if len(row.curve) < 2:
        return f"There are no paired differences to {reference}, which need at least two seeds: --seeds 2."
    if len(rows) < 2:
        return f"There are no paired differences to {reference}, since no other method is in the table."
    return None


def as_json_row(row: "Row", reference: "Row | None") -> dict[str, Any]:
    """A row with the values of all its seeds, and its paired differences to the reference."""
    from vcl.runs import comparison

    line: dict[str, Any] = {"method": row.label, "notes": row.notes, "curve": row.curve, **row.values}
    if reference is not None and row is not reference and (gaps := comparison.differences(row, reference)):
        line["difference"] = {"to": reference.label, **{name: gap._asdict() for name, gap in gaps.items()}}
    return line


def present_uncertainty(
    rows: list["Row"], configs: Configs, name: str, folder: Path, root: Path, data_dir: Path | None, *, as_json: bool
) -> None:
    """Measure the runs of all rows as `vcl uncertainty` does; write what was found, and show its table."""
    from json import dumps

    from vcl.analysis import uncertainty
    from vcl.cli.uncertainty import measured
    from vcl.files import write_atomically, writing
    from vcl.report.figures.drawing import saved
    from vcl.report.figures.uncertainty import draw_uncertainty
    from vcl.runs import StoredRun

    found = {}
    for label in (row.label for row in rows):
        stored = [StoredRun.open(root / config.name) for (of, _), config in configs.items() if of == label]
        found[label] = measured(stored, data_dir)
    everything = {label: uncertainty.as_json(reports) for label, reports in found.items()}
    figure = draw_uncertainty(f"Uncertainty: {name}", found)
    files = {
        "md": uncertainty.as_markdown(found).encode(),
        "json": dumps(everything, indent=1).encode(),
        **{kind: saved(figure, kind) for kind in ("svg", "png")},
    }
    with writing(folder):
        for kind, content in files.items():
            write_atomically(folder / f"{name}-uncertainty.{kind}", content)
    if not as_json:
        means = {label: uncertainty.averaged(reports) for label, reports in found.items()}
        stdout().print(tabulate.uncertainty_table(means, {label: len(reports) for label, reports in found.items()}))
    say(f"Uncertainty: {folder / name}-uncertainty.md, .json, .svg, .png")
