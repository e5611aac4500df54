"""The command line. It starts fast: whatever needs jax is imported by the command that needs it."""

import errno
import functools
import inspect
import json
import math
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn, get_args, get_origin, get_type_hints

from cyclopts import App, CycloptsError, Group, Parameter, Token
from rich.console import Console
from rich.table import Table

from vcl.errors import VclError

if TYPE_CHECKING:
    from vcl.analysis import Analysis
    from vcl.benchmarks import StreamOptions
    from vcl.comparison import Row
    from vcl.runs import RunConfig, Tracing
    from vcl.store import RunFolder

err = Console(stderr=True, highlight=False)

app = App(
    name="vcl",
    help=(
        "Variational continual learning: Bayesian networks that learn task after task without keeping old data.\n\n"
        "Begin with [bold]vcl run split-digits[/bold]: five tasks in a few seconds, nothing to download. "
        "Then [bold]vcl run split-mnist[/bold], the paper's first benchmark."
    ),
    help_format="rich",
    version_flags=["--version"],
    default_parameter=Parameter(negative=()),
)
data_app = App(name="data", help="List, fetch and verify the data sets.", help_format="rich")
app.command(data_app)

SETTINGS = Group("Settings of the method (default: the recipe's)", sort_key=2)
STREAM = Group("The stream of tasks", sort_key=1)

Out = Annotated[Path, Parameter(help="Folder that holds the run folders.")]
DataDir = Annotated[Path | None, Parameter(help="A folder of your own that holds the data files.")]
Benchmark = Annotated[str, Parameter(help="Which stream of tasks; `vcl benchmarks` lists them.")]
ScenarioFlag = Annotated[
    Literal["task", "domain", "class"] | None,
    Parameter(group=STREAM, help="A head for each task, one head shared, or one head over all classes."),
]
NumTasks = Annotated[int | None, Parameter(group=STREAM, help="How many tasks.")]
PermuteFirst = Annotated[bool, Parameter(group=STREAM, help="Permute the first task's pixels too.")]
Online = Annotated[int, Parameter(group=STREAM, help="Tasks arrive in batches of so many examples.")]
Validation = Annotated[
    float, Parameter(group=STREAM, help="Test on this fraction of the training data instead, to choose settings.")
]
Trace = Annotated[
    bool,
    Parameter(help="Record what each unit costs and is worth during training, of vcl: when and why units die."),
]
Tolerance = Annotated[
    float | None,
    Parameter(help="How far predictions may move without idle units (total variation); default 0.0002."),
]
CheckpointSeconds = Annotated[float, Parameter(help="Least time between checkpoints inside a task.")]
Json = Annotated[bool, Parameter(help="Print the result as JSON, and nothing else, on standard output.")]
Quiet = Annotated[bool, Parameter(help="No progress; only the result.")]


def main() -> None:
    """Run the command line; a user's mistake is told in a paragraph, with exit code 2."""
    tokens = sys.argv[1:]
    try:
        _register_run(tokens)
        app(tokens, exit_on_error=False, print_error=False, result_action="return_value")
        sys.stdout.flush()
    except VclError as error:
        _fail(str(error), 2)
    except CycloptsError as error:
        asked = ["vcl", *(t for t in tokens[:1] if t in app), "--help"]
        _fail(f"{str(error).rstrip('.')}. See `{' '.join(asked)}`.", 2)
    except KeyboardInterrupt:
        _fail("Stopped.", 130)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(141)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        # What is still in the buffer would fail again at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        _fail("Standard output could not be written: no space left on device. Runs are saved: `vcl show`.", 2)


def _fail(message: str, code: int) -> NoReturn:
    err.print(f"[bold red]vcl:[/bold red] {_escape(message)}", soft_wrap=True)
    sys.exit(code)


def _escape(text: str) -> str:
    from rich.markup import escape

    return escape(text)


# vcl run


