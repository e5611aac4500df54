"""Layers as values: what a unit reads, without its weights.

Every layer with weights computes the same affine map, gathered inputs · weight + bias, over its last axis. What it
gathers makes the difference: a dense layer takes its inputs as they are, a convolution takes the patch around each
place of an image. So point weights, sampled weights, local reparameterisation and curvature are written once, for
all layers. Images have axes (rows, columns, channels), after any number of leading axes.
"""

import functools
import math
from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from vcl.errors import VclError

Shape = tuple[int, ...]
Activation = Literal["relu", "linear"]


@runtime_checkable
class Layer(Protocol):
    """A frozen dataclass. Layers with weights are followed by a ReLU, unless their `activation` is "linear".

    Examples
    --------
    A layer of one's own, average pooling:

    >>> @dataclass(frozen=True)
    ... class MeanPool:
    ...     size: int = 2
    ...     num_axes: ClassVar[int] = 3
    ...     units: ClassVar[int | None] = None
    ...
    ...     def gathered_shape(self, shape):
    ...         return Pool(self.size).gathered_shape(shape)
    ...
    ...     def gather(self, h):
    ...         return windows(h, self.size).mean(axis=(-4, -2))
    >>> MeanPool().gather(jnp.ones((5, 8, 8, 3))).shape
    (5, 4, 4, 3)
    """

    @property
    def num_axes(self) -> int:
        """How many axes an example has that this layer reads: 1 for vectors, 3 for images."""

    @property
    def units(self) -> int | None:
        """How many outputs its affine map has; None for a layer without weights."""

    def gathered_shape(self, shape: Shape) -> Shape:
        """The shape of what `gather` gives for one example of this shape."""

    def gather(self, h: Float[Array, "..."]) -> Float[Array, "..."]:
        """What the affine map is applied to; for a layer without weights, the layer's output."""


def is_linear(layer: Layer) -> bool:
    """Whether a layer with weights has no ReLU."""
    return getattr(layer, "activation", "relu") == "linear"


def activated(layer: Layer, a: Float[Array, "*s"]) -> Float[Array, "*s"]:
    """The outputs of a layer with weights, from its pre-activations.

    >>> activated(Dense(2), jnp.array([-1.0, 1.0])), activated(Dense(2, "linear"), jnp.array([-1.0, 1.0]))
    (Array([0., 1.], dtype=float32), Array([-1.,  1.], dtype=float32))
    """
    return a if is_linear(layer) else jax.nn.relu(a)


@dataclass(frozen=True)
class Dense:
    """Each unit reads the whole vector.

    >>> Dense(100).gathered_shape((784,))
    (784,)
    """

    units: int
    activation: Activation = "relu"
    num_axes: ClassVar[int] = 1

    def gathered_shape(self, shape: Shape) -> Shape:
        return shape

    def gather(self, h: Float[Array, "..."]) -> Float[Array, "..."]:
        return h


@dataclass(frozen=True)
class Conv:
    """Each unit, a channel, reads a square patch around each place; the image is padded with zeros.

    >>> Conv(16, kernel=3).gathered_shape((32, 32, 3))
    (32, 32, 27)
    """

    units: int
    kernel: int = 3
    stride: int = 1
    num_axes: ClassVar[int] = 3

    def __post_init__(self) -> None:
        if self.kernel < 1 or self.stride < 1:
            raise VclError(f"A convolution needs a kernel and a stride of at least 1, but it is {self}.")

    def gathered_shape(self, shape: Shape) -> Shape:
        rows, columns, channels = shape
        return -(-rows // self.stride), -(-columns // self.stride), self.kernel**2 * channels

    def gather(self, h: Float[Array, "..."]) -> Float[Array, "..."]:
        rows, columns, _ = self.gathered_shape(h.shape[-3:])
        k, s = self.kernel, self.stride
        down, right = (rows - 1) * s + 1, (columns - 1) * s + 1
        pads = [max((n - 1) * s + k - size, 0) for n, size in ((rows, h.shape[-3]), (columns, h.shape[-2]))]
        padded = jnp.pad(h, [(0, 0)] * (h.ndim - 3) + [(p // 2, p - p // 2) for p in pads] + [(0, 0)])
        return jnp.concatenate(
            [padded[..., i : i + down : s, j : j + right : s, :] for i in range(k) for j in range(k)], axis=-1
        )


@dataclass(frozen=True)
class Pool:
    """The largest value in each square of places; rows and columns that do not fill a square are dropped.

    >>> Pool(2).gathered_shape((28, 28, 16))
    (14, 14, 16)
    """

    size: int = 2
    num_axes: ClassVar[int] = 3
    units: ClassVar[int | None] = None

    def gathered_shape(self, shape: Shape) -> Shape:
        rows, columns, channels = shape
        if min(rows, columns) < self.size:
            raise VclError(
                f"Pooling by {self.size} does not fit an image of {rows} × {columns}. Use fewer or smaller layers."
            )
        return rows // self.size, columns // self.size, channels

    def gather(self, h: Float[Array, "..."]) -> Float[Array, "..."]:
        return functools.reduce(larger, places_of(windows(h, self.size)))


def windows(h: Float[Array, "..."], size: int) -> Float[Array, "..."]:
    """Squares of `size` × `size` places, as axes -4 and -2 of (…, rows, size, columns, size, channels)."""
    rows, columns = h.shape[-3] // size, h.shape[-2] // size
    whole = h[..., : rows * size, : columns * size, :]
    return whole.reshape(*h.shape[:-3], rows, size, columns, size, h.shape[-1])


def places_of(squares: Float[Array, "*n rows s columns s c"]) -> list[Float[Array, "*n rows columns c"]]:
    """The first place of every square, the second, and so on."""
    numbers = range(squares.shape[-2])
    return [squares[..., row, :, column, :] for row in numbers for column in numbers]


def larger(a: Float[Array, "*s"], b: Float[Array, "*s"]) -> Float[Array, "*s"]:
    """The larger of two, or NaN if one is; the gradient goes to one of them.

    That of `max` goes to the numbers that equal it, and is 0/0 where a compiler computes them twice and rounds
    differently.
    """
    return jnp.where((a >= b) | jnp.isnan(a), a, b)


@dataclass(frozen=True)
class Flatten:
    """Images become vectors.

    >>> Flatten().gathered_shape((7, 7, 16))
    (784,)
    """

    num_axes: ClassVar[int] = 3
    units: ClassVar[int | None] = None

    def gathered_shape(self, shape: Shape) -> Shape:
        return (math.prod(shape),)

    def gather(self, h: Float[Array, "..."]) -> Float[Array, "..."]:
        return h.reshape(*h.shape[:-3], math.prod(h.shape[-3:]))
