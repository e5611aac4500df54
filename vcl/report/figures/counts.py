"""How many units are active (the paper's figure 2)."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from vcl.analysis import Analysis
from vcl.report.figures.drawing import MARKERS, after_tasks, canvas, caption, colours, tidy
from vcl.report.figures.units import layer_name


def draw_counts(title: str, analyses: Sequence[Analysis]) -> Figure:
    """How many units of each layer are active after each task, over seeds."""
    tasks = max(analysis.num_tasks for analysis in analyses)
    counts = np.full((len(analyses), len(analyses[0].layers), tasks), np.nan)
    for seed, analysis in enumerate(analyses):
        counts[seed, :, : analysis.num_tasks] = analysis.counts
    figure = canvas(5.2, 3.6, title)
    axes = figure.subplots()
    after = np.arange(1, tasks + 1)
    for number, shade in enumerate(colours(counts.shape[1])):
        width = analyses[0].layers[number].active.shape[1]
        axes.plot(after, counts[:, number].T, color=shade, lw=0.6, alpha=0.4)
        mean = np.nanmean(counts[:, number], axis=0)
        axes.errorbar(
            after,
            mean,
            _spread(counts[:, number]),
            fmt=MARKERS[number % len(MARKERS)] + "-",
            color=shade,
            ms=5,
            lw=1.5,
            capsize=3,
            label=f"{layer_name(number)} ({width} units)",
        )
    axes.set_ylabel("active units", fontsize=8)
    axes.set_ylim(0, None)
    axes.yaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
    after_tasks(axes, tasks)
    tidy(axes)
    axes.legend(frameon=False, fontsize=8)
    seeds = (
        f"Mean and standard deviation over {len(analyses)} seeds; thin lines: each seed."
        if len(analyses) > 1
        else "One seed."
    )
    caption(figure, f"{seeds} The other units are pruned: predictions stay the same without them.")
    return figure


def _spread(values: Float[np.ndarray, "seeds t"]) -> Float[np.ndarray, "t"]:
    """Standard deviation over the seeds that have got so far; 0 for a single one."""
    there = np.count_nonzero(~np.isnan(values), axis=0)
    squares = np.nansum((values - np.nanmean(values, axis=0)) ** 2, axis=0)
    return np.sqrt(squares / np.maximum(there - 1, 1))
