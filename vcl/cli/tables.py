"""What is printed: pure functions from results to tables and sentences, in rich's markup."""

from collections.abc import Mapping, Sequence
from math import isnan
from pathlib import Path
from statistics import mean, stdev
from typing import TYPE_CHECKING, Any

from rich import markup
from rich.box import SIMPLE_HEAD
from rich.table import Table

from vcl.errors import printable

if TYPE_CHECKING:
    import numpy as np

    from vcl.analysis import Analysis, Forgetting, Pruning
    from vcl.data import DatasetStatus, FileStatus
    from vcl.evaluation import Prediction
    from vcl.runs import Record, Result
    from vcl.runs.plans import Candidate

AVERAGED = ("average_accuracy", "forgetting", "backward_transfer", "forward_transfer", "train_seconds")
"""What is averaged over seeds, beside the learning accuracy."""
SCORES = (
    ("log-likelihood", "log_likelihood", 1.0, 3),
    ("Brier score", "brier_score", 1.0, 4),
    ("calibration error (%)", "calibration_error", 100.0, 3),
    ("entropy, total (nats)", "total_entropy", 1.0, 3),
    ("entropy, aleatoric (nats)", "aleatoric_entropy", 1.0, 3),
)
"""Shown for each task: the title, the name in the result, the factor to the unit shown, and the digits."""


def escape(text: str) -> str:
    """Text from a file or a name, as a terminal may show it."""
    return markup.escape(printable(text))


def percent(fraction: float) -> str:
    return f"{100 * fraction:.2f}"


def points(change: float) -> str:
    return f"{100 * change:+.2f}"


# One run


def accuracy_table(result: "Result") -> Table:
    """Accuracy on each task after each task, and the scores of each task at the end."""
    names, matrix = result["task_names"], result["accuracy_matrix"]
    table = Table(
        title=escape(f"Accuracy (%) on {result['benchmark']} with {result['method']}"), title_justify="left"
    )
    table.add_column("after task")
    for number, name in enumerate(names, start=1):
        table.add_column(escape(f"{number}: {name}"), justify="right")
    table.add_column("average", justify="right", style="bold")
    for number, row in enumerate(matrix, start=1):
        cells = ["" if a is None else percent(a) for a in row]
        table.add_row(str(number), *cells, percent(mean(a for a in row if a is not None)))
    table.rows[-1].end_section = True
    for title, key, factor, digits in SCORES:
        # Runs before version 0.2 have no Brier score.
        if all(key in scores for scores in result["scores"][-1]):
            values = [factor * scores[key] for scores in result["scores"][-1]]  # type: ignore[literal-required]
            table.add_row(title, *(f"{v:.{digits}f}" for v in (*values, mean(values))))
    return table


def summary(result: "Result") -> str:
    """One run in a sentence; forward transfer is left out where it is not defined."""
    from vcl.evaluation import learning_accuracy

    changes = [
        f"learning accuracy {percent(learning_accuracy(result['accuracy_matrix']))} %",
        f"forgetting {percent(result['forgetting'])}",
        f"backward transfer {points(result['backward_transfer'])}",
    ]
    if result["forward_transfer"] is not None:
        changes.append(f"forward transfer {points(result['forward_transfer'])}")
    before = result.get("prequential_accuracy")
    ahead = "" if before is None else f"accuracy on the next task before learning it {percent(before)} %; "
    return (
        f"[bold]Average accuracy {percent(result['average_accuracy'])} %[/bold], {', '.join(changes)} points; "
        f"{ahead}{result['steps']} steps in {result['train_seconds']:.0f} s."
    )


def origin(record: "Record") -> str:
    """How a run was made."""
    settings = ", ".join(f"{name}={value}" for name, value in record["config"]["learner"].items())
    made = f"{record.get('command', '–')}  (vcl {record['version']}, {record.get('created', '–')})"
    return f"\nCommand: {escape(made)}\nSettings: {escape(settings)}"


def threads_note(path: Path, other: int, threads: int) -> str:
    """Why a run with another number of threads is a run of its own."""
    return (
        f"{path} has the same configuration, but another number of threads ({other}, not {threads}). It "
        f"changes how sums are rounded, so this is a new run. To use the other one: --threads {other}."
    )


# Several runs


def over_seeds(results: Sequence["Result"]) -> dict[str, dict[str, float | None]]:
    """Mean and standard deviation (n - 1 in the denominator) over seeds; None where a run has no value."""
    from vcl.evaluation import learning_accuracy

    columns: dict[str, list[Any]] = {key: [r[key] for r in results] for key in AVERAGED}  # type: ignore[literal-required]
    columns["learning_accuracy"] = [learning_accuracy(r["accuracy_matrix"]) for r in results]
    return {
        name: {key: None if None in column else float(of(column)) for key, column in columns.items()}
        for name, of in (("mean", mean), ("standard_deviation", stdev))
    }


