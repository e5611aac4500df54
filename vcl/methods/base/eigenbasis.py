"""Weights in the eigenbasis of a Kronecker-factored curvature, where the penalty is a sum over single numbers.

With A = Q_A diag(a) Q_Aᵀ and G = Q_G diag(g) Q_Gᵀ, the coordinates W̃ = Q_Aᵀ W Q_G turn tr(ΔWᵀ A ΔW G) into
Σ a_i g_j ΔW̃_ij². Adam, which scales every coordinate by itself, then sees the directions that the curvature tells
apart. A network of dense layers has its inputs rotated too, once for the whole fit: x̃ = [x, 1] · Q_A.
"""

import functools
from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from vcl.nets import Weights, forward, pixels
from vcl.posteriors.kronecker import Kronecker, KroneckerFactored, Spread, affine_of, rows_of, with_one
from vcl.training import Data

Rotated = tuple[Float[Array, "_ _"], ...]
"""The weights of each layer in its eigenbasis, biases included, the head's last."""


class Basis(eqx.Module):
    """The eigenvectors and eigenvalues of a layer's two factors."""

    inputs: Float[Array, "i i"]
    outputs: Float[Array, "o o"]
    input_values: Float[Array, "i"]
    output_values: Float[Array, "o"]

    def curvature(self) -> Float[Array, "i o"]:
        """a gᵀ: the curvature along each coordinate."""
        return jnp.outer(self.input_values, self.output_values)

    def rotate(self, rows: Float[Array, "i o"]) -> Float[Array, "i o"]:
        return self.inputs.T @ rows @ self.outputs

    def back(self, rotated: Float[Array, "i o"]) -> Float[Array, "i o"]:
        return self.inputs @ rotated @ self.outputs.T


@jax.jit
def bases_of(pairs: Sequence[Kronecker]) -> tuple[Basis, ...]:
    """The eigenbasis of each layer's curvature."""
    bases = []
    for pair in pairs:
        a, rows = jnp.linalg.eigh(pair.inputs)
        g, columns = jnp.linalg.eigh(pair.outputs)
        # Rounding makes an eigenvalue that is zero a little negative.
        bases.append(Basis(rows, columns, jnp.maximum(a, 0.0), jnp.maximum(g, 0.0)))
    return tuple(bases)


@jax.jit
def rotate(bases: Sequence[Basis], weights: Weights) -> Rotated:
    """W̃ = Q_Aᵀ W Q_G, for every layer."""
    return tuple(basis.rotate(rows_of(layer)) for basis, layer in zip(bases, weights.layers, strict=True))


@jax.jit
def rotate_back(bases: Sequence[Basis], rotated: Rotated, like: Weights) -> Weights:
    """W = Q_A W̃ Q_Gᵀ, for every layer."""
    return like.with_layers([affine_of(basis.back(layer)) for basis, layer in zip(bases, rotated, strict=True)])


@jax.jit
def rotated_data(bases: Sequence[Basis], weights: Weights, data: Data) -> Data:
    """The data as the rotated network reads them: of a dense network, with x̃ and a leverage of zero for inputs."""
    if weights.network.reads_images:
        return data
    inputs = with_one(pixels(data.inputs)) @ bases[0].inputs
    return Data(jnp.pad(inputs, ((0, 0), (0, 1))), data.labels, data.size, data.groups)


@functools.partial(jax.jit, donate_argnames="rotated")
def with_leverage(rotated: Data, bases: Sequence[Basis], weights: Weights, spread: Spread) -> Data:
    """`rotated_data` with the leverage xᵀ U x of every input, under this covariance of the first layer."""
    if weights.network.reads_images:
        return rotated
    turned = Spread(bases[0].inputs.T @ spread.rows @ bases[0].inputs, spread.root)
    inputs = rotated.inputs.at[:, -1].set(turned.leverage(rotated.inputs[:, :-1]))
    return Data(inputs, rotated.labels, rotated.size, rotated.groups)


def rotated_logits(
    weights: Weights,
    bases: Sequence[Basis],
    rotated: Rotated,
    inputs: Float[Array, "n d"],
    spreads: Sequence[Spread] | None = None,
    key: Key[Array, ""] | None = None,
    num_samples: int = 1,
    family: KroneckerFactored = KroneckerFactored(),  # noqa: B008 (it is a value)
) -> Float[Array, "s n c"]:
    """The network of `weights` with other, rotated weights, on `rotated_data`; with noise if there are `spreads`."""
    ready = not weights.network.reads_images

    def affine(number: int, layer: Float[Array, "i o"], h: Float[Array, "..."]) -> Float[Array, "..."]:
        basis = bases[number]
        leverage: Float[Array, "..."] | None
        if number == 0 and ready:
            turned, leverage = h[..., :-1], h[..., -1]
        else:
            full = with_one(h)
            turned = full @ basis.inputs
            leverage = None if spreads is None else spreads[number].leverage(full)
        centre = (turned @ layer) @ basis.outputs.T
        if spreads is None or key is None or leverage is None:
            return centre if number else centre[None]
        samples = None if number else num_samples
        return centre + family.draw(jax.random.fold_in(key, number), spreads[number], leverage, samples)

    return forward(weights, rotated, inputs, affine)


def pull(
    bases: Sequence[Basis], rotated: Rotated, centre: Rotated, strength: float, prior_precision: float
) -> Float[Array, ""]:
    """½ Σ (λ a gᵀ + δ) ∘ (W̃ - W̃*)²."""
    terms = [
        jnp.sum((strength * basis.curvature() + prior_precision) * (now - before) ** 2)
        for basis, now, before in zip(bases, rotated, centre, strict=True)
    ]
    return 0.5 * jnp.sum(jnp.stack(terms))