def _run(
    benchmark: Benchmark,
    /,
    *,
    method: Annotated[str, Parameter(help="Which learner; `vcl methods` lists them.")] = "vcl",
    recipe: Annotated[str, Parameter(help="Named settings: fast, paper, or previous (VCL of 2018).")] = "fast",
    seed: Annotated[int, Parameter(help="The one source of randomness.")] = 0,
    seeds: Annotated[int, Parameter(help="Run so many seeds, 0, 1, …, and give mean ± standard deviation.")] = 1,
    jobs: Annotated[int, Parameter(help="Processes for several seeds, one core each (0: as many as cores).")] = 0,
    threads: Annotated[int, Parameter(help="Cores for a single run (0: all).")] = 0,
    scenario: ScenarioFlag = None,
    num_tasks: NumTasks = None,
    permute_first: PermuteFirst = False,
    online: Online = 0,
    validation: Validation = 0.0,
    out: Out = Path("runs"),
    data_dir: DataDir = None,
    fresh: Annotated[bool, Parameter(help="Run anew even if the same run is there; the old one is kept.")] = False,
    trace: Trace = False,
    checkpoint_seconds: CheckpointSeconds = 15.0,
    json: Json = False,
    quiet: Quiet = False,
    **settings: Any,
) -> None:
    """Learn a stream of tasks, one after the other, and see what is remembered.

    The same command continues an interrupted run, and shows a complete one again.
    """
    from vcl import runs
    from vcl.benchmarks import StreamOptions
    from vcl.sweep import run_all

    if seeds < 1 or jobs < 0 or threads < 0:
        raise VclError("--seeds must be at least 1, and --jobs and --threads must not be negative.")
    several = seeds > 1
    cores = runs.available_threads()
    configs = [
        runs.configure(
            benchmark,
            method,
            recipe=recipe,
            seed=seed + number,
            threads=threads or (1 if several else cores),
            stream=StreamOptions(scenario, num_tasks, permute_first, online, validation),
            **settings,
        )
        for number in range(seeds)
    ]
    tracing = _tracing(method) if trace else None
    root = runs.unused_root(out, configs[0]) if fresh else out
    if several:
        work_all = functools.partial(run_all, trace=tracing)
        jobs = jobs or min(cores, seeds)
        results = _run_several(configs, root, jobs, data_dir, checkpoint_seconds, quiet, work_all)
        _present_several(results, root, as_json=json)
    else:
        path = root / configs[0].name
        work = functools.partial(runs.run, configs[0], root, trace=tracing)
        _present(_watched(configs[0], path, work, data_dir, checkpoint_seconds, quiet), path, as_json=json)


def _tracing(method: str) -> "Tracing":
    from vcl.analysis.trace import tracer

    return tracer(method)


def _register_run(tokens: list[str]) -> None:
    """Give `vcl run` the chosen method's settings as flags, when it is `vcl run` that is asked for."""
    if tokens[:1] == ["run"]:
        from vcl.errors import choose
        from vcl.methods import METHODS

        method = next((b for a, b in zip(tokens, [*tokens[1:], ""], strict=True) if a == "--method"), "vcl")
        method = next((t.split("=", 1)[1] for t in tokens if t.startswith("--method=")), method)
        command = _with_settings(_run, METHODS[choose("method", method, METHODS)])
    else:
        command = _with_settings(_run, None)
    if "run" in app:
        del app["run"]
    app.command(command, name="run", sort_key=0)


def _with_settings(function: Callable[..., None], kind: type | None) -> Callable[..., None]:
    """`function` with a dataclass's fields as further keyword arguments; those not given are left out."""

    def command(*args: Any, **kwargs: Any) -> None:
        function(*args, **{name: value for name, value in kwargs.items() if value is not None})

    parameters = [p for p in inspect.signature(function).parameters.values() if p.kind is not p.VAR_KEYWORD]
    for name, hint in get_type_hints(kind, include_extras=True).items() if kind else ():
        if get_origin(hint) is Annotated:
            annotation, explanation = get_args(hint)
            flag = Parameter(help=f"{explanation[0].upper()}{explanation[1:]}.", group=SETTINGS)
            if get_origin(annotation) is tuple:
                flag = Parameter(help=flag.help, group=SETTINGS, n_tokens=1, converter=_widths)
            if annotation is int:
                flag = Parameter(help=flag.help, group=SETTINGS, converter=_whole)
            parameters.append(
                inspect.Parameter(
                    name,
                    inspect.Parameter.KEYWORD_ONLY,
                    default=None,
                    annotation=Annotated[annotation | None, flag],
                )
            )
    command.__doc__ = function.__doc__
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in parameters}
    return command


def _whole(type_: Any, tokens: tuple[Token, ...]) -> int:
    """A whole number; 2.5 epochs are a mistake, not 2."""
    try:
        return int(tokens[0].value)
    except ValueError:
        raise ValueError(f"{tokens[0].value!r} is not a whole number") from None


def _widths(type_: Any, tokens: tuple[Token, ...]) -> tuple[int, ...]:
    """`100,100`: the units of each hidden layer."""
    try:
        return tuple(int(part) for token in tokens for part in token.value.split(","))
    except ValueError:
        raise ValueError("write layer widths as whole numbers with commas between, such as 100,100") from None


def _watched(
    config: "RunConfig",
    path: Path,
    work: Callable[..., dict[str, Any]],
    data_dir: Path | None,
    checkpoint_seconds: float,
    quiet: bool,
) -> dict[str, Any]:
    """What `work`, of vcl.runs, makes of one run; Ctrl-C stops it between epochs."""
    from vcl import runs
    from vcl.experiment import Interrupted
    from vcl.progress import SingleRun, asked_to_stop

    runs.prepare_jax(config.threads)
    with SingleRun(err, config, quiet=quiet) as reporter, asked_to_stop() as stop:
        try:
            return work(
                reporter=reporter,
                stop=stop,
                data_dir=data_dir,
                seconds_between_checkpoints=checkpoint_seconds,
            )
        except Interrupted:
            message = f"Stopped; everything so far is saved. Go on with: vcl resume {path}"
    _fail(message, 130)