def seeds_table(results: Sequence["Result"]) -> Table:
    """A row for each seed."""
    from vcl.evaluation import learning_accuracy

    titles = ("average accuracy (%)", "learning accuracy (%)", "forgetting", "backward transfer", "training (s)")
    table = Table("seed")
    for title in titles:
        # As narrow as the words: the names of folders need the room.
        table.add_column(title, justify="right", width=max(map(len, title.split())))
    table.add_column("run", overflow="fold")
    for r in results:
        table.add_row(
            str(r["seed"]),
            percent(r["average_accuracy"]),
            percent(learning_accuracy(r["accuracy_matrix"])),
            percent(r["forgetting"]),
            points(r["backward_transfer"]),
            f"{r['train_seconds']:.0f}",
            escape(r["run"]),
        )
    return table


def seeds_summary(results: Sequence["Result"]) -> str:
    """All seeds in a sentence."""
    found = over_seeds(results)

    def spread(key: str) -> str:
        return f"{100 * (found['mean'][key] or 0.0):.2f} ± {100 * (found['standard_deviation'][key] or 0.0):.2f}"

    return (
        f"[bold]Average accuracy {spread('average_accuracy')} %[/bold] (mean ± standard deviation over "
        f"{len(results)} seeds), learning accuracy {spread('learning_accuracy')} %, "
        f"forgetting {spread('forgetting')} points."
    )


def differences(records: Sequence["Record"]) -> dict[str, list[Any]]:
    """What runs differ in but the seed and the number of threads: the values of each run, by name."""
    columns: dict[str, list[Any]] = {
        "benchmark": [r["benchmark"] for r in records],
        "method": [r["method"] for r in records],
    }
    for part in ("stream", "learner"):
        settings = [r["config"][part] for r in records]
        for name in dict.fromkeys(name for own in settings for name in own):
            columns[name] = [own.get(name) for own in settings]
    return {name: values for name, values in columns.items() if any(v != values[0] for v in values)}


def runs_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """The runs of a folder."""
    table = Table("run", "recipe", "seed", "average accuracy (%)", "status", box=None)
    for row in rows:
        accuracy = "–" if row["average_accuracy"] is None else percent(row["average_accuracy"])
        table.add_row(escape(row["run"]), escape(row["recipe"]), str(row["seed"]), accuracy, row["status"])
    return table


def comparison_table(cells: Sequence[Sequence[str]], name: str) -> Table:
    """Methods side by side, in a hundred columns; the first line has the titles, the last column has notes."""
    head, *body = cells
    table = Table(
        title=escape(name) + ": mean ± standard deviation over seeds", title_justify="left", box=SIMPLE_HEAD
    )
    table.add_column(head[0], overflow="fold")
    for title, *values in list(zip(head, *body, strict=True))[1:-1]:
        table.add_column(title, justify="right", width=max(map(len, (*values, *title.split()))))
    for label, *values, notes in body:
        table.add_row(escape(label) + (f"\n  [dim]{escape(notes)}[/dim]" if notes else ""), *map(escape, values))
    return table


def uncertainty_table(found: Mapping[str, Mapping[str, tuple[float, float]]], runs: Mapping[str, int]) -> Table:
    """A line for each measure and a column for each method: mean ± standard deviation over runs."""
    from vcl.analysis.uncertainty import PERCENT

    table = Table("", *(escape(f"{method} ({runs[method]})") for method in found), title_justify="left")
    table.title = "Uncertainty after the last task (number of runs)"
    for name in dict.fromkeys(name for columns in found.values() for name in columns):
        factor = 100.0 if name.startswith(PERCENT) else 1.0
        cells = []
        for method, columns in found.items():
            average, spread = (factor * value for value in columns.get(name, (float("nan"), 0.0)))
            text = "" if isnan(average) else f"{average:.3f}"
            cells.append(f"{text} ± {spread:.3f}" if text and runs[method] > 1 else text)
        table.add_row(name.replace("_", " ") + (" (%)" if factor == 100.0 else ""), *cells)
    return table


def candidates_table(candidates: Sequence["Candidate"], name: str) -> Table:
    """Settings that were tried, best first."""
    table = Table(
        "settings", "accuracy (%)", "seeds", title=escape(f"{name}: on validation data"), title_justify="left"
    )
    for c in candidates:
        settings = ", ".join(f"{key}={value}" for key, value in c.settings.items())
        accuracy = "–" if c.accuracy is None else percent(c.accuracy)
        table.add_row(escape(settings), accuracy, str(len(c.accuracies)))
    return table


