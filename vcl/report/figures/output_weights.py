"""The weights into each class, as Gaussians (the paper's appendices)."""

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure

from vcl.analysis import Analysis
from vcl.report.figures.drawing import PRUNED, canvas, caption, legend, tidy
from vcl.report.figures.units import Subject, into_head


def draw_output_weights(subject: Subject) -> Figure:
    """The weights from the last layer into each class of each trained head."""
    analysis, classes = subject.analysis, subject.spec.num_classes
    stages = subject.stages_shown
    heads = list(dict.fromkeys(analysis.heads[: analysis.num_tasks]))
    # With a single head, stages stand side by side.
    rows, columns = (len(stages), len(heads)) if len(heads) > 1 else (1, len(stages))
    width, height = max(7.0, 2.5 * columns) + 0.6, max(0.9, 0.34 * classes + 0.3) * rows + 1.3
    figure = canvas(width, height, f"Output weights: {subject.name}")
    grid = figure.subplots(rows, columns, squeeze=False, sharex=True)
    end = _reach(analysis)
    for axes, (stage, head) in zip(grid.flat, itertools.product(stages, heads), strict=True):
        if head not in analysis.heads[:stage]:
            axes.set_visible(False)
            continue
        _draw_head(axes, analysis, stage, head, list(subject.task_colours.values()))
        tidy(axes, grid="x")
        axes.set(xlim=(-end, end), ylim=(0.9 - classes, 1.0))
        axes.set_yticks(-np.arange(classes), subject.class_names(head))
        axes.set_title(f"after task {stage}" + (f", head {head + 1}" if len(heads) > 1 else ""), fontsize=9)
    for axes in grid[-1]:
        axes.set_xlabel("weight", fontsize=8)
    for axes in grid[:, 0]:
        axes.set_ylabel("class", fontsize=8)
    legend(figure, {**subject.task_colours, "pruned": PRUNED})
    caption(
        figure,
        "The density of the weight from each unit into each class, scaled to its peak. Colours: the task that first "
        "activated the unit. Grey: units that are pruned at that stage.",
    )
    return figure


def _draw_head(axes: Axes, analysis: Analysis, stage: int, head: int, shades: Sequence[Any]) -> None:
    """The weights into each class of a head, one class above the other."""
    means, deviations = into_head(analysis, stage, head)
    last = analysis.layers[-1]
    active = last.active[stage - 1]
    tints = [shades[task - 1] for task in last.first_active[active]]
    for place in range(means.shape[1]):
        _draw_gaussians(axes, means[~active, place], deviations[~active, place], -place, PRUNED)
        _draw_gaussians(axes, means[active, place], deviations[active, place], -place, tints)


def _reach(analysis: Analysis) -> float:
    """How far the axis of weights must go for those of active units, at any stage."""
    reach = 0.1
    for stage in range(1, analysis.num_tasks + 1):
        active = analysis.layers[-1].active[stage - 1]
        for head in set(analysis.heads[:stage]):
            means, deviations = into_head(analysis, stage, head)
            reach = max(reach, float(np.max(np.abs(means) + 2.5 * deviations, initial=0.0, where=active[:, None])))
    return reach


def _draw_gaussians(
    axes: Axes, means: Float[np.ndarray, "k"], deviations: Float[np.ndarray, "k"], base: int, colour: Any
) -> None:
    """Densities scaled to a height of 0.9 above `base`; without variance, an upright line."""
    steps = np.linspace(-3.5, 3.5, 57)
    across = means[:, None] + deviations[:, None] * steps
    up = np.broadcast_to(base + 0.9 * np.exp(-0.5 * steps**2), across.shape)
    # Hundreds of curves would make a drawing of many megabytes.
    axes.add_collection(
        LineCollection(list(np.stack([across, up], axis=-1)), colors=colour, lw=0.7, alpha=0.8, rasterized=True)
    )
