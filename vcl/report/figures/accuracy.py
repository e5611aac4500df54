"""Accuracy, task by task."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from vcl.errors import VclError
from vcl.files import write_output, writing
from vcl.report.figures.drawing import DASHES, MARKERS, after_tasks, canvas, caption, colours, saved, tidy
from vcl.report.groups import results_by_configuration
from vcl.report.labels import labels
from vcl.runs.results import Result

MOST_PANELS = 11
"""With more tasks than this, some are chosen, evenly from the first to the last."""

METHOD_COLOURS = {
    "kronecker-vcl": "#b2182b",
    "vcl": "#e08214",
    "gvcl": "#fdb863",
    "laplace": "#2166ac",
    "ewc": "#4393c3",
    "si": "#35978f",
    "joint": "#000000",
    "finetune": "#7f7f7f",
}
"""Methods that stand out in a comparison have the same colour in every one; the others are grey."""
OTHERS = "#c4c4c4"
TICKS = (10, 20, 40, 60, 80, 90, 95, 97, 98, 99, 99.5, 99.8, 99.9)


def accuracy_figure(results: Sequence[Result], path: Path) -> None:
    """Accuracy after each task, as a PNG, SVG or PDF file: averaged over seeds, a line for each configuration."""
    kinds = {".png", ".svg", ".pdf"}
    if path.suffix not in kinds:
        raise VclError(f"A figure's file must end in {', '.join(sorted(kinds))}, but it is {path}.")
    if any(r["task_names"] != results[0]["task_names"] for r in results):
        raise VclError("These runs have different tasks, so their curves cannot be averaged. Draw them one by one.")
    together = results_by_configuration(results)
    if len(together) == 1:
        figure = draw_accuracy(results)
    else:
        names = labels([group[0] for group in together], over_seeds=True)
        figure = draw_curves(f"Test accuracy: {_benchmarks(results)}", list(zip(names, together, strict=True)))
    with writing(path):
        write_output(path, saved(figure, path.suffix[1:]))


def _benchmarks(results: Sequence[Result]) -> str:
    return ", ".join(dict.fromkeys(result["benchmark"] for result in results))


def draw_accuracy(results: Sequence[Result]) -> Figure:
    """Accuracy on each task, and on average, after each task; mean and standard deviation over several seeds."""
    names = results[0]["task_names"]
    matrices = accuracies(results)
    after = np.arange(1, len(names) + 1)
    figure = canvas(9.0, 3.4, f"{results[0]['benchmark']}, {results[0]['method']}")
    left, right = figure.subplots(1, 2, sharey=True)
    shades = mpl.colormaps["viridis"](np.linspace(0, 0.9, len(names)))
    for task, (name, colour) in enumerate(zip(names, shades, strict=True)):
        left.plot(after[task:], matrices[:, task:, task].mean(0), "o-", color=colour, ms=3.5, lw=1.4, label=name)
    left.set(title="each task", ylabel="test accuracy (%)")
    if len(names) <= 10:
        left.legend(frameon=False, fontsize=8, title="task", title_fontsize=8, ncols=2)
    averages = np.nanmean(matrices, axis=2)
    right.errorbar(after, averages.mean(0), spread(averages), fmt="o-", color="black", ms=3.5, lw=1.4, capsize=3)
    seeds = f", {len(results)} seeds" if len(results) > 1 else ""
    right.set(title=f"average over tasks seen{seeds}")
    for axes in (left, right):
        after_tasks(axes, len(names))
        tidy(axes)
    return figure


def draw_comparison(title: str, curves: Sequence[tuple[str, Sequence[Sequence[float]]]], kind: str) -> bytes:
    """Average accuracy on the tasks seen, after each task, of several methods: (name, a curve for each seed)."""
    figure = canvas(8.0, 4.6 + 0.12 * max(0, len(curves) - 12), title)
    axes = figure.subplots()
    for number, (name, seeds) in enumerate(curves):
        values = 100 * np.array(seeds)
        method = name.split(":")[0]
        label = f"{name}  {values[:, -1].mean():.2f}"
        if method in METHOD_COLOURS:
            line(axes, values, number, METHOD_COLOURS[method], label)
        else:
            axes.plot(np.arange(1, values.shape[1] + 1), values.mean(0), color=OTHERS, lw=0.8, zorder=1, label=label)
            axes.lines[-1].set(marker=MARKERS[number % len(MARKERS)], ms=3)
    errors_to_the_top(axes)
    axes.set(ylabel="average accuracy on tasks seen (%)")
    after_tasks(axes, len(curves[0][1][0]))
    tidy(axes)
    axes.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return saved(figure, kind)


def errors_to_the_top(axes: Axes) -> None:
    """An axis of accuracy on which halving the error is one distance everywhere, so that the best stay apart."""
    axes.set_yscale("function", functions=(to_height, to_accuracy))
    lowest = min(float(np.min(np.asarray(one.get_ydata(), float))) for one in axes.lines)
    best = max(float(np.max(np.asarray(one.get_ydata(), float))) for one in axes.lines)
    shown = [tick for tick in TICKS if lowest - 5 <= tick <= max(best, 99.0) + 0.5]
    axes.set_yticks(shown, [f"{tick:g}" for tick in shown])
    axes.minorticks_off()


def to_height(accuracy: Any) -> Any:
    """-log of the error, in per cent; 0.01 stands for none."""
    return -np.log10(np.maximum(100.0 - np.asarray(accuracy, float), 0.01))


def to_accuracy(height: Any) -> Any:
    return 100.0 - 10.0 ** -np.asarray(height, float)


def draw_curves(title: str, groups: Sequence[tuple[str, Sequence[Result]]]) -> Figure:
    """A panel for each task and one for the average; a line for each group: (label, the results of its seeds).

    The appendix of the paper has these, with and without coresets.
    """
    names = groups[0][1][0]["task_names"]
    tasks = np.unique(np.linspace(0, len(names) - 1, MOST_PANELS).round().astype(int))
    columns = min(3 if len(tasks) < 6 else 4, len(tasks) + 1)
    rows = -(-(len(tasks) + 1) // columns)
    figure = canvas(2.5 * columns, 2.1 * rows + 0.9, title)
    panels = list(figure.subplots(rows, columns, sharey=True, squeeze=False).flat)
    shades = colours(len(groups))
    for number, (name, results) in enumerate(groups):
        label, matrices = f"{name} ({len(results)})", accuracies(results)
        for axes, task in zip(panels, tasks, strict=False):
            line(axes, matrices[:, :, task], number, shades[number], label)
            axes.set_title(f"task {task + 1}: {names[task]}", fontsize=9)
        line(panels[len(tasks)], np.nanmean(matrices, axis=2), number, shades[number], label)
    panels[len(tasks)].set_title("average over tasks seen", fontsize=9, fontweight="bold")
    for axes in panels:
        after_tasks(axes, len(names))
        tidy(axes)
        axes.set_visible(bool(axes.lines))
    for axes in panels[::columns]:
        axes.set_ylabel("test accuracy (%)", fontsize=8)
    handles, entries = panels[0].get_legend_handles_labels()
    figure.legend(handles, entries, loc="outside upper right", frameon=False, fontsize=8, ncols=min(4, len(entries)))
    chosen = f" {len(tasks)} of the {len(names)} tasks are shown." if len(tasks) < len(names) else ""
    several = "Lines: mean over seeds, with the number of seeds in brackets. Bands: standard deviation over seeds."
    caption(figure, several + chosen)
    return figure


def line(axes: Axes, values: Float[np.ndarray, "seeds t"], number: int, colour: Any, label: str) -> None:
    """The mean over seeds after each task, with a band of one standard deviation."""
    after = np.arange(1, values.shape[1] + 1)
    mean, deviation = values.mean(0), spread(values)
    marker, dash = MARKERS[number % len(MARKERS)], DASHES[number % len(DASHES)]
    axes.plot(after, mean, label=label, color=colour, marker=marker, ls=dash, ms=4, lw=1.3)
    if len(values) > 1:
        axes.fill_between(after, mean - deviation, mean + deviation, color=colour, alpha=0.15, lw=0)


def spread(values: Float[np.ndarray, "seeds t"]) -> Float[np.ndarray, "t"]:
    """Standard deviation over seeds; 0 for a single one."""
    return values.std(0, ddof=1) if len(values) > 1 else np.zeros(values.shape[1])


def accuracies(results: Sequence[Result]) -> Float[np.ndarray, "seeds t t"]:
    """In percent: [seed, after, task]; NaN for tasks not yet learnt."""
    return np.array(
        [[[np.nan if a is None else 100 * a for a in row] for row in r["accuracy_matrix"]] for r in results]
    )