# Units


def units_table(analysis: "Analysis", accuracy: "np.ndarray", title: str | None = None) -> Table:
    """Active units after each task; `accuracy` has those of the whole network and of its active units."""
    table = Table(
        "after task",
        *(f"layer {n}: active of {layer.active.shape[1]}" for n, layer in enumerate(analysis.layers, start=1)),
        "change of predictions without the others",
        "accuracy (%)",
        "accuracy without the others (%)",
        box=None,
        title=title and escape(title),
        title_justify="left",
    )
    for number, counts in enumerate(analysis.counts.T):
        table.add_row(
            str(number + 1),
            *map(str, counts),
            f"{analysis.change_without_pruned[number]:.4f}",
            *map(percent, accuracy[number]),
        )
    return table


def transfer_table(title: str, matrix: "np.ndarray", form: str) -> Table:
    """Units by the task that first activated them, against tasks; empty where nothing is defined."""
    head = [f"task {n}" for n in range(1, len(matrix) + 1)]
    table = Table("units of task", *head, box=None, title=title, title_justify="left")
    for number, row in enumerate(matrix, start=1):
        table.add_row(str(number), *("" if isnan(v) else form.format(v) for v in row))
    return table


def forgetting_table(found: "Forgetting") -> Table:
    """Accuracy on earlier tasks, averaged, after each; and what it would be without either cause of forgetting."""
    table = Table(
        "after task",
        "accuracy (%)",
        "without units activated since (%)",
        "with earlier units' weights as they were (%)",
        box=None,
        title="Why earlier tasks are forgotten (average over the tasks before)",
        title_justify="left",
    )
    for after in range(1, len(found.accuracy)):
        table.add_row(str(after + 1), *(percent(matrix[:after, after].mean()) for matrix in found))
    return table


def pruning_table(pruning: "Pruning") -> Table:
    """A network before and after."""
    before, now = pruning.before, pruning.after
    table = Table("", "before", "after", "", box=None)
    table.add_row("units", *(", ".join(map(str, network.hidden)) for network in (before, now)), "")
    for name, values, form in (
        ("parameters", (before.parameters, now.parameters), "{:,}"),
        ("checkpoint (bytes)", (before.checkpoint_bytes, now.checkpoint_bytes), "{:,}"),
        ("prediction (ms)", (1e3 * before.predict_seconds, 1e3 * now.predict_seconds), "{:.1f}"),
    ):
        table.add_row(name, *map(form.format, values), f"{values[0] / values[1]:.1f} times less")
    tasks = zip(before.accuracy, now.accuracy, pruning.total_variation, pruning.noise, strict=True)
    for number, (old, new, moved, noise) in enumerate(tasks, start=1):
        distance = f"predictions change by {moved:.4f} (sampling noise: {noise:.4f})"
        table.add_row(f"accuracy on task {number} (%)", percent(old), percent(new), distance)
    removed = 100 * (1 - now.parameters / before.parameters)
    table.add_row(
        "average accuracy (%)",
        *(percent(mean(network.accuracy)) for network in (before, now)),
        f"{removed:.1f} % of the parameters removed",
    )
    return table


# The rest


def predictions_table(prediction: "Prediction") -> Table:
    """A row for each input."""
    table = Table("image", "class", "probability", "total entropy", "aleatoric", "epistemic", box=None)
    columns = (prediction.total_entropy, prediction.aleatoric_entropy, prediction.epistemic_entropy)
    for number, (best, of) in enumerate(zip(prediction.probabilities.max(axis=1), prediction.classes, strict=True)):
        entropies = (f"{column[number]:.4f}" for column in columns)
        table.add_row(str(number), str(of), f"{best:.4f}", *entropies)
    return table


def names_table(rows: Mapping[str, str]) -> Table:
    """Names, and what they stand for."""
    table = Table(box=None, show_header=False)
    for name, meaning in rows.items():
        table.add_row(f"[bold]{name}[/bold]", escape(meaning))
    return table


def datasets_table(rows: Sequence["DatasetStatus"]) -> Table:
    table = Table("data set", "description", "cached", "location", box=None)
    for row in rows:
        table.add_row(row.name, escape(row.description), "yes" if row.present else "no", escape(row.where))
    return table


def files_table(rows: Sequence[tuple[str, "FileStatus"]]) -> Table:
    table = Table("data set", "file", "status", box=None)
    for name, file in rows:
        table.add_row(name, escape(str(file.path)), escape(file.status))
    return table