def _run_several(
    configs: list["RunConfig"],
    root: Path,
    jobs: int,
    data_dir: Path | None,
    checkpoint_seconds: float,
    quiet: bool,
    work: Callable[..., list[Any]],
) -> list[Any]:
    """What `work`, of vcl.sweep, makes of the runs."""
    from vcl.benchmarks import build
    from vcl.experiment import Interrupted
    from vcl.progress import SeveralRuns

    # Fetch the data and see whether the options fit before any process starts.
    build(configs[0].benchmark, configs[0].stream, configs[0].seed, data_dir)
    with SeveralRuns(err, configs, quiet=quiet) as board:
        try:
            return work(
                configs,
                root,
                jobs,
                watch=board.watch,
                data_dir=data_dir,
                seconds_between_checkpoints=checkpoint_seconds,
            )
        except (KeyboardInterrupt, Interrupted):
            message = "Stopped; everything so far is saved. The same command goes on from there."
    _fail(message, 130)


# vcl compare


@app.command(sort_key=1)
def compare(
    benchmark: Benchmark,
    /,
    *,
    methods: Annotated[
        str,
        Parameter(
            help="Names with commas between, or all. A name may bring settings: vcl,vcl:coreset=200:recipe=paper."
        ),
    ] = "all",
    seeds: Annotated[int, Parameter(help="Seeds 0, 1, … of each method.")] = 1,
    jobs: Annotated[int, Parameter(help="Processes, one core each (0: as many as cores).")] = 0,
    hidden: Annotated[
        tuple[int, ...] | None,
        Parameter(help="Units in each hidden layer, for all methods.", n_tokens=1, converter=_widths),
    ] = None,
    scenario: ScenarioFlag = None,
    num_tasks: NumTasks = None,
    permute_first: PermuteFirst = False,
    online: Online = 0,
    validation: Validation = 0.0,
    out: Out = Path("runs"),
    tables: Annotated[
        Path | None,
        Parameter(help="Folder for the table (.md, .csv) and the plot (.svg, .png); default OUT/compare."),
    ] = None,
    data_dir: DataDir = None,
    checkpoint_seconds: CheckpointSeconds = 15.0,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Run several methods on the same stream and put them side by side, best first.

    Only what is not in the store yet is run, and what was interrupted goes on. A method that is not defined for the
    stream, or that fails, is told of below the table; the others are not held up by it.
    """
    from vcl import comparison, runs, sweep
    from vcl.benchmarks import StreamOptions
    from vcl.store import RunFolder

    if seeds < 1 or jobs < 0:
        raise VclError("--seeds must be at least 1, and --jobs must not be negative.")
    options = StreamOptions(scenario, num_tasks, permute_first, online, validation)
    common = {"hidden": hidden} if hidden else {}
    asked = comparison.entries(methods)
    configs = {
        (entry.label, seed): runs.configure(
            benchmark,
            entry.method,
            recipe=entry.recipe,
            seed=seed,
            threads=1,
            stream=options,
            **common,
            **entry.settings,
        )
        for seed in range(seeds)
        for entry in asked
    }
    refused = _refusals({label: config for (label, seed), config in configs.items() if seed == 0}, data_dir)
    chosen = {place: config for place, config in configs.items() if place[0] not in refused}
    if not chosen:
        reasons = " ".join(f"{label}: {reason}" for label, reason in refused.items())
        raise VclError(f"None of these methods can learn this stream. {reasons}")
    outcomes = dict(
        zip(
            chosen,
            _run_several(
                list(chosen.values()),
                out,
                jobs or min(runs.available_threads(), max(1, len(chosen))),
                data_dir,
                checkpoint_seconds,
                quiet,
                sweep.attempt_all,
            ),
            strict=True,
        )
    )
    rows = []
    failed: dict[str, str] = {}
    for label in dict.fromkeys(label for label, _ in chosen):
        found = [outcomes[label, seed] for seed in range(seeds)]
        results = [outcome for outcome in found if isinstance(outcome, dict)]
        failed.update((label, str(outcome)) for outcome in found if isinstance(outcome, VclError))
        if len(results) == seeds:
            record = RunFolder.open(out / chosen[label, 0].name).record
            rows.append(comparison.row(label, results, record["spec"]))
    _present_comparison(rows, benchmark, options, hidden, tables or out / "compare", as_json=json)
    for label, reason in refused.items():
        err.print(f"[bold]{_escape(label)}[/bold] is not in the table: {_escape(reason)}", soft_wrap=True)
    if failed:
        _fail("\n".join(f"{label} failed: {reason}" for label, reason in failed.items()), 2)


def _refusals(configs: dict[str, "RunConfig"], data_dir: Path | None) -> dict[str, str]:
    """Why some methods cannot learn this stream, before anything is run."""
    import jax

    from vcl.benchmarks import build

    config = next(iter(configs.values()))
    spec = build(config.benchmark, config.stream, config.seed, data_dir, err.print).spec
    refused = {}
    for label, config in configs.items():
        try:
            jax.eval_shape(lambda learner=config.learner: learner.init(jax.random.key(0), spec))
        except VclError as error:
            refused[label] = str(error)
    return refused


def _present_comparison(
    rows: list["Row"],
    benchmark: str,
    options: "StreamOptions",
    hidden: tuple[int, ...] | None,
    folder: Path,
    *,
    as_json: bool,
) -> None:
    from vcl import comparison
    from vcl.files import write_atomically
    from vcl.report.figures import draw_comparison
    from vcl.store import writing

    if not rows:
        return
    parts = [benchmark, options.scenario, f"{options.num_tasks}-tasks" if options.num_tasks else None]
    parts += ["x".join(map(str, hidden)) if hidden else None, "validation" if options.validation else None]
    name = "-".join(part for part in parts if part)
    curves = [(row.label, row.curve) for row in comparison.best_first(rows)]
    files = {
        "md": comparison.as_markdown(rows).encode(),
        "csv": comparison.as_csv(rows).encode(),
        **{kind: draw_comparison(name, curves, kind) for kind in ("svg", "png")},
    }
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for kind, content in files.items():
            write_atomically(folder / f"{name}.{kind}", content)
    if as_json:
        _print_json(
            [
                {"method": r.label, "notes": r.notes, "curve": r.curve, **r.values}
                for r in comparison.best_first(rows)
            ]
        )
    else:
        head, *body = comparison.cells(rows)
        table = Table(*head, title=f"{name}: mean ± standard deviation over seeds", title_justify="left")
        for line in body:
            table.add_row(*map(_escape, line))
        out_console().print(table)
    err.print(f"Tables and plot: {_escape(str(folder / name))}.md, .csv, .svg, .png")


# Looking at runs


@app.command(sort_key=1)
def resume(
    run: Annotated[Path, Parameter(help="The run's folder.")],
    /,
    *,
    data_dir: DataDir = None,
    trace: Trace = False,
    checkpoint_seconds: CheckpointSeconds = 15.0,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Continue a run that was interrupted; the result is the same to the bit as without the interruption.

    A trace that was begun goes on, too.
    """
    from vcl import runs
    from vcl.store import RunFolder

    folder = RunFolder.open(run.resolve())
    config = runs.from_record(folder.record)
    tracing = _tracing(config.method) if trace or folder.looks() else None
    work = functools.partial(runs.resume, folder, trace=tracing)
    _present(_watched(config, run, work, data_dir, checkpoint_seconds, quiet), run, as_json=json)


@app.command(name="runs", sort_key=2)
def list_runs(*, out: Out = Path("runs"), json: bool = False) -> None:
    """List the runs in a folder: what they are, how far they are, what they found."""
    from vcl.store import RunFolder
    from vcl.store import runs as stored
    from vcl.sweep import standing

    rows = []
    for folder in stored(out):
        try:
            record, result, now = RunFolder.open(folder.path).record, folder.result, standing(folder.path)
        except VclError as error:
            err.print(f"Passed over: {_escape(str(error))}", soft_wrap=True)
            continue
        rows.append(
            {
                "run": folder.name,
                "benchmark": record["benchmark"],
                "method": record["method"],
                "recipe": record["config"]["recipe"],
                "seed": record["seed"],
                "average_accuracy": result["average_accuracy"] if result else None,
                "status": "complete" if result else f"stopped or running: stage {now.stage + 1} of {now.num_stages}",
            }
        )
    if json:
        return _print_json(rows)
    if not rows:
        return err.print(f"No runs in {_escape(str(out))} yet. Make one: vcl run split-digits")
    table = Table("run", "recipe", "seed", "average accuracy", "status", box=None)
    for row in rows:
        accuracy = f"{100 * row['average_accuracy']:.2f} %" if row["average_accuracy"] is not None else "–"
        table.add_row(row["run"], row["recipe"], str(row["seed"]), accuracy, row["status"])
    return out_console().print(table)


@app.command(sort_key=3)
def show(
    *runs: Annotated[Path, Parameter(help="Run folders; of several, mean and standard deviation are given.")],
    figure: Annotated[
        Path | None, Parameter(help="Draw accuracy after each task into this PNG, SVG or PDF file.")
    ] = None,
    json: bool = False,
) -> None:
    """Show what runs found: accuracies, calibration, what they are unsure of, and how they were made."""
    folders = _open(runs)
    results = [_complete(folder) for folder in folders]
    if figure:
        from vcl.report.figures import accuracy_figure

        accuracy_figure(results, figure)
        err.print(f"Figure: {_escape(str(figure))}")
    if len(results) > 1:
        return _present_several(results, folders[0].path.parent, as_json=json)
    _present(results[0], folders[0].path, as_json=json)
    if not json:
        record = folders[0].record
        out_console().print(
            f"\nMade by: {_escape(record['command'])}  (vcl {record['version']}, {record['created']})"
        )
        settings = ", ".join(f"{k}={v}" for k, v in record["config"]["learner"].items())
        out_console().print(f"Settings: {_escape(settings)}")
    return None


def _open(runs: tuple[Path, ...]) -> list["RunFolder"]:
    from vcl.store import RunFolder

    if not runs:
        raise VclError("Name at least one run folder. `vcl runs` lists them.")
    return [RunFolder.open(run) for run in runs]


@app.command(sort_key=4)
def report(
    *runs: Annotated[Path, Parameter(help="Run folders.")],
    out: Annotated[Path, Parameter(help="The HTML file to write.")] = Path("report.html"),
    open: Annotated[bool, Parameter(help="Show it in the browser.")] = False,
    data_dir: DataDir = None,
) -> None:
    """Write one HTML file about runs, which opens from disk: accuracies, transfer, and all units to look into.

    Units are shown of the methods that have a posterior over their weights; of the others, all the rest is.
    """
    from vcl.files import write_atomically
    from vcl.report.html import Reported, render
    from vcl.store import writing

    complete = [(folder, _complete(folder)) for folder in _open(runs)]
    page = render([Reported(folder.record, result, _inside(folder, data_dir)) for folder, result in complete])
    with writing(out):
        write_atomically(out, page.encode())
    err.print(f"Report: {_escape(str(out))}")
    if open:
        import webbrowser

        webbrowser.open(out.resolve().as_uri())


@app.command(sort_key=4)
def figures(
    *runs: Annotated[Path, Parameter(help="Run folders. Seeds of one configuration are averaged.")],
    out: Annotated[Path, Parameter(help="The folder to draw into.")] = Path("figures"),
    data_dir: DataDir = None,
) -> None:
    """Draw the paper's figures from stored runs, each as SVG and PNG.

    For each stream of tasks: accuracy curves, a line for each configuration (`vcl run split-mnist --coreset 40` and
    the same without give the paper's appendix). For each configuration: active units after each task. For each run
    of vcl and joint-vcl: its active units, all units' means and variances, output weights, transfer between tasks;
    and, of runs made with `--trace`, what each unit cost and was worth while it was learnt.

    Example: [bold]vcl figures runs/split-mnist-vcl-*[/bold]
    """
    from vcl.report import gallery

    folders = _open(runs)

    def look(folder: "RunFolder") -> "Analysis":
        return _analysed(folder, data_dir)

    def say(message: str) -> None:
        err.print(_escape(message), soft_wrap=True)

    for path in gallery.figures(folders, out, look=look, say=say):
        out_console().print(_escape(str(path)))


def _inside(folder: "RunFolder", data_dir: Path | None) -> "Analysis | str":
    """What the units of a run tell, or why they cannot be asked."""
    try:
        return _analysed(folder, data_dir)
    except VclError as error:
        err.print(f"{_escape(folder.name)} is reported without its units: {_escape(str(error))}", soft_wrap=True)
        return str(error)


@app.command(sort_key=4)
def units(
    run: Annotated[Path, Parameter(help="The run's folder.")],
    /,
    *,
    tolerance: Tolerance = None,
    data_dir: DataDir = None,
    json: Json = False,
) -> None:
    """Count the active units after each task, and see what passes between tasks through them.

    Pruned are units without an outgoing weight that differs from zero by more than its standard deviation, and
    those whose removal, all together, moves no task's predictions further than the tolerance. The others are
    active. --json adds every measure of every unit.
    """
    import numpy as np

    from vcl import analysis
    from vcl.analysis.stored import stream_of
    from vcl.store import RunFolder

    folder = RunFolder.open(run)
    found = _analysed(folder, data_dir, tolerance)
    accuracy = analysis.accuracy_without_pruned(found, stream_of(folder, data_dir))
    use, change = analysis.forward_use(found), analysis.backward_change(found)
    if json:
        measures = ("information", "news", "signal_to_noise", "removal_effect", "active", "first_active")
        return _print_json(
            {
                "run": folder.name,
                "active_units": found.counts.T.tolist(),
                "change_without_pruned": found.change_without_pruned.tolist(),
                "accuracy": accuracy[:, 0].tolist(),
                "accuracy_without_pruned": accuracy[:, 1].tolist(),
                "forward_use": _without_nan(use),
                "backward_change": _without_nan(change),
                "layers": [{name: getattr(layer, name).tolist() for name in measures} for layer in found.layers],
            }
        )
    table = Table(
        "after task",
        *(f"layer {n}: active of {layer.active.shape[1]}" for n, layer in enumerate(found.layers, start=1)),
        "without the others, predictions move by",
        "accuracy (%)",
        "without the others (%)",
        box=None,
    )
    for number, counts in enumerate(found.counts.T):
        table.add_row(
            str(number + 1),
            *map(str, counts),
            f"{found.change_without_pruned[number]:.4f}",
            *(f"{100 * a:.2f}" for a in accuracy[number]),
        )
    out_console().print(table)
    for title, matrix, form in (
        ("How far predictions for a task move without the units first activated by …", use, "{:.3f}"),
        ("What a task told each unit first activated by … (nats)", change, "{:.1f}"),
    ):
        table = Table("units of task", *(f"task {n}" for n in range(1, len(matrix) + 1)), box=None, title=title)
        for number, row in enumerate(matrix, start=1):
            table.add_row(str(number), *("" if np.isnan(v) else form.format(v) for v in row))
        out_console().print("\n", table)
    return None


def _without_nan(matrix: Any) -> list[list[float | None]]:
    """JSON has no NaN: null where nothing is defined."""
    return [[None if math.isnan(value) else value for value in row] for row in matrix.tolist()]


def _analysed(folder: "RunFolder", data_dir: Path | None, tolerance: float | None = None) -> "Analysis":
    """What the units of a run tell, with progress."""
    from vcl import runs
    from vcl.analysis import analyse
    from vcl.progress import Board

    runs.prepare_jax(runs.available_threads())
    with Board(err, [folder.name], quiet=False) as board:
        settings = {} if tolerance is None else {"tolerance": tolerance}
        return analyse(
            folder, data_dir=data_dir, **settings, watch=lambda fraction, text: board.show(0, fraction, text)
        )


def _complete(folder: "RunFolder") -> dict[str, Any]:
    """The result of a run that must have one."""
    if folder.result is None:
        raise VclError(f"The run in {folder.path} is not complete. Continue it with: vcl resume {folder.path}")
    return folder.result


After = Annotated[
    int | None, Parameter(help="The stage to take it after, from 1: as many as tasks, unless batches are smaller.")
]


@app.command(sort_key=4)
def prune(
    run: Annotated[Path, Parameter(help="The run's folder.")],
    /,
    *,
    out: Annotated[Path | None, Parameter(help="The folder to write; default: RUN-pruned, beside it.")] = None,
    after: After = None,
    tolerance: Tolerance = None,
    data_dir: DataDir = None,
    json: Json = False,
) -> None:
    """Remove the units that are not active: a smaller network that predicts the same.

    The result is a run folder of its own: `vcl predict` answers from it, and `vcl resume` goes on learning with it.
    `vcl widen` gives it room for further tasks.
    """
    from vcl import analysis, runs
    from vcl.progress import Board
    from vcl.store import RunFolder

    folder = RunFolder.open(run.resolve())
    runs.prepare_jax(folder.record["config"]["threads"])
    settings = {} if tolerance is None else {"tolerance": tolerance}
    with Board(err, [folder.name], quiet=json) as board:
        pruning = analysis.prune(
            folder,
            out or run.resolve().with_name(f"{folder.name}-pruned"),
            after=after,
            data_dir=data_dir,
            watch=lambda fraction, text: board.show(0, fraction, text),
            **settings,
        )
    if json:
        return _print_json(pruning.as_json())
    before, now = pruning.before, pruning.after
    table = Table("", "before", "after", "", box=None)
    units = [", ".join(map(str, network.hidden)) for network in (before, now)]
    table.add_row("units", *units, "")
    for name, values, form in (
        ("parameters", (before.parameters, now.parameters), "{:,}"),
        ("checkpoint (bytes)", (before.checkpoint_bytes, now.checkpoint_bytes), "{:,}"),
        ("prediction (ms)", (1e3 * before.predict_seconds, 1e3 * now.predict_seconds), "{:.1f}"),
    ):
        table.add_row(name, *map(form.format, values), f"{values[0] / values[1]:.1f} times less")
    tasks = zip(before.accuracy, now.accuracy, pruning.total_variation, pruning.noise, strict=True)
    for number, (old, new, moved, noise) in enumerate(tasks, start=1):
        distance = f"predictions moved by {moved:.4f} (noise alone: {noise:.4f})"
        table.add_row(f"accuracy on task {number} (%)", f"{100 * old:.2f}", f"{100 * new:.2f}", distance)
    averages = [sum(network.accuracy) / len(network.accuracy) for network in (before, now)]
    gone = 100 * (1 - now.parameters / before.parameters)
    table.add_row(
        "accuracy, average (%)", *(f"{100 * a:.2f}" for a in averages), f"{gone:.1f} % of the parameters are gone"
    )
    out_console().print(table)
    err.print(f"The smaller network: {_escape(str(pruning.run))}", soft_wrap=True)
    return None


@app.command(sort_key=4)
def widen(
    run: Annotated[Path, Parameter(help="The run's folder.")],
    /,
    *,
    hidden: Annotated[
        tuple[int, ...], Parameter(help="Units in each layer, 100,100.", n_tokens=1, converter=_widths)
    ],
    out: Annotated[Path | None, Parameter(help="The folder to write; default: RUN-widened, beside it.")] = None,
    after: After = None,
) -> None:
    """Add fresh units to the hidden layers without changing predictions: room for further tasks.

    The result is a run folder of its own; `vcl resume` goes on learning with it.
    """
    from vcl import analysis, runs
    from vcl.store import RunFolder

    folder = RunFolder.open(run.resolve())
    runs.prepare_jax(folder.record["config"]["threads"])
    wider = analysis.widen(folder, out or run.resolve().with_name(f"{folder.name}-widened"), hidden, after=after)
    err.print(f"The wider network: {_escape(str(wider.path))}", soft_wrap=True)


@app.command(sort_key=5)
def predict(
    run: Annotated[Path, Parameter(help="The run's folder.")],
    /,
    *,
    input: Annotated[Path, Parameter(help="A .npy file with images, one per row.")],
    task: Annotated[int | None, Parameter(help="Which task they belong to, from 1, where each has a head.")] = None,
    output: Annotated[Path | None, Parameter(help="Write the predictions to this .npz file.")] = None,
    json: Annotated[bool, Parameter(help="Print the predictions as JSON.")] = False,
) -> None:
    """Predict new images: the probability of each class, and how unsure the network is, and why.

    Entropies are in nats. Total = aleatoric (noise that more data would not remove) + epistemic (what the network
    has not learnt).
    """
    from zipfile import BadZipFile

    import numpy as np

    from vcl import runs
    from vcl.store import RunFolder, writing

    folder = RunFolder.open(run)
    try:
        inputs = np.load(input, allow_pickle=False)
    except (OSError, ValueError, EOFError, BadZipFile) as error:
        raise VclError(
            f"{input} could not be read as a .npy file: {error}. Save the images with numpy.save."
        ) from None
    if not isinstance(inputs, np.ndarray):
        raise VclError(f"{input} holds several arrays. Save the one with the images with numpy.save.")
    runs.prepare_jax(folder.record["config"]["threads"])
    prediction = runs.predict(folder, inputs, task=task)
    columns: dict[str, Any] = {
        "class": prediction.classes,
        "probabilities": prediction.probabilities,
        "total_entropy": prediction.total_entropy,
        "aleatoric_entropy": prediction.aleatoric_entropy,
        "epistemic_entropy": prediction.epistemic_entropy,
    }
    if output:
        # Handed a name, savez would add .npz to it.
        with writing(output), output.open("wb") as file:
            np.savez(file, allow_pickle=False, **columns)
        err.print(f"Predictions for {len(inputs)} images: {_escape(str(output))}")
    if json:
        _print_json([{k: v[i].tolist() for k, v in columns.items()} for i in range(len(inputs))])
    elif not output:
        table = Table("image", "class", "probability", "total entropy", "aleatoric", "epistemic", box=None)
        for i in range(len(inputs)):
            entropies = (columns[f"{kind}_entropy"][i] for kind in ("total", "aleatoric", "epistemic"))
            best = prediction.probabilities[i].max()
            table.add_row(str(i), str(prediction.classes[i]), f"{best:.4f}", *(f"{e:.4f}" for e in entropies))
        out_console().print(table)


@app.command(sort_key=6)
def methods() -> None:
    """List the methods."""
    from vcl.methods import METHODS

    _print_names({name: inspect.getdoc(kind) or "" for name, kind in METHODS.items()})


@app.command(sort_key=7)
def benchmarks() -> None:
    """List the benchmarks."""
    from vcl.benchmarks import STREAMS

    _print_names({name: benchmark.summary for name, benchmark in STREAMS.items()})


# Data sets


@data_app.command(name="list")
def data_list() -> None:
    """List the data sets and where they are."""
    from vcl.data import overview

    table = Table("data set", "what", "here", "where", box=None)
    for row in overview():
        table.add_row(row.name, row.description, "yes" if row.present else "no", row.where)
    out_console().print(table)


@data_app.command
def fetch(name: Annotated[str, Parameter(help="Which data set.")], /, *, data_dir: DataDir = None) -> None:
    """Bring a data set into the cache, from the first source that has it."""
    from vcl import data

    out_console().print(f"{name}: {_escape(data.fetch(name, data_dir))}")


@data_app.command
def verify(
    name: Annotated[str | None, Parameter(help="Which (default: all).")] = None, /, *, data_dir: DataDir = None
) -> None:
    """Compare the files with the known SHA-256 of each; exit code 2 if one was altered."""
    from vcl import data
    from vcl.errors import choose

    names = [choose("data set", name, data.DATASETS)] if name else list(data.DATASETS)
    rows = [(n, status) for n in names for status in data.verify(n, data_dir)]
    table = Table("data set", "file", "status", box=None)
    for n, status in rows:
        table.add_row(n, str(status.path), status.status)
    out_console().print(table)
    if altered := [str(s.path) for _, s in rows if s.status.startswith("altered")]:
        raise VclError(f"Altered: {', '.join(altered)}. Remove it; `vcl data fetch` brings the right one.")


# Presenting


def out_console() -> Console:
    """Standard output as it is now: tests and pipes may have replaced it."""
    # Without a terminal nothing is folded to its width: names stay whole for whatever reads them.
    piped = not sys.stdout.isatty()
    return Console(highlight=False, soft_wrap=piped, width=10_000 if piped else None)


def _print_json(value: Any) -> None:
    json.dump(value, sys.stdout, indent=2)
    sys.stdout.write("\n")


def _print_names(rows: dict[str, str]) -> None:
    table = Table(box=None, show_header=False)
    for name, summary in rows.items():
        table.add_row(f"[bold]{name}[/bold]", _escape(summary))
    out_console().print(table)


def _present(result: dict[str, Any], path: Path, *, as_json: bool) -> None:
    if as_json:
        return _print_json(result)
    names, matrix = result["task_names"], result["accuracy_matrix"]
    console = out_console()
    table = Table(title=f"Accuracy (%) on {result['benchmark']} with {result['method']}", title_justify="left")
    table.add_column("after task")
    for number, name in enumerate(names, start=1):
        table.add_column(f"{number}: {name}", justify="right")
    table.add_column("average", justify="right", style="bold")
    for number, row in enumerate(matrix, start=1):
        seen = [a for a in row if a is not None]
        cells = [f"{100 * a:.2f}" if a is not None else "" for a in row]
        table.add_row(str(number), *cells, f"{100 * sum(seen) / len(seen):.2f}")
    for label, key, scale in (
        ("log-likelihood", "log_likelihood", 1.0),
        ("calibration error", "calibration_error", 100.0),
        ("entropy, total", "total_entropy", 1.0),
        ("entropy, aleatoric", "aleatoric_entropy", 1.0),
    ):
        values = [scale * s[key] for s in result["scores"][-1]]
        table.add_row(label, *(f"{v:.3f}" for v in values), f"{sum(values) / len(values):.3f}")
    table.rows[len(matrix) - 1].end_section = True
    console.print(table)
    console.print(
        f"[bold]Average accuracy {100 * result['average_accuracy']:.2f} %[/bold], forgetting "
        f"{100 * result['forgetting']:.2f}, backward transfer {100 * result['backward_transfer']:+.2f}, "
        f"forward transfer {100 * result['forward_transfer']:+.2f} points; "
        f"{result['steps']} steps in {result['train_seconds']:.0f} s."
    )
    console.print(f"Run folder: {_escape(str(path))}")


def _present_several(results: list[dict[str, Any]], root: Path, *, as_json: bool) -> None:
    import numpy as np

    keys = ("average_accuracy", "forgetting", "backward_transfer", "forward_transfer", "train_seconds")
    columns = {key: np.array([r[key] for r in results]) for key in keys}
    mean = {key: float(column.mean()) for key, column in columns.items()}
    std = {key: float(column.std(ddof=1)) for key, column in columns.items()}
    if as_json:
        return _print_json({"mean": mean, "standard_deviation": std, "runs": results})
    table = Table("seed", "average accuracy", "forgetting", "backward transfer", "seconds", "run")
    for r in results:
        points = (f"{100 * r[key]:.2f}" for key in keys[:3])
        table.add_row(str(r["seed"]), *points, f"{r['train_seconds']:.0f}", r["run"])
    console = out_console()
    console.print(table)
    console.print(
        f"[bold]Average accuracy {100 * mean['average_accuracy']:.2f} ± "
        f"{100 * std['average_accuracy']:.2f} %[/bold] (mean ± standard deviation over {len(results)} seeds), "
        f"forgetting {100 * mean['forgetting']:.2f} ± {100 * std['forgetting']:.2f} points. "
        f"Runs: {_escape(str(root))}"
    )
