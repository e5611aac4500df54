"""One self-contained HTML file about runs: opens from disk, without a network."""

import base64
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from importlib.resources import files
from typing import Any

import numpy as np

from vcl.analysis import Analysis, accuracy_change, backward_change, forward_use
from vcl.analysis.uncertainty import Detection, described
from vcl.benchmarks import readable_tasks
from vcl.evaluation import learning_accuracy
from vcl.report.labels import labels
from vcl.report.page import paired, trust
from vcl.report.page.charts import curve_chart, line_chart, nice_ticks
from vcl.report.page.downloads import download
from vcl.report.page.explorer import explorer_data
from vcl.runs.results import Record, Result, TaskScores

ORANGE, BLUE = (240, 140, 50), (70, 150, 225)
MOST_OPAQUE = 0.55
"""Cells of a matrix are shaded so far and no further: text stays legible, in light and in dark."""


MANY_TASKS = 6
"""Matrices of more tasks than this have a row of the page for themselves."""
MOST_EPOCHS = 400
"""Points of a curve of losses; of longer runs, every so many epochs are shown."""

Cell = str | tuple[str, float, tuple[int, int, int]]
"""Text, perhaps on a shade: how strong, and of which colour."""


@dataclass(frozen=True)
class Reported:
    """A complete run, and what was found inside it: an analysis, or the reason why there is none."""

    record: Record
    result: Result
    inside: Analysis | str
    losses: Sequence[tuple[int, str, Sequence[float]]] = ()
    """Stage (from 0), phase, and the objective after each epoch, in order."""
    answers: Sequence[trust.Answers] = ()
    """To the test data of each task, after the last one."""
    outside: Mapping[str, Detection] = field(default_factory=dict)
    """How well its entropies tell inputs from outside, by kind."""
    absent: str | None = None
    """The data set that would be such a kind, but is not on this machine."""


