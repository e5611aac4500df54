"""Commands that read stored runs: runs, show, report, figures, units, predict."""

import io
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from vcl.cli import tables
from vcl.cli.console import out as stdout
from vcl.cli.console import print_json, say
from vcl.cli.console import show as show_text
from vcl.cli.learn import predict_model, report_model, show_model
from vcl.cli.options import DataDir, Json, Out, Tolerance, shown
from vcl.cli.run import present, present_several
from vcl.cli.watch import analysed, measuring
from vcl.errors import VclError

if TYPE_CHECKING:
    import numpy as np

    from vcl.analysis import Analysis, Forgetting
    from vcl.analysis.uncertainty import Detection
    from vcl.report.page.trust import Answers
    from vcl.runs import StoredRun
    from vcl.runs.folder import RunFolder

RunPaths = Annotated[Path, Parameter(help="Run folders.")]


def list_runs(out: Out = Path("runs"), *, json: Json = False) -> None:
    """List the runs in a folder, with their progress and accuracy."""
    from vcl.runs import StoredRun
    from vcl.runs.folder import stored_runs
    from vcl.runs.status import run_status

    rows = []
    for place in stored_runs(out):
        try:
            record, status = StoredRun.open(place.path).record, run_status(place.path)
            result = place.result
        except VclError as error:
            say(f"Skipped: {error}")
            continue
        rows.append(
            {
                "run": place.name,
                "benchmark": record["benchmark"],
                "method": record["method"],
                "recipe": record["config"]["recipe"],
                "seed": record["seed"],
                "average_accuracy": result["average_accuracy"] if result else None,
                "status": "complete" if result else f"stopped or running: {status.place}",
            }
        )
    if json:
        return print_json(rows)
    if not rows:
        return say(f"No runs in {out} yet. Start one with: vcl run split-digits")
    return stdout().print(tables.runs_table(rows))


def show(
    *runs: Annotated[
        Path, Parameter(help="Run folders; several must be seeds of one configuration. Or one model's file.")
    ],
    figure: Annotated[
        Path | None, Parameter(help="Plot the accuracy after each task to this PNG, SVG or PDF file.")
    ] = None,
    json: Json = False,
) -> None:
    """Show the results of runs: accuracy, forgetting, calibration, uncertainty, and the settings.

    For several seeds of one configuration, mean and standard deviation are given. For a model that `vcl learn`
    wrote: what it has learnt, when, from how many examples, and how well it did before and after each batch.
    """
    if model := the_model(runs):
        return show_model(model, as_json=json)
    stored = opened(runs)
    results = [run.result for run in stored]
    check_seeds(stored)
    if figure:
        from vcl.report.figures.accuracy import accuracy_figure

        accuracy_figure(results, figure)
        say(f"Figure: {figure}")
    if len(results) > 1:
        return present_several(results, stored[0].path.parent, as_json=json)
    present(results[0], stored[0].path, as_json=json)
    return None if json else stdout().print(tables.origin(stored[0].record))


def the_model(paths: tuple[Path, ...]) -> Path | None:
    """The model's file, where the user names one instead of run folders."""
    files = [path for path in paths if path.is_file()]
    if files and len(paths) > 1:
        raise VclError(f"{files[0]} is a file: models are shown one by one. Name it alone.")
    return files[0] if files else None


def opened(runs: tuple[Path, ...]) -> list["StoredRun"]:
    """The runs that the user names, at least one."""
    from vcl.runs import StoredRun

    if not runs:
        raise VclError("Name at least one run folder. `vcl runs` lists them.")
    return [StoredRun.open(run) for run in runs]


def check_seeds(runs: list["StoredRun"]) -> None:
    """Refuse to average what is not the same but for the seed."""
    if found := tables.differences([run.record for run in runs]):
        settings = "; ".join(f"{name}: {', '.join(map(written, values))}" for name, values in found.items())
        raise VclError(
            "These runs differ in more than the seed, so an average would have no meaning. They differ in "
            f"{settings}. To see them side by side: vcl report or vcl figures."
        )
    seeds = [run.record["seed"] for run in runs]
    if twice := [seed for seed in seeds if seeds.count(seed) > 1]:
        raise VclError(
            f"Two of these runs have seed {twice[0]}. A standard deviation over seeds needs different ones."
        )


def written(value: Any) -> str:
    """A setting from JSON as one would write it on the command line."""
    return "–" if value is None else shown(tuple(value)) if isinstance(value, list) else shown(value)


