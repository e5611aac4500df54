"""Transfer between tasks, as matrices."""

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.colors import Colormap, LogNorm, Normalize
from matplotlib.figure import Figure

from vcl.analysis import Analysis, accuracy_change, backward_change, forward_use
from vcl.report.figures.drawing import MEANS, canvas, caption, scale
from vcl.runs.results import Result

MOST_NUMBERS = 12
"""With more tasks than this, the cells are too small to have their numbers in them."""


def draw_transfer(title: str, analysis: Analysis, result: Result | None) -> Figure:
    """Forward, backward, and the change in accuracy; without the last where a run has no result yet."""
    forward, backward = 100 * forward_use(analysis), backward_change(analysis)
    panels = [
        ("forward: use of earlier units", "units of task", "when learning task", forward, "%.0f", _upward(forward)),
        ("backward: change of earlier units", "units of task", "by task", backward, "%.3g", _by_decades(backward)),
    ]
    notes = (
        "Forward: how far the predictions for a task, just learnt, move without the units that another task first "
        "activated (total variation, in percentage points). Backward: information gain of the units that another "
        "task first activated (KL to before the task, mean over units, in nats)."
    )
    if result:
        gain = 100 * accuracy_change(result["accuracy_matrix"])
        panels.append(
            ("change of accuracy since learnt", "of task", "after task", gain, "%+.1f", _around_zero(gain))
        )
        notes += " Accuracy: percentage points gained or lost since the task was learnt."
    side = max(2.8, 0.36 * analysis.num_tasks)
    figure = canvas((side + 1.0) * len(panels), side + 1.3, title)
    for axes, panel in zip(figure.subplots(1, len(panels)), panels, strict=True):
        _draw_matrix(axes, *panel)
        scale(figure, axes.images[0], axes, "", shrink=0.7, aspect=25)
    caption(figure, notes)
    return figure


def _upward(matrix: Float[np.ndarray, "t t"]) -> Normalize:
    return Normalize(0.0, max(1.0, np.nanmax(matrix)))


def _by_decades(matrix: Float[np.ndarray, "t t"]) -> Normalize:
    """A task's own units learn thousands of nats, those of others a few."""
    high = np.nanmax(matrix, initial=1e-3)
    return LogNorm(max(1e-6 * high, np.nanmin(matrix, initial=0.1 * high, where=matrix > 0)), high)


def _around_zero(matrix: Float[np.ndarray, "t t"]) -> Normalize:
    end = max(1.0, np.nanmax(np.abs(matrix)))
    return Normalize(-end, end)


def _draw_matrix(
    axes: Axes, title: str, rows: str, columns: str, matrix: Float[np.ndarray, "t t"], form: str, norm: Normalize
) -> None:
    """Cells with their numbers; nothing where nothing is defined."""
    image = axes.imshow(matrix, norm=norm, cmap=MEANS if norm.vmin == -(norm.vmax or 0) else "Blues")
    tasks = range(1, len(matrix) + 1)
    axes.set_xticks(range(len(matrix)), map(str, tasks))
    axes.set_yticks(range(len(matrix)), map(str, tasks))
    axes.tick_params(labelsize=8, length=0)
    axes.spines[:].set_visible(False)
    axes.set_title(title, fontsize=9)
    axes.set_xlabel(columns, fontsize=8)
    axes.set_ylabel(rows, fontsize=8)
    if len(matrix) > MOST_NUMBERS:
        return
    for (row, column), value in np.ndenumerate(matrix):
        if not np.isnan(value):
            ink = _ink(image.get_cmap(), float(norm(value)))
            axes.text(column, row, form % value, ha="center", va="center", fontsize=7, color=ink)


def _ink(cmap: Colormap, place: float) -> str:
    """Black on light cells, white on dark ones."""
    red, green, blue, _ = cmap(place)
    return "black" if 0.3 * red + 0.6 * green + 0.1 * blue > 0.5 else "white"
