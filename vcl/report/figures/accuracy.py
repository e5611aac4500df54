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
from vcl.report.figures.drawing import (
    DASHES,
    MARKERS,
    METHOD_COLOURS,
    after_tasks,
    canvas,
    caption,
    colours,
    method_colour,
    saved,
    tidy,
)
from vcl.report.groups import results_by_configuration
from vcl.report.labels import labels
from vcl.runs.results import Result

MOST_PANELS = 11
"""With more tasks than this, some are chosen, evenly from the first to the last."""

OTHERS, OTHERS_TEXT = "#c4c4c4", "#767676"
FEW = 8
"""So many methods or fewer are all in colour; of more, those that stand out."""
TICKS = (10, 20, 40, 60, 80, 90, 95, 97, 98, 99, 99.5, 99.8, 99.9, 99.95)
LINE_OF_TEXT = 0.15
"""Inches from one label to the next."""


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
    """Average accuracy on the tasks seen, after each task, of several methods: (name, a curve for each seed).

    A few methods stand out in colours that are theirs in every figure, the others are grey. The vertical axis is
    logarithmic in the error, so that the best are told apart. Every line has its name at its end.
    """
    height = max(4.0, 1.2 + LINE_OF_TEXT * len(curves))
    figure = canvas(8.5, height, title)
    axes = figure.subplots()
    ends = []
    for number, (name, seeds) in enumerate(curves):
        values = 100 * np.array(seeds)
        stands_out = len(curves) <= FEW or name.split(":")[0] in METHOD_COLOURS
        if stands_out:
            line(axes, values, number, method_colour(name), name)
        else:
            axes.plot(np.arange(1, values.shape[1] + 1), values.mean(0), color=OTHERS, lw=0.9, zorder=1)
        ends.append((f"{name}  {values[:, -1].mean():.2f}", values[:, -1].mean(), method_colour(name), stands_out))
    errors_to_the_top(axes)
    axes.set_ylabel("average accuracy on tasks seen (%)")
    number = len(curves[0][1][0])
    after_tasks(axes, number)
    axes.set_xlim(right=number + 0.02 * number)
    tidy(axes)
    name_ends(axes, number, ends, LINE_OF_TEXT / (height - 1.0))
    return saved(figure, kind)


def name_ends(axes: Axes, last: int, ends: Sequence[tuple[str, float, str, bool]], apart: float) -> None:
    """Write the name of each line to the right of its end, no two over each other: (name, value, colour, in colour).

    `apart` is the least distance of two names, as a part of the axes' height.
    """
    low, high = to_height(axes.get_ylim(), 0.0)
    wanted = [float(np.clip((to_height(value, 1e-9) - low) / (high - low), 0.0, 1.0)) for _, value, *_ in ends]
    for (name, value, colour, stands_out), place in zip(ends, spread_out(wanted, apart), strict=True):
        axes.annotate(
            name,
            (last, value),
            (1.05, place),
            textcoords="axes fraction",
            va="center",
            fontsize=8,
            color=colour if stands_out else OTHERS_TEXT,
            fontweight="bold" if stands_out else "normal",
            arrowprops={
                "arrowstyle": "-",
                "color": colour if stands_out else OTHERS,
                "lw": 0.6,
                # From the left of the name, in the middle, to the end of the line.
                "relpos": (0.0, 0.5),
                "shrinkA": 0.0,
                "shrinkB": 1.0,
            },
            annotation_clip=False,
        )


def spread_out(wanted: Sequence[float], apart: float) -> list[float]:
    """Places as near as can be to those wanted, in the same order, and nowhere nearer to each other than `apart`.

    >>> [round(place, 3) for place in spread_out([0.5, 0.5, 0.9], 0.1)]
    [0.45, 0.55, 0.9]
    """
    order = np.argsort(wanted, kind="stable")
    steps = apart * np.arange(len(order))
    # Without the steps the places must not fall: that is isotonic regression, by pooling neighbours.
    groups: list[list[float]] = []
    for value in np.asarray(wanted)[order] - steps:
        groups.append([float(value)])
        while len(groups) > 1 and np.mean(groups[-2]) > np.mean(groups[-1]):
            groups[-2:] = [groups[-2] + groups[-1]]
    level = np.concatenate([np.full(len(group), np.mean(group)) for group in groups])
    places = np.empty(len(order))
    places[order] = level + steps
    return places.tolist()


def errors_to_the_top(axes: Axes) -> None:
    """An axis of accuracy on which halving the error is one distance everywhere, so that the best stay apart."""
    errors = 100.0 - np.concatenate([np.asarray(one.get_ydata(), float) for one in axes.lines])
    # Perfect is infinitely high: it is drawn at half the smallest error that there is, which is the top.
    least = (0.9 if errors.min() > 0 else 0.5) * max(0.02, float(np.min(errors[errors > 0], initial=1.0)))
    axes.set_yscale("function", functions=(lambda a: to_height(a, least), to_accuracy))
    axes.set_ylim(100.0 - 1.1 * max(1.0, errors.max()), 100.0 - least)
    low, high = axes.get_ylim()
    ticks = [tick for tick in TICKS if low <= tick <= high]
    axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()


def to_height(accuracy: Any, least: float) -> Any:
    """-log of the error, in per cent; an error below `least` counts as that."""
    return -np.log10(np.maximum(100.0 - np.asarray(accuracy, float), least))


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
    shades: list[Any] = [method_colour(name) for name, _ in groups]
    if len(set(shades)) < len(groups):
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