def report(
    *runs: Annotated[Path, Parameter(help="Run folders, or one model's file.")],
    out: Annotated[Path, Parameter(help="HTML file to write.")] = Path("report.html"),
    open: Annotated[bool, Parameter(help="Open it in the browser.")] = False,
    data_dir: DataDir = None,
) -> None:
    """Write a self-contained HTML report about runs: accuracy, losses, calibration, and an explorer of all units.

    Several runs are also compared: configurations that share two seeds by paired differences, with 95 % intervals.
    The units are shown for methods with a posterior over the weights of one network (vcl, joint-vcl, gvcl without
    FiLM layers, kronecker-vcl, kronecker-vcl-recall). For a model that `vcl learn` wrote: its log, its calibration,
    and what rejecting unsure answers costs.
    """
    if model := the_model(runs):
        report_model(model, out)
        return open_page(out) if open else None
    return report_runs(runs, out, data_dir, open)


def report_runs(runs: tuple[Path, ...], out: Path, data_dir: Path | None, show: bool) -> None:
    from vcl.files import write_output, writing
    from vcl.report.page.html import Reported, render

    complete = [(run, run.result) for run in opened(runs)]
    page = render(
        [
            Reported(run.record, result, units_or_reason(run, data_dir), losses(run), *trust(run, data_dir))
            for run, result in complete
        ]
    )
    with writing(out):
        write_output(out, page.encode())
    say(f"Report: {out}")
    if show:
        open_page(out)


def open_page(path: Path) -> None:
    import webbrowser

    webbrowser.open(path.resolve().as_uri())


def units_or_reason(run: "StoredRun", data_dir: Path | None) -> "Analysis | str":
    """The analysis of a run's units, or why there is none."""
    try:
        return analysed(run, data_dir)
    except VclError as error:
        say(f"{run.name} is reported without its units: {error}")
        return str(error)


def losses(run: "StoredRun") -> list[tuple[int, str, list[float]]]:
    """The objective after each epoch, by stage and phase, in the order in which they were learnt."""
    found: dict[tuple[int, str], list[float]] = {}
    for event in run.folder.events():
        if event["event"] == "objective":
            found.setdefault((event["stage"], event["phase"]), []).extend(event["objectives"])
    return [(stage, phase, values) for (stage, phase), values in found.items()]


def trust(run: "StoredRun", data_dir: Path | None) -> "tuple[list[Answers], Mapping[str, Detection], str | None]":
    """Answers to each task's test data, the detection of inputs from outside, and the data set missing for it.

    Nothing where the data or a checkpoint is missing.
    """
    from vcl.analysis import uncertainty
    from vcl.report.page.trust import Answers

    try:
        found = uncertainty.trust(run, data_dir)
    except VclError as error:
        say(f"{run.name} is reported without reliability, risk and inputs from outside: {error}")
        return [], {}, None
    tasks = zip(run.record["task_names"], found.answers, strict=True)
    return [Answers(name, *one) for name, one in tasks], found.outside, found.absent


def figures(
    *runs: Annotated[Path, Parameter(help="Run folders. Seeds of one configuration are averaged.")],
    out: Annotated[Path, Parameter(help="Folder to write to.")] = Path("figures"),
    tolerance: Tolerance = None,
    data_dir: DataDir = None,
) -> None:
    """Draw the paper's figures from stored runs, each as SVG and PNG.

    For each stream of tasks: accuracy curves, one line per configuration (`vcl run split-mnist --coreset 40` and the
    same without give the paper's appendix). For each configuration: the number of active units after each task. For
    each run of vcl, joint-vcl, gvcl without FiLM layers, kronecker-vcl and kronecker-vcl-recall: its active units,
    the means and variances of all units, output weights, and transfer between tasks; for runs made with `--trace`
    also the cost and the benefit of each unit during training.

    Example: [bold]vcl figures runs/split-mnist-vcl-*[/bold]
    """
    from vcl.analysis.stored import check_tolerance
    from vcl.report.figures import gallery
    from vcl.runs import StoredRun

    if tolerance is not None:
        check_tolerance(tolerance)

    def analyse(folder: "RunFolder") -> "Analysis":
        return analysed(StoredRun(folder), data_dir, tolerance)

    for path in gallery.figures([run.folder for run in opened(runs)], out, analysed=analyse, say=say):
        show_text(str(path))


def units(*runs: RunPaths, tolerance: Tolerance = None, data_dir: DataDir = None, json: Json = False) -> None:
    """Count the active units after each task, and measure what is transferred between tasks through them.

    A unit is inactive if none of its outgoing weights differs from zero by more than its standard deviation, or if
    it is among those that can be removed together without changing any task's predictions by more than the
    tolerance. All others are active. The last table tells why earlier tasks were forgotten: because of units that
    later tasks activated, or because of weights that have changed. --json adds every measure of every unit.
    """
    from vcl import analysis

    documents = []
    for number, run in enumerate(stored := opened(runs)):
        found, stream = analysed(run, data_dir, tolerance), run.stream(data_dir)
        with measuring(run) as watch:
            accuracy = analysis.accuracy_without_pruned(found, stream, watch)
            forgotten = analysis.forgetting(found, stream, watch)
        use, change = analysis.forward_use(found), analysis.backward_change(found)
        if json:
            documents.append(units_json(run.name, found, accuracy, use, change, forgotten))
            continue
        title = run.name if len(stored) > 1 else None
        printed = [
            tables.units_table(found, accuracy, title),
            tables.transfer_table(
                "Change of predictions for a task without the units first activated by …", use, "{:.3f}"
            ),
            tables.transfer_table(
                "Information gained from a task by each unit first activated by … (nats)", change, "{:.1f}"
            ),
            tables.forgetting_table(forgotten),
        ]
        for place, table in enumerate(printed):
            stdout().print(*(["\n"] if number or place else []), table)
    if json:
        print_json(documents if len(documents) > 1 else documents[0])


