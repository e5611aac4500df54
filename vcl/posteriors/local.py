"""Local reparameterisation (Kingma et al., 2015), for every posterior family: pre-activations are sampled."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jaxtyping import Array, Float, Key

from vcl.nets import Weights, forward

After = Callable[[int, Float[Array, "..."]], Float[Array, "..."]]


def unchanged(number: int, a: Float[Array, "..."]) -> Float[Array, "..."]:
    return a


def sampled_pass(
    family: Any,
    key: Key[Array, ""],
    network: Weights,
    layers: Sequence[Any],
    inputs: Float[Array, "n d"],
    num_samples: int,
    after: After,
) -> Float[Array, "s n c"]:
    """One forward pass with a draw of every pre-activation."""
    keys = jax.random.split(key, len(layers))

    def affine(number: int, layer: Any, h: Float[Array, "..."]) -> Float[Array, "..."]:
        return after(number, family.preactivation(keys[number], layer, h, None if number else num_samples))

    return forward(network, layers, inputs, affine)


def local_logits(
    family: Any,
    key: Key[Array, ""],
    q: Any,
    inputs: Float[Array, "n d"],
    num_samples: int,
    after: After = unchanged,
    one_pass: Callable[..., Float[Array, "s n c"]] = sampled_pass,
) -> Float[Array, "s n c"]:
    """Logits under draws of the pre-activations, independent for each example; `family` is a `Family`.

    The first layer's products do not depend on the sample: they are computed once, then broadcast. Images take too
    much memory for that: their samples are drawn one after the other. `after(number, a)` is applied to the
    pre-activation of every map.
    """
    if family.network(q).network.reads_images and num_samples > 1:
        one = jax.checkpoint(lambda k: local_logits(family, k, q, inputs, 1, after, one_pass)[0])
        return jax.lax.map(one, jax.random.split(key, num_samples))
    return one_pass(family, key, family.network(q), family.layers(q), inputs, num_samples, after)
