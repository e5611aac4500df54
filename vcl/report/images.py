"""Weights as images: the one place that knows how the numbers of an input are arranged on paper and on screen.

Inputs are flattened in C order. An input of shape (rows, columns) is a grey image, one of (channels, rows, columns)
has a plane for each channel, and one of a single axis, such as the features of a table or the units of the layer
below, is no image: its numbers fill the rows of a near-square grid, one after the other.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

COLOURS = 3
"""Channels of a colour image: red, green, blue."""


@dataclass(frozen=True)
class Tile:
    """How one input, or one unit's weights from it, is drawn.

    Examples
    --------
    >>> Tile.of((3, 32, 32))
    Tile(channels=3, rows=32, columns=32, size=3072)
    >>> Tile.of((54,))
    Tile(channels=1, rows=7, columns=8, size=54)
    """

    channels: int
    rows: int
    columns: int
    size: int
    """Numbers in all channels together; the last row of a grid may have room for more."""

    @staticmethod
    def of(shape: Sequence[int]) -> "Tile":
        """The tile for inputs of this shape."""
        if len(shape) >= 2:
            return Tile(math.prod(shape[:-2]), shape[-2], shape[-1], math.prod(shape))
        size = math.prod(shape)
        columns = max(1, math.ceil(math.sqrt(size)))
        return Tile(1, math.ceil(size / columns), columns, size)

    @property
    def is_colour(self) -> bool:
        return self.channels == COLOURS

    def grey(self, values: Float[np.ndarray, "*s d"]) -> Float[np.ndarray, "*s n"]:
        """One number for each place: the mean over channels."""
        return values.reshape(*values.shape[:-1], self.channels, -1).mean(axis=-2)

    def shown(self, values: Float[np.ndarray, "*s d"]) -> Float[np.ndarray, "*s n"]:
        """What is shown of signed numbers: all channels, one after the other, of a colour image; else their mean."""
        return values if self.is_colour else self.grey(values)

    def scalars(self, values: Float[np.ndarray, "*s d"]) -> Float[np.ndarray, "*s h w"]:
        """Images of one number for each place; NaN where a grid has more places than there are numbers."""
        grey = self.grey(values)
        missing = self.rows * self.columns - grey.shape[-1]
        padded = np.pad(grey, [(0, 0)] * (grey.ndim - 1) + [(0, missing)], constant_values=np.nan)
        return padded.reshape(*values.shape[:-1], self.rows, self.columns)

    def colours(self, values: Float[np.ndarray, "*s d"], end: float) -> Float[np.ndarray, "*s h w 3"]:
        """Signed numbers as red, green and blue between 0 and 1: grey is zero, `-end` dark, `end` bright."""
        planes = values.reshape(*values.shape[:-1], COLOURS, self.rows, self.columns)
        return np.moveaxis(np.clip(0.5 + 0.5 * planes / end, 0.0, 1.0), -3, -1)


def mosaic(tiles: Float[np.ndarray, "u h w *c"], columns: int, gap: int) -> Float[np.ndarray, "y x *c"]:
    """Images side by side in rows, with nothing (NaN) in between."""
    units, height, width, *channels = tiles.shape
    rows = math.ceil(units / columns)
    image = np.full((rows * (height + gap) - gap, columns * (width + gap) - gap, *channels), np.nan, np.float32)
    for number, tile in enumerate(tiles):
        top, left = number // columns * (height + gap), number % columns * (width + gap)
        image[top : top + height, left : left + width] = tile
    return image
