"""The curvature of the log likelihood at a network: the Fisher information, diagonal or Kronecker-factored.

For one example and one label, the gradient of -log p(y | x, θ) with respect to a layer's weights is the outer
product a gᵀ of the layer's input a and the gradient g at its pre-activation. Everything here is made of these two,
for each example by itself, so nothing depends on how the examples are cut into batches.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key, PyTree

from vcl.nets import Affine, Weights, forward, pixels, point
from vcl.posteriors.kronecker import Kronecker, KroneckerFactored, MatrixNormal, with_one
from vcl.training import Batch, Data, take

FisherKind = Literal["exact", "sampled", "empirical"]
BATCH = 500


def inputs_of_layers(weights: Weights, inputs: Float[Array, "n d"]) -> tuple[list[Float[Array, "n ..."]], Array]:
    """What each affine map is applied to, and the logits."""
    gathered: list[Float[Array, "n ..."]] = []

    def affine(number: int, layer: Affine, h: Float[Array, "n ..."]) -> Float[Array, "n ..."]:
        gathered.append(h)
        return point(number, layer, h)

    outputs = forward(weights, weights.layers, inputs, affine)
    return gathered, outputs


def linearised(
    weights: Weights,
    inputs: Float[Array, "n d"],
    layers: Sequence[Any] | None = None,
    affine_map: Callable[[int, Any, Float[Array, "n ..."]], Float[Array, "n ..."]] = point,
) -> tuple[Float[Array, "n c"], list[Float[Array, "n ..."]], Callable[[Float[Array, "n c"]], list[Array]]]:
    """The logits, what each affine map is applied to, and the pull-back to its pre-activations.

    The pull-back takes each example's gradient at its logits to those at the pre-activations of every map.
    `layers` and `affine_map` as in `forward`, if they are not the weights themselves.
    """
    layers = weights.layers if layers is None else layers

    def outputs_for(
        shifts: Sequence[Float[Array, "n ..."]],
    ) -> tuple[Float[Array, "n c"], list[Float[Array, "n ..."]]]:
        gathered: list[Float[Array, "n ..."]] = []

        def affine(number: int, layer: Any, h: Float[Array, "n ..."]) -> Float[Array, "n ..."]:
            gathered.append(h)
            return affine_map(number, layer, h) + shifts[number]

        return forward(weights, layers, inputs, affine), gathered

    def preactivations() -> list[Float[Array, "n ..."]]:
        found: list[Float[Array, "n ..."]] = []

        def affine(number: int, layer: Any, h: Float[Array, "n ..."]) -> Float[Array, "n ..."]:
            found.append(affine_map(number, layer, h))
            return found[-1]

        forward(weights, layers, inputs, affine)
        return found

    nothing = [jnp.zeros(a.shape, a.dtype) for a in jax.eval_shape(preactivations)]
    outputs, pull_back, gathered = jax.vjp(outputs_for, nothing, has_aux=True)
    return outputs, gathered, lambda at_logits: pull_back(at_logits)[0]


def per_place(values: Float[Array, "*n width"], examples: int) -> Float[Array, "examples places width"]:
    """Values with all places of an image on one axis; a dense layer has a single place."""
    return values.reshape(examples, -1, values.shape[-1])


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
        batch = take(data, chosen, mask)
        return jax.tree.map(jnp.add, total, function(jax.random.fold_in(key, i), batch))

    first = take(data, rows, rows < 0)
    nothing = jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), jax.eval_shape(function, key, first))
    total = jax.lax.fori_loop(0, -(-data.size // batch_size), add, nothing)
    return jax.tree.map(lambda a: a / data.size, total)


@functools.partial(jax.jit, static_argnames=("kind", "batch_size"))
def diagonal_fisher(
    key: Key[Array, ""], weights: Weights, data: Data, kind: FisherKind = "exact", batch_size: int = BATCH
) -> Weights:
    """F_i = E_x E_y [(∂ log p(y | x, θ) / ∂θ_i)²], the mean of each example's squared gradient.

    Σ_n a_n² (g_n²)ᵀ gives the squares of all weights of a layer in one product, example by example.
    """

    def squares(key: Key[Array, ""], batch: Batch) -> Weights:
        outputs, gathered, pull_back = linearised(weights, pixels(batch.inputs))
        at_logits = weighted_labels(key, kind, outputs, batch.labels) * batch.mask[:, None]
        layers = []
        for h, gradients in zip(gathered, jax.vmap(pull_back)(at_logits), strict=True):
            if h.ndim == 2:
                squared = jnp.sum(gradients**2, axis=0)
                layers.append(Affine((h**2).T @ squared, jnp.sum(squared, axis=0)))
            else:
                # A weight is used at every place of an example: its gradient is the sum, squared after that.
                a = per_place(h, len(outputs))
                g = gradients.reshape(len(gradients), *a.shape[:2], -1)
                layers.append(
                    Affine(
                        jnp.sum(jnp.einsum("npi,ynpo->ynio", a, g) ** 2, axis=(0, 1)),
                        jnp.sum(jnp.sum(g, axis=2) ** 2, axis=(0, 1)),
                    )
                )
        return weights.with_layers(layers)

    return mean_over(squares, key, data, batch_size)


@functools.partial(jax.jit, static_argnames=("kind", "batch_size", "family"))
def kronecker_factors(
    key: Key[Array, ""],
    weights: Weights,
    data: Data,
    kind: FisherKind = "exact",
    batch_size: int = BATCH,
    q: MatrixNormal | None = None,
    first: Float[Array, "i i"] | None = None,
    family: KroneckerFactored = KroneckerFactored(),  # noqa: B008 (it is a value)
) -> tuple[Kronecker, ...]:
    """E_x[a aᵀ] and E_x E_y[g gᵀ] of each layer (Martens & Grosse, 2015), the head's last.

    Their product stands for E[a aᵀ ⊗ g gᵀ]: exact for one example, and wherever a and g are independent. For a
    convolution A sums over the places of an image and G is the mean over them (Grosse & Martens, 2016).

    With a posterior `q` around the weights these are expectations under it too, with one draw for each example.
    `first` is the first layer's E[a aᵀ] where it is known already: it does not depend on the weights.
    """

    def noisy(key: Key[Array, ""]) -> Callable[[int, Any, Float[Array, "n ..."]], Float[Array, "n ..."]]:
        return lambda number, layer, h: family.preactivation(jax.random.fold_in(key, number), layer, h, None)

    def products(key: Key[Array, ""], batch: Batch) -> tuple[Kronecker, ...]:
        layers = None if q is None else family.layers(q)
        affine = point if q is None else noisy(jax.random.fold_in(key, 1))
        outputs, gathered, pull_back = linearised(weights, pixels(batch.inputs), layers, affine)
        at_logits = weighted_labels(key, kind, outputs, batch.labels) * batch.mask[:, None]
        pairs: list[Kronecker] = []
        for h, gradients in zip(gathered, jax.vmap(pull_back)(at_logits), strict=True):
            a = per_place(h, len(outputs))
            a = with_one(a) * batch.mask[:, None, None]
            a = a.reshape(-1, a.shape[-1])
            g = gradients.reshape(-1, gradients.shape[-1])
            places = len(a) // len(outputs)
            known = first is not None and not pairs
            pairs.append(Kronecker(jnp.zeros((0, 0)) if known else a.T @ a, g.T @ g / places))
        return tuple(pairs)

    found = mean_over(products, key, data, batch_size)
    return found if first is None else (Kronecker(first, found[0].outputs), *found[1:])
