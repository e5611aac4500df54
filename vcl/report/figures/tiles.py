"""Units as small images of their incoming weights, many of them on one set of axes."""

from typing import Any

import numpy as np
from jaxtyping import Float, Int
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm, Normalize
from matplotlib.image import AxesImage
from matplotlib.patches import Rectangle

from vcl.report.figures.drawing import CHANNELS, MEANS, VARIANCES, bare
from vcl.report.figures.units import Subject, incoming
from vcl.report.images import Tile, mosaic

CLIPPED = 0.5
"""The percentage of weights that may lie beyond the ends of a colour scale."""


def show_means(
    axes: Axes,
    means: Float[np.ndarray, "u i"],
    tile: Tile,
    columns: int,
    norm: Normalize,
    frames: dict[int, Any],
) -> AxesImage:
    """Each unit's means: in the colours of the input where it has colours, else by their sign and size."""
    if tile.is_colour:
        return _show(axes, tile.colours(means, norm.vmax or 1.0), columns, norm, CHANNELS, frames)
    return _show(axes, tile.scalars(means), columns, norm, MEANS, frames)


def show_variances(
    axes: Axes,
    variances: Float[np.ndarray, "u i"],
    tile: Tile,
    columns: int,
    norm: Normalize,
    frames: dict[int, Any],
) -> AxesImage:
    """Each unit's variances; of an input with channels, the mean over them."""
    return _show(axes, tile.scalars(variances), columns, norm, VARIANCES, frames)


def _show(
    axes: Axes,
    tiles: Float[np.ndarray, "u h w *c"],
    columns: int,
    norm: Normalize,
    cmap: str,
    frames: dict[int, Any],
) -> AxesImage:
    """Tiles as one image; `frames` has the colours of those units that are to have a frame."""
    height, width = tiles.shape[1:3]
    gap = max(1, width // 12)
    picture = mosaic(tiles, columns, gap)
    if picture.ndim == 3:
        # Colours have no value that stands for nothing: what is not there is transparent.
        there = np.isfinite(picture[..., :1])
        picture = np.concatenate([np.where(there, picture, 1.0), there], axis=-1)
    # Every weight stays one square, at any size.
    image = axes.imshow(picture, cmap=cmap, norm=norm, interpolation="none")
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
    """Symmetric: zero is in the middle."""
    end = float(np.percentile(np.abs(weights), 100 - CLIPPED)) or 1.0
    return Normalize(-end, end)


def variance_scale(variances: Float[np.ndarray, "..."]) -> Normalize:
    """Logarithmic: data make some variances a hundred times smaller than the prior's."""
    there = variances[variances > 0]
    low, high = np.percentile(there, [CLIPPED, 100 - CLIPPED]) if there.size else (0.5, 1.0)
    return LogNorm(min(low, 0.5 * high), high)


def scales(subject: Subject, layer: int, units: Int[np.ndarray, "k"]) -> tuple[Normalize, Normalize]:
    """One scale for the means and one for the variances of some units, the same after every task."""
    analysis, tile = subject.analysis, subject.tile(layer)
    both = [incoming(analysis, stage, layer) for stage in range(1, analysis.num_tasks + 1)]
    means, variances = (np.stack([of[units] for of in kind]) for kind in zip(*both, strict=True))
    return mean_scale(tile.shown(means)), variance_scale(tile.grey(variances))


def labels(tile: Tile) -> tuple[str, str]:
    """What the scales of means and variances are called."""
    return "mean, in each channel" if tile.is_colour else "mean", "variance"


def about(tile: Tile, kind: str) -> str:
    """How to read tiles of `kind`, means or variances, of inputs that are more than one grey plane; else nothing."""
    if tile.channels == 1:
        return ""
    if kind == "means" and tile.is_colour:
        return "Means are in the input's colours: grey is 0, a brighter channel is positive, a darker one negative."
    return f"{kind.capitalize()} are averaged over the input's {tile.channels} channels."
