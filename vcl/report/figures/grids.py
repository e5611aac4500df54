"""Every unit of a layer, as images of its incoming weights (the paper's appendices)."""

import math
from typing import Literal

import numpy as np
from matplotlib.figure import Figure

from vcl.report.figures.drawing import canvas, caption, legend, scale
from vcl.report.figures.tiles import about, labels, scales, show_means, show_variances
from vcl.report.figures.units import FRAMED, Subject, incoming, layer_name

Kind = Literal["means", "variances"]
KINDS: tuple[Kind, ...] = ("means", "variances")


def draw_grid(subject: Subject, layer: int, kind: Kind) -> Figure:
    """The incoming means, or variances, of every unit of a layer, after each task that is shown."""
    analysis, tile = subject.analysis, subject.tile(layer)
    stages = subject.stages_shown
    measured = analysis.layers[layer]
    width = measured.active.shape[1]
    which = KINDS.index(kind)
    active = np.flatnonzero(measured.first_active)
    norm = scales(subject, layer, active if len(active) else np.arange(width))[which]
    shades = list(subject.task_colours.values())
    # Rows of ten, twenty, …: a unit's number is easily found.
    columns = 10 * math.ceil(math.sqrt(width) / 10)
    across = min(len(stages), 2 if columns > 10 else 3)
    rows = math.ceil(len(stages) / across)
    panel = 9.8 / across
    height = panel * math.ceil(width / columns) / columns * tile.rows / tile.columns
    title = f"Incoming {kind} of {layer_name(layer)}: {subject.name}"
    figure = canvas(11.0, (height + 0.3) * rows + 1.2, title)
    panels = list(figure.subplots(rows, across, squeeze=False).flat)
    for axes in panels[len(stages) :]:
        axes.set_visible(False)
    for axes, stage in zip(panels, stages, strict=False):
        weights = incoming(analysis, stage, layer)[which]
        frames = {
            int(unit): shades[measured.first_active[unit] - 1] for unit in np.flatnonzero(measured.active[stage - 1])
        }
        show = (show_means, show_variances)[which]
        image = show(axes, weights, tile, columns, norm, frames)
        axes.set_title(f"after task {stage}: {len(frames)} of {width} units active", fontsize=9)
    # As wide beside a single row of units as beside many.
    aspect = min(40.0, 8.0 * figure.get_figheight())
    scale(figure, image, panels, labels(tile)[which], location="right", shrink=0.7, aspect=aspect)
    legend(figure, subject.task_colours)
    caption(figure, _explained(subject, layer, kind, columns))
    return figure


def _explained(subject: Subject, layer: int, kind: Kind, columns: int) -> str:
    parts = (
        f"Each small image: the weights from {subject.source(layer)}.",
        about(subject.tile(layer), kind),
        f"Rows of {columns} units, from unit 1.",
        FRAMED,
        subject.about_prior,
    )
    return " ".join(filter(None, parts))
