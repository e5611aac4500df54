"""Networks as values, their weights, and the one forward pass.

A `Network` says which layers there are. Its `Weights` are a pytree: a body that all tasks share and a head, or
several heads stacked. The same structure holds the weights of a point network, the means of a Bayesian one, and its
log-variances.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from vcl.core import StreamSpec
from vcl.errors import VclError
from vcl.nets.layers import Activation, Conv, Dense, Flatten, Layer, Pool, Shape, activated

Layered = TypeVar("Layered")


@dataclass(frozen=True)
class Network:
    """Hidden layers, from the inputs up. The output layer, a head for each task, comes on top of them.

    Examples
    --------
    >>> from vcl.nets import Conv, Dense, Flatten, Network, Pool
    >>> small = Network((Conv(8, kernel=5, stride=2), Pool(2), Flatten(), Dense(32)))
    >>> small.widths((28, 28))
    ((25, 8), (392, 32))
    """

    layers: tuple[Layer, ...]

    def __post_init__(self) -> None:
        for layer in self.layers:
            if layer.units is not None and layer.units < 1:
                raise VclError(f"Every layer needs at least one unit, but one is {layer}.")

    @property
    def reads_images(self) -> bool:
        return bool(self.layers) and self.layers[0].num_axes == 3

    @property
    def is_dense(self) -> bool:
        """Whether it is a multi-layer perceptron."""
        return all(isinstance(layer, Dense) for layer in self.layers)

    def shapes(self, input_shape: Shape) -> tuple[Shape, ...]:
        """What each layer gathers of one example, and last what the head reads."""
        shape = image_shape(input_shape) if self.reads_images else (math.prod(input_shape),)
        gathered = []
        for layer in self.layers:
            if len(shape) != layer.num_axes:
                raise VclError(
                    f"The layer {layer} reads examples with {layer.num_axes} axes, but is given {shape}. "
                    "Put Flatten() between convolutions and dense layers."
                )
            shape = layer.gathered_shape(shape)
            gathered.append(shape)
            if layer.units is not None:
                shape = (*shape[:-1], layer.units)
        if len(shape) != 1:
            raise VclError(f"The head reads vectors, but the last layer gives {shape}. End with Flatten().")
        return (*gathered, shape)

    def widths(self, input_shape: Shape) -> tuple[tuple[int, int], ...]:
        """The inputs and outputs of each affine map below the head."""
        shapes = self.shapes(input_shape)
        return tuple(
            (shape[-1], layer.units)
            for layer, shape in zip(self.layers, shapes, strict=False)
            if layer.units is not None
        )

    def num_features(self, input_shape: Shape) -> int:
        """How many numbers the head reads."""
        return self.shapes(input_shape)[-1][0]


def MLP(hidden: Sequence[int], last: Activation = "relu") -> Network:
    """Dense layers of these widths; `last` is the activation of the last one.

    >>> MLP((100, 100)).widths((28, 28))
    ((784, 100), (100, 100))
    """
    below = tuple(Dense(units) for units in hidden[:-1])
    return Network((*below, *(Dense(units, last) for units in hidden[-1:])))


def ConvNet(channels: Sequence[int], hidden: Sequence[int]) -> Network:
    """Convolutions of 3 × 3, each followed by pooling by 2, then dense layers.

    >>> ConvNet((16, 32), (64,)).widths((3, 32, 32))
    ((27, 16), (144, 32), (2048, 64))
    """
    convolutions = [layer for units in channels for layer in (Conv(units), Pool(2))]
    return Network((*convolutions, Flatten(), *MLP(hidden).layers))


def image_shape(input_shape: Shape) -> Shape:
    """(rows, columns, channels) of inputs that come as (rows, columns) or (channels, rows, columns)."""
    if len(input_shape) == 2:
        return (*input_shape, 1)
    if len(input_shape) == 3:
        return (*input_shape[1:], input_shape[0])
    raise VclError(
        f"A convolution needs images, of shape (rows, columns) or (channels, rows, columns), but the inputs have "
        f"shape {input_shape}. Use a network of dense layers."
    )


LAYERS = {kind.__name__: kind for kind in (Dense, Conv, Pool, Flatten)}


def to_json(network: Network) -> list[dict[str, Any]]:
    """The layers as JSON has them. Layers of one's own cannot be written: loading must never run code.

    >>> to_json(MLP((10,)))
    [{'layer': 'Dense', 'units': 10, 'activation': 'relu'}]
    """
    if unknown := [layer for layer in network.layers if type(layer) not in LAYERS.values()]:
        raise VclError(
            f"The layer {unknown[0]} is not one of vcl's ({', '.join(LAYERS)}), so it cannot be written to a file. "
            "Hand the learner to Model.load yourself: vcl.Model.load(path, method=learner)."
        )
    return [{"layer": type(layer).__name__, **dataclasses.asdict(layer)} for layer in network.layers]  # type: ignore[call-overload]


def from_json(layers: Sequence[dict[str, Any]]) -> Network:
    """Read back what `to_json` wrote.

    >>> from_json([{"layer": "Dense", "units": 10}]) == MLP((10,))
    True
    """
    try:
        return Network(
            tuple(LAYERS[layer["layer"]](**{k: v for k, v in layer.items() if k != "layer"}) for layer in layers)
        )
    except (KeyError, TypeError) as error:
        raise VclError(f"This is not the description of a network ({error!r}): {layers}.") from None


class Affine(eqx.Module):
    """x ↦ x · weight + bias."""

    weight: Float[Array, "*heads i o"]
    bias: Float[Array, "*heads o"]


class Weights(eqx.Module):
    """The affine maps of a network: those shared by all tasks, and the head, stacked in a state, single in use."""

    body: tuple[Affine, ...]
    head: Affine
    network: Network = eqx.field(static=True)
    input_shape: Shape = eqx.field(static=True)

    @property
    def layers(self) -> tuple[Affine, ...]:
        """The affine maps from the inputs up, the head's last."""
        return (*self.body, self.head)

    def with_layers(self, layers: Sequence[Affine]) -> "Weights":
        """The same network with other affine maps."""
        return dataclasses.replace(self, body=tuple(layers[:-1]), head=layers[-1])


