"""Commands that read stored runs: runs, show, report, figures, units, predict."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from vcl.cli import tables
from vcl.cli.console import out as stdout
from vcl.cli.console import print_json, say
from vcl.cli.options import DataDir, Json, Out, RunPath, Tolerance, shown, whole
from vcl.cli.run import present, present_several
from vcl.cli.watch import analysed
from vcl.errors import VclError

if TYPE_CHECKING:
    import numpy as np

    from vcl.analysis import Analysis
    from vcl.runs import StoredRun
    from vcl.runs.folder import RunFolder

RunPaths = Annotated[Path, Parameter(help="Run folders.")]


def list_runs(out: Out = Path("runs"), *, json: Json = False) -> None:
    """List the runs in a folder, with their progress and accuracy."""
    from vcl.runs import StoredRun
    from vcl.runs.folder import stored_runs
    from vcl.runs.sweep import run_status

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
    *runs: Annotated[Path, Parameter(help="Run folders; several must be seeds of one configuration.")],
    figure: Annotated[
        Path | None, Parameter(help="Plot the accuracy after each task to this PNG, SVG or PDF file.")
    ] = None,
    json: Json = False,
) -> None:
    """Show the results of runs: accuracy, forgetting, calibration, uncertainty, and the settings.

    For several seeds of one configuration, mean and standard deviation are given.
    """
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
    *runs: RunPaths,
    out: Annotated[Path, Parameter(help="HTML file to write.")] = Path("report.html"),
    open: Annotated[bool, Parameter(help="Open it in the browser.")] = False,
    data_dir: DataDir = None,
) -> None:
    """Write a self-contained HTML report about runs: accuracy, transfer, and an explorer of all units.

    The units are shown for methods with a posterior over their weights (vcl, joint-vcl).
    """
    from vcl.files import write_atomically, writing
    from vcl.report.page.html import Reported, render

    complete = [(run, run.result) for run in opened(runs)]
    page = render([Reported(run.record, result, units_or_reason(run, data_dir)) for run, result in complete])
    with writing(out):
        write_atomically(out, page.encode())
    say(f"Report: {out}")
    if open:
        import webbrowser

        webbrowser.open(out.resolve().as_uri())


def units_or_reason(run: "StoredRun", data_dir: Path | None) -> "Analysis | str":
    """The analysis of a run's units, or why there is none."""
    try:
        return analysed(run, data_dir)
    except VclError as error:
        say(f"{run.name} is reported without its units: {error}")
        return str(error)


def figures(
    *runs: Annotated[Path, Parameter(help="Run folders. Seeds of one configuration are averaged.")],
    out: Annotated[Path, Parameter(help="Folder to write to.")] = Path("figures"),
    data_dir: DataDir = None,
) -> None:
    """Draw the paper's figures from stored runs, each as SVG and PNG.

    For each stream of tasks: accuracy curves, one line per configuration (`vcl run split-mnist --coreset 40` and the
    same without give the paper's appendix). For each configuration: the number of active units after each task. For
    each run of vcl and joint-vcl: its active units, the means and variances of all units, output weights, and
    transfer between tasks; for runs made with `--trace` also the cost and the benefit of each unit during training.

    Example: [bold]vcl figures runs/split-mnist-vcl-*[/bold]
    """
    from vcl.report.figures import gallery
    from vcl.runs import StoredRun

    def analyse(folder: "RunFolder") -> "Analysis":
        return analysed(StoredRun(folder), data_dir)

    for path in gallery.figures([run.folder for run in opened(runs)], out, analysed=analyse, say=say):
        stdout().print(str(path), markup=False)


def units(*runs: RunPaths, tolerance: Tolerance = None, data_dir: DataDir = None, json: Json = False) -> None:
    """Count the active units after each task, and measure what is transferred between tasks through them.

    A unit is inactive if none of its outgoing weights differs from zero by more than its standard deviation, or if
    it is among those that can be removed together without changing any task's predictions by more than the
    tolerance. All others are active. --json adds every measure of every unit.
    """
    from vcl import analysis

    documents = []
    for number, run in enumerate(stored := opened(runs)):
        found = analysed(run, data_dir, tolerance)
        accuracy = analysis.accuracy_without_pruned(found, run.stream(data_dir))
        use, change = analysis.forward_use(found), analysis.backward_change(found)
        if json:
            documents.append(units_json(run.name, found, accuracy, use, change))
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
        ]
        for place, table in enumerate(printed):
            stdout().print(*(["\n"] if number or place else []), table)
    if json:
        print_json(documents if len(documents) > 1 else documents[0])


def units_json(
    name: str, found: "Analysis", accuracy: "np.ndarray", use: "np.ndarray", change: "np.ndarray"
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
        "layers": [
            {measure: getattr(layer, measure).tolist() for measure in (*measures, "first_active")}
            for layer in found.layers
        ],
    }


def predict(
    run: RunPath,
    /,
    *,
    input: Annotated[Path, Parameter(help="A .npy file with images, one per row.")],
    task: Annotated[
        int | None,
        Parameter(
            help="Task that the images belong to, counted from 1; needed if each has a head.", converter=whole
        ),
    ] = None,
    output: Annotated[Path | None, Parameter(help="Write the predictions to this .npz file.")] = None,
    json: Annotated[bool, Parameter(help="Print the predictions as JSON.")] = False,
) -> None:
    """Predict new images: class probabilities, with aleatoric and epistemic uncertainty.

    Entropies are in nats: total = aleatoric (noise that more data would not remove) + epistemic (what the network
    has not learnt).
    """
    import numpy as np

    from vcl import runs
    from vcl.files import writing

    stored = runs.StoredRun.open(run)
    inputs = images_in(input)
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
        # Handed a name, savez would add .npz to it.
        with writing(output), output.open("wb") as file:
            np.savez(file, allow_pickle=False, **columns)
        say(f"Predictions for {len(inputs)} images: {output}")
    if json:
        print_json([{k: v[i].tolist() for k, v in columns.items()} for i in range(len(inputs))])
    elif not output:
        stdout().print(tables.predictions_table(prediction))


def images_in(path: Path) -> "np.ndarray":
    """The one array of a .npy file."""
    from zipfile import BadZipFile

    import numpy as np

    try:
        inputs = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError, BadZipFile) as error:
        raise VclError(
            f"{path} could not be read as a .npy file: {error}. Save the images with numpy.save."
        ) from None
    if not isinstance(inputs, np.ndarray):
        raise VclError(f"{path} holds several arrays. Save the one with the images with numpy.save.")
    return inputs
