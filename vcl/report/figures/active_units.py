"""The active units one by one: what comes in and what goes out (the paper's figure 1)."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from vcl.report.figures.drawing import MARKERS, canvas, caption, legend, scale, tidy
from vcl.report.figures.tiles import about, labels, scales, show_means, show_variances
from vcl.report.figures.units import FRAMED, Subject, incoming, outgoing, units_shown

Goals = Sequence[tuple[int, Float[np.ndarray, "u _"], Float[np.ndarray, "u _"]]]
"""Where weights go: the task that it belongs to, from 1, their means and their standard deviations."""


def draw_active_units(subject: Subject) -> Figure:
    """The first layer's active units after each task."""
    analysis, tile = subject.analysis, subject.tile(0)
    layer = analysis.layers[0]
    units = units_shown(layer)
    mean_norm, variance_norm = scales(subject, 0, units)
    shades = list(subject.task_colours.values())
    side = max(0.45, 4.2 / max(len(units), 6))
    images = max(2.0, side * len(units))
    widths = [images, images, max(4.5, 0.4 * len(units))]
    height = (max(side * tile.rows / tile.columns, 0.75) + 0.1) * analysis.num_tasks + 1.6
    figure = canvas(sum(widths) + 2.2, height, f"Active units: {subject.name}")
    grid = figure.subplots(analysis.num_tasks, 3, width_ratios=widths, squeeze=False)
    for stage, (left, centre, right) in enumerate(grid, start=1):
        means, variances = incoming(analysis, stage, 0)
        frames = {
            number: shades[layer.first_active[unit] - 1]
            for number, unit in enumerate(units)
            if layer.active[stage - 1, unit]
        }
        mean_image = show_means(left, means[units], tile, len(units), mean_norm, frames)
        variance_image = show_variances(centre, variances[units], tile, len(units), variance_norm, frames)
        left.set_ylabel(f"after\ntask {stage}", fontsize=8, rotation=0, ha="right", va="center")
        if stage > 1:
            right.sharey(grid[0, 2])
        _draw_outgoing(right, units, outgoing(analysis, stage, 0), shades)
        right.tick_params(labelbottom=stage == analysis.num_tasks)
    for axes in grid[0, :2]:
        _number_units(axes, units)
    goal = "each task's classes" if len(analysis.layers) == 1 else "units of the layer above"
    titles = ("incoming means", "incoming variances", f"outgoing weights, to {goal}: mean ± std")
    for axes, title in zip(grid[0], titles, strict=True):
        axes.set_title(title, fontsize=9)
    grid[-1, 2].set_xlabel("unit", fontsize=8)
    for number, (image, label) in enumerate(zip((mean_image, variance_image), labels(tile), strict=True)):
        scale(figure, image, grid[:, number], label, location="bottom", shrink=0.6, aspect=40, pad=0.02)
    legend(figure, subject.task_colours)
    caption(figure, _explained(subject, units))
    return figure


def _number_units(axes: Axes, units: Int[np.ndarray, "k"]) -> None:
    """Above each image, the number of its unit."""
    left, right = axes.get_xlim()
    centres = left + (right - left) * (np.arange(len(units)) + 0.5) / len(units)
    axes.set_xticks(centres, [str(unit + 1) for unit in units])
    axes.tick_params(labeltop=True, labelbottom=False, length=0, labelsize=7)


def _draw_outgoing(axes: Axes, units: Int[np.ndarray, "k"], goals: Goals, shades: Sequence[Any]) -> None:
    """A point and a bar for each weight, beside each other for each unit."""
    total = sum(means.shape[1] for _, means, _ in goals)
    offsets = iter(np.linspace(-0.38, 0.38, total) if total > 1 else [0.0])
    for task, means, deviations in goals:
        for number in range(means.shape[1]):
            axes.errorbar(
                np.arange(len(units)) + next(offsets),
                means[units, number],
                deviations[units, number],
                fmt=MARKERS[number % len(MARKERS)],
                color=shades[task - 1],
                ms=2.6,
                lw=0.8,
            )
    axes.axhline(0, color="black", lw=0.5)
    axes.set_xticks(range(len(units)), [str(unit + 1) for unit in units])
    tidy(axes)


def _explained(subject: Subject, units: Int[np.ndarray, "k"]) -> str:
    layers, tile = subject.analysis.layers, subject.tile(0)
    ever = np.count_nonzero(layers[0].first_active)
    parts = [
        f"A row for each stage of learning; each small image: the weights from {subject.source(0)}.",
        f"{FRAMED} {subject.about_prior}",
        *filter(None, (about(tile, "means"), about(tile, "variances"))),
        "Right: colours are tasks, markers their classes.",
    ]
    if len(units) < ever:
        parts.append(
            f"Shown are the {len(units)} units with the largest effect, from every task; {ever - len(units)} more "
            "were active."
        )
    if len(layers) > 1:
        parts.append(f"Of the layer above, the {len(units_shown(layers[1]))} units with the largest effect.")
    return " ".join(parts)
