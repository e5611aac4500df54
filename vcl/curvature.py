"""The curvature of the log likelihood at a network: the Fisher information, diagonal or Kronecker-factored.

For one example and one label, the gradient of -log p(y | x, θ) with respect to a layer's weights is the outer
product a gᵀ of the layer's input a and the gradient g at its pre-activation. Everything here is made of these two,
for each example by itself, so nothing depends on how the examples are cut into batches.
"""

import functools
from collections.abc import Callable
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key, PyTree

from vcl.networks import MLP, Dense, pixels
from vcl.training import Batch, Data

FisherKind = Literal["exact", "sampled", "empirical"]
BATCH = 500


def inputs_of_layers(network: MLP, inputs: Float[Array, "n d"]) -> tuple[list[Float[Array, "n _"]], Array]:
    """What goes into each layer, and the logits."""
    entering = [inputs]
    for layer in network.body:
        entering.append(jax.nn.relu(entering[-1] @ layer.weight + layer.bias))
    return entering, entering[-1] @ network.head.weight + network.head.bias


def gradients_of_layers(
    network: MLP, entering: list[Float[Array, "n _"]], at_logits: Float[Array, "n c"]
) -> list[Float[Array, "n _"]]:
    """Each example's gradient at the pre-activations of each layer, given the one at its logits."""
    leaving = [at_logits]
    for layer, h in zip([*network.body, network.head][:0:-1], entering[:0:-1], strict=True):
        leaving.append((leaving[-1] @ layer.weight.T) * (h > 0))
    return leaving[::-1]


def weighted_labels(
    key: Key[Array, ""], kind: FisherKind, logits: Float[Array, "n c"], labels: Int[Array, "n"]
) -> Float[Array, "c n c"]:
    """Scaled gradients at the logits whose squares sum over the first axis to the expectation over labels.

    √w_y (p - e_y), where w is the model's own p(y | x) (exact), a draw from it (sampled), or the truth (empirical).
    """
    p = jax.nn.softmax(logits)
    classes = logits.shape[1]
    if kind == "exact":
        weights = p
    else:
        chosen = jax.random.categorical(key, logits) if kind == "sampled" else labels
        weights = jax.nn.one_hot(chosen, classes)
    errors = p[None] - jnp.eye(classes)[:, None, :]
    return jnp.sqrt(weights.T)[:, :, None] * errors


def mean_over(
    function: Callable[[Key[Array, ""], Batch], PyTree], key: Key[Array, ""], data: Data, batch_size: int
) -> PyTree:
    """The mean over all examples of what `function` sums over a minibatch (rows that fill it up are masked)."""
    batch_size = min(batch_size, data.capacity)
    rows = jnp.arange(batch_size)

    def add(i: Int[Array, ""], total: PyTree) -> PyTree:
        chosen = jnp.minimum(i * batch_size + rows, data.capacity - 1)
        mask = i * batch_size + rows < data.size
        batch = Batch(data.inputs[chosen], data.labels[chosen], mask, data.size)
        return jax.tree.map(jnp.add, total, function(jax.random.fold_in(key, i), batch))

    first = Batch(data.inputs[:batch_size], data.labels[:batch_size], rows < 0, data.size)
    nothing = jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), jax.eval_shape(function, key, first))
    total = jax.lax.fori_loop(0, -(-data.size // batch_size), add, nothing)
    return jax.tree.map(lambda a: a / data.size, total)


@functools.partial(jax.jit, static_argnames=("kind", "batch_size"))
def diagonal_fisher(
    key: Key[Array, ""], network: MLP, data: Data, kind: FisherKind = "exact", batch_size: int = BATCH
) -> MLP:
    """F_i = E_x E_y [(∂ log p(y | x, θ) / ∂θ_i)²], the mean of each example's squared gradient.

    Σ_n a_n² (g_n²)ᵀ gives the squares of all weights of a layer in one product, example by example.
    """

    def squares(key: Key[Array, ""], batch: Batch) -> MLP:
        entering, outputs = inputs_of_layers(network, pixels(batch.inputs))
        at_logits = weighted_labels(key, kind, outputs, batch.labels) * batch.mask[:, None]
        layers = []
        for layer_inputs, gradients in zip(
            entering,
            jax.vmap(lambda one: gradients_of_layers(network, entering, one))(at_logits),
            strict=True,
        ):
            squared = jnp.sum(gradients**2, axis=0)
            layers.append(Dense((layer_inputs**2).T @ squared, jnp.sum(squared, axis=0)))
        return MLP(tuple(layers[:-1]), layers[-1])

    return mean_over(squares, key, data, batch_size)


class Kronecker(eqx.Module):
    """A layer's curvature A ⊗ G. Its bias is the last row of its weights, with an input that is always 1."""

    inputs: Float[Array, "*pairs i i"]
    """A = E[a aᵀ]."""
    outputs: Float[Array, "*pairs o o"]
    """G = E[g gᵀ]."""


@functools.partial(jax.jit, static_argnames=("kind", "batch_size"))
def kronecker_factors(
    key: Key[Array, ""], network: MLP, data: Data, kind: FisherKind = "exact", batch_size: int = BATCH
) -> tuple[Kronecker, ...]:
    """E_x[a aᵀ] and E_x E_y[g gᵀ] of each layer (Martens & Grosse, 2015), the head's last.

    Their product stands for E[a aᵀ ⊗ g gᵀ]: exact for one example, and wherever a and g are independent.
    """

    def products(key: Key[Array, ""], batch: Batch) -> tuple[Kronecker, ...]:
        entering, outputs = inputs_of_layers(network, pixels(batch.inputs))
        at_logits = weighted_labels(key, kind, outputs, batch.labels) * batch.mask[:, None]
        leaving = jax.vmap(lambda one: gradients_of_layers(network, entering, one))(at_logits)
        ones = jnp.ones((*batch.mask.shape, 1), outputs.dtype)
        with_bias = [jnp.concatenate([a, ones], axis=1) * batch.mask[:, None] for a in entering]
        return tuple(
            Kronecker(a.T @ a, jnp.einsum("yno,ynp->op", g, g)) for a, g in zip(with_bias, leaving, strict=True)
        )

    return mean_over(products, key, data, batch_size)