def render(runs: Sequence[Reported]) -> str:
    """The page: a comparison when there are several runs, then a section for each."""
    style = _file("report.css")
    script = _file("explorer.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    # Nothing is ever fetched, and no script runs but our own, whatever a run is called.
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; base-uri 'none'"
    names = names_of(runs)
    links = "".join(f"<li><a href='#run-{n}'>{escape(name)}</a></li>" for n, name in enumerate(names, start=1))
    several = f"<nav aria-label='Runs'><ul>{links}</ul></nav>{_comparison(names, runs)}" if len(runs) > 1 else ""
    sections = "".join(
        _section(number, name, run) for number, (name, run) in enumerate(zip(names, runs, strict=True), start=1)
    )
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>vcl: {escape(names[0] if len(runs) == 1 else f"{len(runs)} runs")}</title>
<style>{style}</style></head>
<body><header><h1>Continual learning, task by task</h1></header>
<main>{several}{sections}</main>
<script type="module">{script}</script></body></html>
"""


def names_of(runs: Sequence[Reported]) -> list[str]:
    """A name for each run: of a single one what it is, of several what tells them apart."""
    return labels(
        [run.result for run in runs], always=("method",) if len(runs) > 1 else ("benchmark", "method", "seed")
    )


def _file(name: str) -> str:
    return (files("vcl.report.page") / name).read_text(encoding="utf-8")


# Several runs


def _comparison(names: Sequence[str], runs: Sequence[Reported]) -> str:
    results = [run.result for run in runs]
    not_learnt = paired.intransigences(results)
    against_joint = any(value is not None for value in not_learnt)
    rows = [
        [
            name,
            percent(run.result["average_accuracy"]),
            percent(learning_accuracy(run.result["accuracy_matrix"])),
            percent(run.result["forgetting"]),
            *(["" if missed is None else percent(missed)] if against_joint else []),
            change(run.result["backward_transfer"]),
            change(run.result["forward_transfer"]),
            " + ".join(map(str, run.inside.counts[:, -1])) if isinstance(run.inside, Analysis) else "–",
            f"{run.result['train_seconds']:.0f}",
        ]
        for name, run, missed in zip(names, runs, not_learnt, strict=True)
    ]
    head = ["run", "average accuracy (%)", "learning accuracy (%)", "forgetting"]
    head += ["intransigence"] if against_joint else []
    head += ["backward transfer", "forward transfer", "active units", "seconds"]
    curves = [(name, _averages(run.result)) for name, run in zip(names, runs, strict=True)]
    charts = [line_chart("Average accuracy on the tasks seen", "accuracy (%)", curves)]
    counts = [run.inside.counts.astype(float).tolist() if isinstance(run.inside, Analysis) else [] for run in runs]
    for layer in range(max(map(len, counts))):
        # A run without such a layer keeps its place, so that all charts draw a run alike.
        in_layer = [
            (name, rows[layer] if layer < len(rows) else []) for name, rows in zip(names, counts, strict=True)
        ]
        charts.append(line_chart(f"Active units in layer {layer + 1}", "units", in_layer, from_zero=True))
    benchmarks = ", ".join(dict.fromkeys(run.result["benchmark"] for run in runs))
    table = _table("Comparison of the runs", head, rows)
    return f"""<section><h2>{len(runs)} runs of {escape(benchmarks)}</h2>{table}
<p class="soft">Learning accuracy: mean accuracy on each task just after it was learnt.{
        " Intransigence: learning accuracy of joint training on the same stream and seed, minus that of the run."
        if against_joint
        else ""
    }</p>
{_paired(results)}<div class="pair">{"".join(charts)}</div></section>"""


def _paired(results: Sequence[Result]) -> str:
    """What configurations differ in on the seeds that they share; empty where none share two."""
    tables = [_table("Paired differences", paired.HEAD, rows) for rows in paired.differences(results)]
    if not tables:
        return ""
    return f"""<h3>Paired differences over seeds</h3>
<p class="soft">Differences to the configuration with the highest average accuracy, over the seeds that both have; in
brackets 95 % confidence intervals of the mean (Student's t). Accuracy and calibration error in per cent, differences
of them in points. Runs of one seed learn the same stream, so what the stream does to both cancels.</p>
{"".join(tables)}"""


def _averages(result: Result) -> list[float]:
    """Average accuracy on the tasks seen, in percent, after each task."""
    return [100 * _mean(row) for row in result["accuracy_matrix"]]


def _mean(row: Sequence[float | None]) -> float:
    return float(np.mean([a for a in row if a is not None]))


# One run


def _section(number: int, name: str, run: Reported) -> str:
    result = run.result
    tasks = task_titles(readable_tasks(run.record["benchmark"], result["task_names"]))
    transfer = f"backward transfer {change(result['backward_transfer'])}"
    # Where outputs are untrained before a task, forward transfer is not defined.
    if result["forward_transfer"] is not None:
        transfer += f", forward transfer {change(result['forward_transfer'])}"
    return f"""
<section id="run-{number}"><h2>{escape(name)}</h2>
<p class="headline"><span class="number">{percent(result["average_accuracy"])} %</span> average accuracy after the
last task; learning accuracy, on each task just after it was learnt, {
        percent(learning_accuracy(result["accuracy_matrix"]))
    } %. Forgetting {percent(result["forgetting"])}, {transfer} percentage points;
{result["steps"]} steps in {result["train_seconds"]:.0f} s.</p>
<div class="pair">{_accuracy_charts(tasks, result)}{_loss_chart(run)}</div>
<div class="matrices{" wide" if len(tasks) > MANY_TASKS else ""}">
<div><h3>Accuracy (%) on each task, after each task</h3>{_accuracies(tasks, result["accuracy_matrix"])}</div>
<div><h3>Calibration and uncertainty, after the last task</h3>{_scores(tasks, result["scores"][-1])}</div>
</div>
{_trust(tasks, run)}
{_units(number, name, run, tasks)}
{_making(run)}</section>
"""


def task_titles(names: Sequence[str]) -> list[str]:
    return [f"{number}: {name}" for number, name in enumerate(names, start=1)]


def _accuracy_charts(tasks: Sequence[str], result: Result) -> str:
    matrix = result["accuracy_matrix"]
    curves = [
        (task, [None if (accuracy := row[number]) is None else 100 * accuracy for row in matrix])
        for number, task in enumerate(tasks)
    ]
    known = [100 * a for row in matrix for a in row if a is not None]
    scale = nice_ticks(min(known), max(known))
    return line_chart("Accuracy on each task", "accuracy (%)", curves, scale=scale) + line_chart(
        "Average accuracy on the tasks seen", "accuracy (%)", [("average", _averages(result))], scale=scale
    )


def _loss_chart(run: Reported) -> str:
    """What was minimised, epoch by epoch, on a logarithmic scale where it spans one."""
    stages = [(stage, phase, [v for v in values if np.isfinite(v)]) for stage, phase, values in run.losses]
    stages = [(stage, phase, values) for stage, phase, values in stages if values]
    if not stages:
        return ""
    values = np.array([v for _, _, values in stages for v in values])
    epochs = np.arange(1.0, len(values) + 1.0)
    logarithmic = bool(values.min() > 0 and values.max() > 20 * values.min())
    height = np.log10(values) if logarithmic else values
    ticks = nice_ticks(float(height.min()), float(height.max()))
    if logarithmic:
        ticks = [float(t) for t in range(int(np.floor(height.min())), int(np.ceil(height.max())) + 1)]
    starts: list[tuple[float, str]] = []
    begun = 1
    for stage, _, of_stage in stages:
        if not starts or starts[-1][1] != str(stage + 1):
            starts.append((float(begun), str(stage + 1)))
        begun += len(of_stage)
    every = max(1, -(-len(values) // MOST_EPOCHS))
    rows = [(stage + 1, phase, v) for stage, phase, of_stage in stages for v in of_stage]
    return f"""<div>{
        curve_chart(
            "Objective while it learnt",
            ("epoch (lines: where a stage begins)", "objective"),
            [("objective", epochs[::every].tolist(), height[::every].tolist())],
            x_ticks=[(1.0, "1"), (float(len(values)), str(len(values)))],
            y_ticks=[(tick, f"{10**tick:g}" if logarithmic else f"{tick:g}") for tick in ticks],
            marks=starts[:: max(1, -(-len(starts) // 10))],
        )
    }{download("objective", ["stage", "phase", "objective"], rows)}</div>"""


def _trust(tasks: Sequence[str], run: Reported) -> str:
    if not run.answers:
        return ""
    named = [one._replace(name=task) for one, task in zip(run.answers, tasks, strict=True)]
    return f"<h3>Can its confidence be trusted?</h3>{trust.charts(named)}{_outside(run)}"


def _outside(run: Reported) -> str:
    """How well entropies tell inputs from outside."""
    if not run.outside:
        return ""
    rows = [
        [described(kind, run.record["benchmark"]), f"{found.total:.3f}", f"{found.epistemic:.3f}"]
        for kind, found in run.outside.items()
    ]
    absent = (
        f" Images of {escape(run.absent)} are left out, since they are not on this machine. To include them: "
        f"<code>vcl data fetch {escape(run.absent)}</code>, then this report again."
        if run.absent
        else ""
    )
    return f"""<h4>Inputs from outside</h4>
{_table("Inputs from outside", ["AUROC", "total entropy", "epistemic entropy"], rows)}
<p class="soft">AUROC: the probability that an input from outside has a higher entropy than a test input, mean over
tasks, after the last one; 0.5 is chance. Without a posterior over the weights there is no epistemic entropy, and the
AUROC by it is 0.5.{absent}</p>"""


def _accuracies(tasks: Sequence[str], matrix: Sequence[Sequence[float | None]]) -> str:
    rows: list[list[Cell]] = []
    for number, (row, average) in enumerate(zip(matrix, map(_mean, matrix), strict=True), start=1):
        cells: list[Cell] = ["" if a is None else (percent(a), 2.0 * (1.0 - a), ORANGE) for a in row]
        rows.append([str(number), *cells, percent(average)])
    return _table("Accuracy matrix", ["after task", *tasks, "average"], rows)


def _scores(tasks: Sequence[str], scores: Sequence[TaskScores]) -> str:
    rows: dict[str, Callable[[TaskScores], str]] = {
        "log-likelihood (nats)": lambda s: f"{s['log_likelihood']:.3f}",
        "Brier score": lambda s: f"{s['brier_score']:.4f}" if "brier_score" in s else "",
        "calibration error (%)": lambda s: percent(s["calibration_error"]),
        "total entropy (nats)": lambda s: f"{s['total_entropy']:.3f}",
        "aleatoric entropy (nats)": lambda s: f"{s['aleatoric_entropy']:.3f}",
        "epistemic entropy (nats)": lambda s: f"{s['total_entropy'] - s['aleatoric_entropy']:.3f}",
    }
    # Runs before version 0.2 have no Brier score.
    cells = [[label, *texts] for label, written in rows.items() if any(texts := [written(s) for s in scores])]
    meaning = (
        "Aleatoric uncertainty: noise in the data. Epistemic uncertainty: about the weights; more data reduces it."
    )
    return _table("Calibration and uncertainty", ["", *tasks], cells) + f"<p class='soft'>{meaning}</p>"


def _making(run: Reported) -> str:
    record, config = run.record, run.record["config"]
    settings = "\n".join(f"{k} = {v}" for k, v in {**config["stream"], **config["learner"]}.items())
    versions = ", ".join(f"{name} {number}" for name, number in record.get("versions", {}).items())
    return f"""<h3>How it was made</h3>
<pre>{escape(record.get("command", ""))}</pre>
<p class="soft">vcl {escape(record["version"])}, {escape(record.get("created", ""))},
recipe {escape(config["recipe"])}, {config["threads"]} thread(s),
folder {escape(run.result["run"])}; {escape(versions)}</p>
<details><summary>All settings</summary><pre>{escape(settings)}</pre></details>"""


# Inside a run


def _units(number: int, name: str, run: Reported, tasks: Sequence[str]) -> str:
    """Active units, the explorer, and transfer; transfer in accuracy is there for every method."""
    gained = accuracy_change(run.result["accuracy_matrix"])
    in_accuracy = _transfer(
        "Accuracy gained or lost since a task was learnt",
        "Change of the accuracy on the task in the row by the end of the task in the column, in percentage points.",
        tasks,
        100 * gained,
        signed=True,
        form="{:+.2f}",
    )
    if not isinstance(run.inside, Analysis):
        return f"""<h3>Units</h3><p class="note">The units cannot be shown. {escape(run.inside)}</p>
<h3>Transfer between tasks</h3>{in_accuracy}"""
    analysis = run.inside
    learnt = tasks[: analysis.num_tasks]
    return f"""<h3>Active units</h3>
<p>A unit is pruned when none of its outgoing weights differs from zero by more than its standard deviation, or
when predictions stay the same if all such units are removed together.</p>
<div class="beside">{_counts_chart(analysis)}<div>{_counts_table(analysis, learnt)}</div></div>
<h3>Unit by unit</h3>
<div class="explorer" data-units="units-{number}" aria-label="Units of {escape(name)}" role="group">
<p class="note">The units are drawn by a script inside this page. Enable JavaScript to see them.</p></div>
<script type="application/json" id="units-{number}">{embedded(explorer_data(run.record, analysis))}</script>
<h3>Transfer between tasks</h3><div class="matrices {"wide" if len(learnt) > MANY_TASKS else "three"}">
{
        _transfer(
            "Forward: use of earlier tasks' units",
            "How far predictions for the task in the column, just learnt, move (total variation) without the units "
            "first activated by the task in the row.",
            learnt,
            forward_use(analysis),
            form="{:.3f}",
        )
    }{
        _transfer(
            "Backward: change of earlier tasks' units",
            "Information gain of the units first activated by the task in the row while the task in the column was "
            "learnt, mean over units (nats).",
            learnt,
            backward_change(analysis),
            form="{:.1f}",
        )
    }{in_accuracy}</div>"""


def embedded(data: Any) -> str:
    """JSON that no HTML parser can mistake for a tag or for the end of the script."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _counts_chart(analysis: Analysis) -> str:
    counts = [(f"layer {number}", row.astype(float).tolist()) for number, row in enumerate(analysis.counts, start=1)]
    return line_chart("Active units after each task", "units", counts, from_zero=True)


def _counts_table(analysis: Analysis, tasks: Sequence[str]) -> str:
    rows = []
    for number, (layer, counts) in enumerate(zip(analysis.layers, analysis.counts, strict=True), start=1):
        new = [str(np.sum(layer.first_active == task)) for task in range(1, len(tasks) + 1)]
        rows.append([f"layer {number}: active, of {layer.active.shape[1]}", *map(str, counts)])
        rows.append([f"layer {number}: activated for the first time", *new])
    rows.append(
        [
            "change of predictions without the pruned units",
            *(f"{moved:.4f}" for moved in analysis.change_without_pruned),
        ]
    )
    return _table("Active units", ["after task", *tasks], rows)


def _transfer(
    title: str, explanation: str, tasks: Sequence[str], matrix: np.ndarray, *, form: str, signed: bool = False
) -> str:
    known = np.abs(matrix[np.isfinite(matrix)])
    largest = float(known.max()) if known.size and known.max() > 0 else 1.0
    rows: list[list[Cell]] = []
    for task, row in zip(tasks, matrix, strict=True):
        cells: list[Cell] = [
            (form.format(v), abs(v) / largest, ORANGE if signed and v < 0 else BLUE) if np.isfinite(v) else ""
            for v in row
        ]
        rows.append([task, *cells])
    return f"<div><h4>{title}</h4><p class='soft'>{explanation}</p>{_table(title, ['', *tasks], rows)}</div>"


# Tables


def _table(label: str, head: Sequence[str], rows: Sequence[Sequence[Cell]]) -> str:
    """A table that scrolls sideways where there is no room, also by keyboard, and can be saved as CSV."""
    top = "".join(f"<th scope='col'>{escape(cell)}</th>" for cell in head)
    body = "".join(
        f"<tr><th scope='row'>{escape(_text(first))}</th>{''.join(map(_cell, rest))}</tr>" for first, *rest in rows
    )
    table = f"<table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"
    saved = download(label, head, ([_text(cell) for cell in row] for row in rows))
    return f"<div class='scroll' role='region' aria-label='{escape(label)}' tabindex='0'>{table}</div>{saved}"


def _text(cell: Cell) -> str:
    return cell if isinstance(cell, str) else cell[0]


def _cell(cell: Cell) -> str:
    """Text, perhaps on a shade between the page's colour and its own."""
    if isinstance(cell, str):
        return f"<td>{escape(cell)}</td>"
    text, strength, colour = cell
    opacity = MOST_OPAQUE * min(1.0, max(0.0, strength))
    return f"<td style='background:rgb({' '.join(map(str, colour))} / {opacity:.3f})'>{escape(text)}</td>"


def percent(fraction: float) -> str:
    return f"{100 * fraction:.2f}"


def change(fraction: float | None) -> str:
    """Percentage points with their sign; a dash where there is no number."""
    return "–" if fraction is None else f"{100 * fraction:+.2f}"
