"""Inputs as numbers, and losses on logits."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Shaped


def pixels(inputs: Shaped[Array, "n d"]) -> Float[Array, "n d"]:
    """Bytes become numbers in [0, 1]; floats stay as they are."""
    if inputs.dtype == jnp.uint8:
        return inputs.astype(jnp.float32) / 255.0
    return inputs


def cross_entropy(outputs: Float[Array, "*s n c"], labels: Int[Array, "n"]) -> Float[Array, "*s n"]:
    """-log p(y | x), for each sample and example."""
    log_probs = jax.nn.log_softmax(outputs)
    return -jnp.take_along_axis(log_probs, jnp.broadcast_to(labels, log_probs.shape[:-1])[..., None], axis=-1)[
        ..., 0
    ]


def distillation(
    outputs: Float[Array, "n heads c"],
    targets: Float[Array, "n heads c"],
    seen: Bool[Array, "heads c"],
    temperature: float,
) -> Float[Array, "n"]:
    """T² · cross-entropy between the softened answers of an old network and a new one (Hinton et al., 2015).

    The old network's probability is spread over the classes that it has seen; the new one must keep it from all
    others. The mean is taken over the heads that have seen any.
    """
    believed = jax.nn.softmax(jnp.where(seen, targets, -1e9) / temperature)
    losses = -jnp.sum(believed * jax.nn.log_softmax(outputs / temperature), axis=-1)
    heads = jnp.any(seen, axis=1)
    return temperature**2 * (losses @ heads) / jnp.maximum(jnp.sum(heads), 1)