def units_json(
    name: str,
    found: "Analysis",
    accuracy: "np.ndarray",
    use: "np.ndarray",
    change: "np.ndarray",
    forgotten: "Forgetting",
) -> dict[str, Any]:
    """Every measure of every unit; null where nothing is defined, since JSON has no NaN."""
    from dataclasses import fields

    def without_nan(matrix: "np.ndarray") -> list[list[float | None]]:
        return [[None if value != value else value for value in row] for row in matrix.tolist()]  # noqa: PLR0124

    measures = [field.name for field in fields(found.layers[0])]
    return {
        "run": name,
        "active_units": found.counts.T.tolist(),
        "change_without_pruned": found.change_without_pruned.tolist(),
        "accuracy": accuracy[:, 0].tolist(),
        "accuracy_without_pruned": accuracy[:, 1].tolist(),
        "forward_use": without_nan(use),
        "backward_change": without_nan(change),
        "forgetting": {cause: without_nan(matrix) for cause, matrix in forgotten._asdict().items()},
        "layers": [
            {measure: getattr(layer, measure).tolist() for measure in (*measures, "first_active")}
            for layer in found.layers
        ],
    }


def predict(
    model: Annotated[Path, Parameter(help="A model's file, or a run's folder.")],
    file: Annotated[Path | None, Parameter(help="For a model: CSV, Parquet, .npz, .npy, or images.")] = None,
    /,
    *,
    input: Annotated[Path | None, Parameter(help="For a run: a .npy file with images, one per row.")] = None,
    task: Annotated[
        str | None,
        Parameter(
            help="Task that the examples belong to, needed if each has a head: its name, or for runs its number, "
            "counted from 1."
        ),
    ] = None,
    reject: Annotated[
        float | None,
        Parameter(help='For a model: say "don\'t know" so that about this part of answers is wrong.'),
    ] = None,
    coverage: Annotated[
        float | None,
        Parameter(help="For a model: also give the set of classes that holds the truth this often."),
    ] = None,
    output: Annotated[Path | None, Parameter(help="Write to this .npz file; for a model also .csv.")] = None,
    json: Annotated[bool, Parameter(help="Print the predictions as JSON.")] = False,
) -> None:
    """Predict new examples: class probabilities, with aleatoric and epistemic uncertainty.

    Entropies are in nats: total = aleatoric (noise that more data would not remove) + epistemic (what the network
    has not learnt).
    """
    if not model.exists():
        raise VclError(f"There is no model or run {model}. `vcl learn {model} FILE` makes a model, `vcl run` a run.")
    if model.is_file():
        if file is None or input:
            raise VclError(f"Name the file to predict after the model: vcl predict {model} FILE.")
        return predict_model(model, file, task=task, output=output, json=json, reject=reject, coverage=coverage)
    if file or input is None or reject is not None or coverage is not None:
        raise VclError(
            f"{model} is not a model's file. For a run: vcl predict RUN --input images.npy. --reject and --coverage "
            "are for models that `vcl learn` wrote."
        )
    if task is not None and not task.isdecimal():
        raise VclError(f"Tasks of a run are counted from 1, but --task is {task!r}, not a whole number.")
    return predict_run(model, input, int(task) if task else None, output, json)


def predict_run(run: Path, input: Path, task: int | None, output: Path | None, json: bool) -> None:
    import numpy as np

    from vcl import runs
    from vcl.files import write_output, writing
    from vcl.inputs import read_npy

    stored = runs.StoredRun.open(run)
    inputs = read_npy(input)
    runs.prepare_jax(stored.record["config"]["threads"])
    prediction = stored.predict(inputs, task=task)
    columns: dict[str, Any] = {
        "class": prediction.classes,
        "probabilities": prediction.probabilities,
        "total_entropy": prediction.total_entropy,
        "aleatoric_entropy": prediction.aleatoric_entropy,
        "epistemic_entropy": prediction.epistemic_entropy,
    }
    if output:
        packed = io.BytesIO()
        np.savez(packed, allow_pickle=False, **columns)
        with writing(output):
            write_output(output, packed.getvalue())
        say(f"Predictions for {len(inputs)} images: {output}")
    if json:
        print_json([{k: v[i].tolist() for k, v in columns.items()} for i in range(len(inputs))])
    elif not output:
        stdout().print(tables.predictions_table(prediction))
