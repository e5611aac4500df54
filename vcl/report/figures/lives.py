"""What units cost and contribute while a task is learnt, and when they are pruned."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.ticker import SymmetricalLogLocator

from vcl.analysis.trace import LayerTrace, Trace
from vcl.report.figures.drawing import PRUNED, canvas, caption, legend, tidy
from vcl.report.figures.units import Subject, layer_name

ROWS = ("cost of incoming\nweights (nats)", "cost of outgoing\nweights (nats)", "benefit (nats)", "benefit (nats)")


def draw_lives(subject: Subject, traces: dict[int, Trace], layer: int) -> Figure:
    """KL and likelihood of every unit of a layer over training, and one against the other; by task."""
    measured, tasks = subject.analysis.layers[layer], subject.task_colours
    figure = canvas(
        max(6.0, 2.5 * len(traces)) + 0.6,
        8.2,
        f"Cost and benefit of the units of {layer_name(layer)}: {subject.name}",
    )
    grid = figure.subplots(len(ROWS), len(traces), sharey="row", squeeze=False)
    for axes in grid.flat:
        _by_decades(axes.xaxis, axes.set_xscale)
    # Outgoing weights are few: what they cost is within a decade or two.
    for axes in grid[[0, 2, 3]].flat:
        _by_decades(axes.yaxis, axes.set_yscale)
    for column, (task, trace) in zip(grid.T, traces.items(), strict=True):
        active = measured.active[task - 1]
        colours = [list(tasks.values())[number - 1] for number in measured.first_active[active]]
        units = trace.layers[layer]
        for axes, values in zip(column, (units.incoming_kl, units.outgoing_kl, units.benefit), strict=False):
            _draw_paths(axes, np.broadcast_to(trace.epochs[:, None], values.shape), values, active, colours)
            axes.set_xlabel("epoch", fontsize=8)
        _draw_balance(column[-1], units, active, colours)
        column[0].set_title(f"learning task {task}", fontsize=9)
    for axes in grid[:2, 0]:
        axes.set_ylim(bottom=0.0)
    for axes, label in zip(grid[:, 0], ROWS, strict=True):
        axes.set_ylabel(label, fontsize=8)
    legend(figure, {**tasks, "pruned after the task": PRUNED})
    caption(
        figure,
        "A line for each unit. Cost: KL of its weights to the prior, which is the posterior of the task before. "
        "Benefit: the decrease of the log likelihood of the task's data when the unit is removed. Bottom: the path "
        "of each unit during training, with a dot at its end; below the dashed line, the cost exceeds the benefit. "
        "All scales but that of the outgoing weights' cost are logarithmic beyond 1.",
    )
    return figure


def of_tasks(subject: Subject, traces: Sequence[Trace]) -> dict[int, Trace]:
    """The traces to show, by task from 1: where a task comes in batches, that of its last one."""
    stages = subject.record["stages"]
    ends = [number for number, task in enumerate(stages, start=1) if task not in stages[number:]]
    of_task = {ends.index(trace.stage) + 1: trace for trace in traces if trace.stage in ends}
    return {task: of_task[task] for task in subject.stages_shown if task in of_task}


def _draw_balance(axes: Axes, units: LayerTrace, active: Bool[np.ndarray, "u"], colours: Sequence[Any]) -> None:
    """Cost against benefit: the path of each unit, and where it ended."""
    cost = units.incoming_kl + units.outgoing_kl
    _draw_paths(axes, cost, units.benefit, active, colours, alpha=0.35)
    for which, tint, size in ((~active, PRUNED, 4), (active, colours, 12)):
        axes.scatter(cost[-1, which], units.benefit[-1, which], c=tint, s=size, zorder=3)
    line = np.geomspace(0.01, max(1.0, cost.max()), 50)
    axes.plot(line, line, color="black", lw=0.8, ls="--")
    axes.set_xlabel("cost, in and out (nats)", fontsize=8)


def _draw_paths(
    axes: Axes,
    across: Float[np.ndarray, "p u"] | Int[np.ndarray, "p u"],
    up: Float[np.ndarray, "p u"],
    active: Bool[np.ndarray, "u"],
    colours: Sequence[Any],
    alpha: float = 0.8,
) -> None:
    """A line for each unit: pruned ones in grey, below."""
    lines = np.stack([across, up], axis=-1).transpose(1, 0, 2)
    for which, tint, width in ((~active, PRUNED, 0.5), (active, colours, 0.9)):
        axes.add_collection(LineCollection(list(lines[which]), colors=tint, lw=width, alpha=alpha, rasterized=True))
    axes.autoscale_view()
    tidy(axes)


def _by_decades(axis: Axis, set_scale: Callable[..., None]) -> None:
    """Logarithmic beyond 1, on both sides of zero."""
    set_scale("symlog", linthresh=1.0)
    axis.set_major_locator(SymmetricalLogLocator(base=10, linthresh=1.0))
    axis.set_major_formatter("{x:g}")
