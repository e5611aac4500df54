"""The units of a network, as pictures: what comes in, what goes out, and how many matter."""

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.colors import LogNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from vcl.analysis import Analysis, Layer
from vcl.report.drawing import (
    MARKERS,
    MEANS,
    PRUNED,
    VARIANCES,
    after_tasks,
    bare,
    canvas,
    caption,
    colours,
    legend,
    scale,
    tidy,
)

MOST_UNITS = 12
"""Of more active units than this, those with the largest effect are shown one by one."""
ALL_STAGES = 5
"""With more tasks than this, the first, the middle and the last stand for all, as in the paper."""
FRAMED = "A frame: the unit is active at that stage; its colour: the task that activated it first."
CLIPPED = 0.5
"""The percentage of weights that may lie beyond the ends of a colour scale."""


# What is shown


def stages_shown(num_tasks: int) -> list[int]:
    """After which tasks, from 1, there is a picture."""
    return list(range(1, num_tasks + 1)) if num_tasks <= ALL_STAGES else [1, num_tasks // 2, num_tasks]


def units_shown(layer: Layer) -> Int[np.ndarray, "k"]:
    """Active units in the order of their first activation; of too many, those of each task that matter most."""
    effect, task = layer.removal_effect.max(axis=0), layer.first_active
    better = (effect > effect[:, None]) & (task == task[:, None])
    ever = np.flatnonzero(task)
    chosen = ever[np.lexsort((-effect[ever], better.sum(axis=1)[ever]))[:MOST_UNITS]]
    return chosen[np.lexsort((chosen, task[chosen]))]


def pictures(weights: Float[np.ndarray, "i u"], shape: Sequence[int]) -> Float[np.ndarray, "u h w"]:
    """Each unit's incoming weights as an input image, averaged over channels.

    Inputs that are no image, such as the units of the layer below, fill the rows of a square, one after the other.
    """
    if len(shape) < 2:
        side = math.ceil(math.sqrt(len(weights)))
        shape = (math.ceil(len(weights) / side), side)
        weights = np.pad(weights, ((0, math.prod(shape) - len(weights)), (0, 0)), constant_values=np.nan)
    return weights.T.reshape(weights.shape[1], shape[0], shape[1], -1).mean(axis=-1)


def shape_into(record: dict[str, Any], analysis: Analysis, layer: int) -> Sequence[int]:
    """The shape of what a hidden layer takes in."""
    return record["spec"]["input_shape"] if layer == 0 else [len(analysis.posteriors[0].mean.body[layer].weight)]


def incoming(
    analysis: Analysis, stage: int, layer: int
) -> tuple[Float[np.ndarray, "i u"], Float[np.ndarray, "i u"]]:
    """Means and variances of the weights into a hidden layer, after a task (from 1)."""
    q = analysis.posteriors[stage - 1]
    return np.asarray(q.mean.body[layer].weight), np.exp(np.asarray(q.log_var.body[layer].weight))


def into_head(
    analysis: Analysis, stage: int, head: int
) -> tuple[Float[np.ndarray, "u c"], Float[np.ndarray, "u c"]]:
    """Means and standard deviations of the weights into a head, after a task (from 1)."""
    q = analysis.posteriors[stage - 1]
    return np.asarray(q.mean.head.weight[head]), np.exp(0.5 * np.asarray(q.log_var.head.weight[head]))


def outgoing(
    analysis: Analysis, stage: int, layer: int
) -> list[tuple[int, Float[np.ndarray, "u o"], Float[np.ndarray, "u o"]]]:
    """Where a layer's weights go, after a task: (task that it belongs to, from 1; means; standard deviations).

    From the last layer, into the classes of each trained head; from others, into the units above that are shown.
    """
    if layer == len(analysis.layers) - 1:
        trained = dict.fromkeys(analysis.heads[:stage])
        return [(analysis.heads.index(head) + 1, *into_head(analysis, stage, head)) for head in trained]
    above = analysis.layers[layer + 1]
    means, variances = incoming(analysis, stage, layer + 1)
    chosen = units_shown(above)
    tasks = above.first_active[chosen]
    return [
        (int(task), means[:, chosen[tasks == task]], np.sqrt(variances[:, chosen[tasks == task]]))
        for task in np.unique(tasks)
    ]


def subject(record: dict[str, Any]) -> str:
    return f"{record['benchmark']}, {record['method']}, seed {record['seed']}"


def ordinal(layer: int) -> str:
    """What a hidden layer is called, from 0."""
    return f"hidden layer {layer + 1}"


def task_colours(record: dict[str, Any], analysis: Analysis) -> dict[str, Any]:
    """The tasks learnt, and the colour that stands for each in all figures of a run."""
    names = [f"task {number}{_own_name(record, number)}" for number in range(1, analysis.num_tasks + 1)]
    return dict(zip(names, colours(len(names)), strict=True))


def _own_name(record: dict[str, Any], number: int) -> str:
    """What a task is called, unless that is just its number."""
    name = record["task_names"][number - 1]
    return "" if name.endswith(f" {number}") else f": {name}"


# Images


def mosaic(tiles: Float[np.ndarray, "u h w"], columns: int, gap: int) -> Float[np.ndarray, "y x"]:
    """Pictures in rows, with nothing (NaN) in between."""
    units, height, width = tiles.shape
    rows = math.ceil(units / columns)
    image = np.full((rows * (height + gap) - gap, columns * (width + gap) - gap), np.nan, np.float32)
    for number, tile in enumerate(tiles):
        top, left = number // columns * (height + gap), number % columns * (width + gap)
        image[top : top + height, left : left + width] = tile
    return image


def show_units(
    axes: Axes,
    tiles: Float[np.ndarray, "u h w"],
    columns: int,
    norm: Normalize,
    cmap: str,
    frames: dict[int, Any],
) -> AxesImage:
    """Units as one image; `frames` has the colours of those that are to have a frame."""
    _, height, width = tiles.shape
    gap = max(1, width // 12)
    # Every weight stays one square, at any size.
    image = axes.imshow(mosaic(tiles, columns, gap), cmap=cmap, norm=norm, interpolation="none")
    for number in range(len(tiles)):
        # Tiles where nothing was learnt are as white as the paper: a hairline tells that they are there.
        style = {"ec": frames[number], "lw": 1.2} if number in frames else {"ec": "#cccccc", "lw": 0.3}
        grow = gap / 2 if number in frames else 0.0
        left, top = number % columns * (width + gap) - 0.5 - grow, number // columns * (height + gap) - 0.5 - grow
        axes.add_patch(
            Rectangle((left, top), width + 2 * grow, height + 2 * grow, fill=False, clip_on=False, **style)
        )
    bare(axes)
    return image


def mean_scale(weights: Float[np.ndarray, "..."]) -> Normalize:
    """Symmetric, so that zero is white."""
    end = float(np.percentile(np.abs(weights), 100 - CLIPPED)) or 1.0
    return Normalize(-end, end)


def variance_scale(variances: Float[np.ndarray, "..."]) -> Normalize:
    """Logarithmic: data make some variances a hundred times smaller than the prior's."""
    low, high = np.percentile(variances[variances > 0], [CLIPPED, 100 - CLIPPED])
    return LogNorm(min(low, 0.5 * high), high)


def scales(analysis: Analysis, layer: int, units: Int[np.ndarray, "k"]) -> tuple[Normalize, Normalize]:
    """One scale for the means and one for the variances of some units, good for all tasks."""
    both = [incoming(analysis, stage, layer) for stage in range(1, analysis.num_tasks + 1)]
    means, variances = (np.stack([of[:, units] for of in kind]) for kind in zip(*both, strict=True))
    return mean_scale(means), variance_scale(variances)


# The figures


def draw_active_units(record: dict[str, Any], analysis: Analysis) -> Figure:
    """The first layer's active units after each task: what comes in, what goes out (the paper's figure 1)."""
    layer = analysis.layers[0]
    units = units_shown(layer)
    shape = shape_into(record, analysis, 0)
    mean_norm, variance_norm = scales(analysis, 0, units)
    tasks = task_colours(record, analysis)
    shades = list(tasks.values())
    side = max(0.45, 4.2 / max(len(units), 6))
    images = max(2.0, side * len(units))
    widths = [images, images, max(4.5, 0.4 * len(units))]
    height = (max(side, 0.75) + 0.1) * analysis.num_tasks + 1.6
    figure = canvas(sum(widths) + 2.2, height, f"The active units: {subject(record)}")
    grid = figure.subplots(analysis.num_tasks, 3, width_ratios=widths, squeeze=False)
    for stage, (left, centre, right) in enumerate(grid, start=1):
        means, variances = incoming(analysis, stage, 0)
        frames = {
            number: shades[layer.first_active[unit] - 1]
            for number, unit in enumerate(units)
            if layer.active[stage - 1, unit]
        }
        mean_image = show_units(left, pictures(means[:, units], shape), len(units), mean_norm, MEANS, frames)
        variance_image = show_units(
            centre, pictures(variances[:, units], shape), len(units), variance_norm, VARIANCES, frames
        )
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
    for number, (image, label) in enumerate(((mean_image, "mean"), (variance_image, "variance"))):
        scale(figure, image, grid[:, number], label, location="bottom", shrink=0.6, aspect=40, pad=0.02)
    legend(figure, tasks)
    caption(figure, _about_active_units(layer, units, shape, analysis))
    return figure


def _number_units(axes: Axes, units: Int[np.ndarray, "k"]) -> None:
    """Above each picture, the number of its unit."""
    left, right = axes.get_xlim()
    centres = left + (right - left) * (np.arange(len(units)) + 0.5) / len(units)
    axes.set_xticks(centres, [str(unit + 1) for unit in units])
    axes.tick_params(labeltop=True, labelbottom=False, length=0, labelsize=7)


def _draw_outgoing(
    axes: Axes,
    units: Int[np.ndarray, "k"],
    goals: Sequence[tuple[int, Float[np.ndarray, "u o"], Float[np.ndarray, "u o"]]],
    shades: Sequence[Any],
) -> None:
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


def _about_active_units(layer: Layer, units: Int[np.ndarray, "k"], shape: Sequence[int], analysis: Analysis) -> str:
    ever = np.count_nonzero(layer.first_active)
    parts = [
        f"Rows: stages of learning. {FRAMED} {_about_prior(analysis)} "
        "Right: colours are tasks, markers their classes."
    ]
    if len(units) < ever:
        parts.append(
            f"Shown are {len(units)}, of each task those of largest effect; {ever - len(units)} more were active."
        )
    if len(shape) > 2:
        parts.append("Images are averaged over colour channels.")
    if len(analysis.layers) > 1:
        parts.append(f"Of the layer above, the {len(units_shown(analysis.layers[1]))} units of largest effect.")
    return " ".join(parts)


def _about_prior(analysis: Analysis) -> str:
    variance = float(np.exp(analysis.prior.log_var.body[0].bias[0]))
    return f"The first prior has mean 0 and variance {variance:.2g}."


def draw_counts(title: str, analyses: Sequence[Analysis]) -> Figure:
    """How many units of each layer are active after each task, over seeds (the paper's figure 2)."""
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
            fmt=MARKERS[number] + "-",
            color=shade,
            ms=5,
            lw=1.5,
            capsize=3,
            label=f"{ordinal(number)} ({width} units)",
        )
    axes.set_ylabel("active units", fontsize=8)
    axes.set_ylim(0, None)
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    after_tasks(axes, tasks)
    tidy(axes)
    axes.legend(frameon=False, fontsize=8)
    seeds = (
        f"Mean and standard deviation over {len(analyses)} seeds; thin: each seed."
        if len(analyses) > 1
        else "One seed."
    )
    caption(figure, f"{seeds} Pruned units are silent, or nothing changes without them.")
    return figure


def _spread(values: Float[np.ndarray, "seeds t"]) -> Float[np.ndarray, "t"]:
    """Standard deviation over the seeds that have got so far; 0 for a single one."""
    there = np.count_nonzero(~np.isnan(values), axis=0)
    squares = np.nansum((values - np.nanmean(values, axis=0)) ** 2, axis=0)
    return np.sqrt(squares / np.maximum(there - 1, 1))


def draw_grid(record: dict[str, Any], analysis: Analysis, layer: int, kind: str) -> Figure:
    """The incoming means, or variances, of every unit of a layer (the paper's appendices)."""
    stages = stages_shown(analysis.num_tasks)
    measured = analysis.layers[layer]
    width = measured.active.shape[1]
    shape = shape_into(record, analysis, layer)
    which = ("means", "variances").index(kind)
    active = np.flatnonzero(measured.first_active)
    norm = scales(analysis, layer, active if len(active) else np.arange(width))[which]
    cmap = (MEANS, VARIANCES)[which]
    tasks = task_colours(record, analysis)
    shades = list(tasks.values())
    # Rows of ten, twenty, …: a unit's number is easily found.
    columns = 10 * math.ceil(math.sqrt(width) / 10)
    across = min(len(stages), 2 if columns > 10 else 3)
    rows = math.ceil(len(stages) / across)
    panel = 9.8 / across
    height = panel * math.ceil(width / columns) / columns
    title = f"Incoming {kind} of {ordinal(layer)}: {subject(record)}"
    figure = canvas(11.0, (height + 0.3) * rows + 1.2, title)
    panels = list(figure.subplots(rows, across, squeeze=False).flat)
    for axes in panels[len(stages) :]:
        axes.set_visible(False)
    for axes, stage in zip(panels, stages, strict=False):
        tiles = pictures(incoming(analysis, stage, layer)[which], shape)
        frames = {
            int(unit): shades[measured.first_active[unit] - 1] for unit in np.flatnonzero(measured.active[stage - 1])
        }
        image = show_units(axes, tiles, columns, norm, cmap, frames)
        axes.set_title(f"after task {stage}: {len(frames)} of {width} units active", fontsize=9)
    scale(figure, image, panels, kind[:-1], location="right", shrink=0.7, aspect=40)
    legend(figure, tasks)
    below = "the weights from the units below, row by row" if layer else "the weights from the input image"
    caption(
        figure,
        f"Each small image: {below}. Rows of {columns} units, from unit 1. {FRAMED} {_about_prior(analysis)}",
    )
    return figure


def draw_output_weights(record: dict[str, Any], analysis: Analysis) -> Figure:
    """The weights from the last layer into each class, as Gaussians (the paper's appendices)."""
    stages = stages_shown(analysis.num_tasks)
    heads = list(dict.fromkeys(analysis.heads[: analysis.num_tasks]))
    classes = record["spec"]["num_classes"]
    tasks = task_colours(record, analysis)
    # With a single head, stages stand side by side.
    rows, columns = (len(stages), len(heads)) if len(heads) > 1 else (1, len(stages))
    width, height = max(7.0, 2.5 * columns) + 0.6, max(0.9, 0.34 * classes + 0.3) * rows + 1.3
    figure = canvas(width, height, f"Output weights: {subject(record)}")
    grid = figure.subplots(rows, columns, squeeze=False, sharex=True)
    end = _reach(analysis)
    for axes, (stage, head) in zip(grid.flat, itertools.product(stages, heads), strict=True):
        if head not in analysis.heads[:stage]:
            axes.set_visible(False)
            continue
        _draw_head(axes, analysis, stage, head, list(tasks.values()))
        tidy(axes, grid="x")
        axes.set(xlim=(-end, end), ylim=(0.9 - classes, 1.0))
        axes.set_yticks(-np.arange(classes), _class_names(record, head))
        axes.set_title(f"after task {stage}" + (f", head {head + 1}" if len(heads) > 1 else ""), fontsize=9)
    for axes in grid[-1]:
        axes.set_xlabel("weight", fontsize=8)
    for axes in grid[:, 0]:
        axes.set_ylabel("class", fontsize=8)
    legend(figure, {**tasks, "pruned": PRUNED})
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


def _class_names(record: dict[str, Any], head: int) -> list[str]:
    """The digits of a task called 0v1; numbers elsewhere."""
    names = record["task_names"][record["spec"]["heads"].index(head)].split("v")
    classes = record["spec"]["num_classes"]
    return names if len(names) == classes else [str(number) for number in range(classes)]