@functools.partial(jax.jit, static_argnames=("network", "spec"))
def zeros(network: Network, spec: StreamSpec) -> Weights:
    """Weights of the right shapes, all heads stacked."""
    body = tuple(Affine(jnp.zeros((i, o)), jnp.zeros(o)) for i, o in network.widths(spec.input_shape))
    heads, classes = spec.num_heads, spec.num_classes
    features = network.num_features(spec.input_shape)
    head = Affine(jnp.zeros((heads, features, classes)), jnp.zeros((heads, classes)))
    return Weights(body, head, network, spec.input_shape if network.reads_images else (spec.input_size,))


def from_layers(layers: Sequence[Affine], like: Network | None = None) -> Weights:
    """A network of dense layers with these affine maps, the head's last; with the activations of `like`."""
    widths = [layer.bias.shape[-1] for layer in layers[:-1]]
    kinds = like.layers if like else MLP(widths).layers
    network = Network(tuple(dataclasses.replace(k, units=n) for k, n in zip(kinds, widths, strict=True)))  # type: ignore[type-var]
    return Weights(tuple(layers[:-1]), layers[-1], network, (layers[0].weight.shape[-2],))


def random(key: Key[Array, ""], network: Network, spec: StreamSpec) -> Weights:
    """Where point networks begin: weights N(0, 2 / inputs) (He et al., 2015), biases zero."""
    return random_like(key, zeros(network, spec))


def random_like(key: Key[Array, ""], weights: Weights) -> Weights:
    """New weights N(0, 2 / inputs) and biases zero, of the same shapes."""
    keys = jax.random.split(key, len(weights.layers))
    return weights.with_layers(
        [
            Affine(
                jax.random.normal(k, layer.weight.shape) * jnp.sqrt(2.0 / layer.weight.shape[-2]),
                jnp.zeros_like(layer.bias),
            )
            for k, layer in zip(keys, weights.layers, strict=True)
        ]
    )


def forward(
    weights: Weights,
    layers: Sequence[Layered],
    inputs: Float[Array, "n d"],
    affine: Callable[[int, Layered, Float[Array, "..."]], Float[Array, "..."]],
) -> Float[Array, "*s n c"]:
    """The forward pass of the network of `weights`, for anything that can stand for its affine maps.

    `affine(number, layer, h)` gives the pre-activation of map `number` for gathered inputs `h`, where `layer` is the
    entry of `layers` for it: point weights, means and variances, masked weights. The last is the head's.
    """
    h: Any = as_images(inputs, weights.input_shape) if weights.network.reads_images else inputs
    number = 0
    for layer in weights.network.layers:
        h = layer.gather(h)
        if layer.units is not None:
            h = activated(layer, affine(number, layers[number], h))
            number += 1
    return affine(number, layers[number], h)


def point(number: int, layer: Affine, h: Float[Array, "..."]) -> Float[Array, "..."]:
    """The affine map at one setting of its weights."""
    return product(h, layer.weight) + layer.bias


def product(h: Float[Array, "*s i"], weight: Float[Array, "i o"]) -> Float[Array, "*s o"]:
    """h · weight, as a product of two matrices whatever the leading axes of `h`.

    The gradient for `weight` sums over the leading axes; over more than one of them XLA sums by way of transposed
    copies.

    >>> product(jnp.ones((2, 3, 4)), jnp.ones((4, 5))).shape
    (2, 3, 5)
    """
    return (h.reshape(-1, h.shape[-1]) @ weight).reshape(*h.shape[:-1], weight.shape[-1])


def as_images(inputs: Float[Array, "n d"], input_shape: Shape) -> Float[Array, "n rows columns channels"]:
    """Rows of numbers as images, with their channels last."""
    images = inputs.reshape(len(inputs), *input_shape)
    return images[..., None] if len(input_shape) == 2 else jnp.moveaxis(images, 1, -1)


def features(weights: Weights, inputs: Float[Array, "n d"]) -> Float[Array, "n f"]:
    """The top hidden layer: what the head reads."""
    return forward(weights, (*weights.body, None), inputs, lambda n, layer, h: point(n, layer, h) if layer else h)


def logits(weights: Weights, inputs: Float[Array, "n d"]) -> Float[Array, "n c"]:
    """The network at one setting of its weights."""
    return forward(weights, weights.layers, inputs, point)
