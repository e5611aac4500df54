"""Matrix-normal posteriors: the weights of a layer covary, by a factor of its inputs and one of its outputs.

The precision of such a posterior is that of the prior plus the curvature of the data, Λ = A ⊗ G + δ I, where A sums
a aᵀ over a layer's inputs and G averages g gᵀ over the gradients at its outputs. The bias is the last row of a
layer's weights, with an input that is always 1.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from vcl.nets import Affine, Weights, product
from vcl.noise import Generator, normal
from vcl.posteriors.local import local_logits
from vcl.posteriors.mean_field import Gaussian


class Kronecker(eqx.Module):
    """A layer's curvature A ⊗ G. Its bias is the last row of its weights, with an input that is always 1."""

    inputs: Float[Array, "*pairs i i"]
    """A = E[a aᵀ]."""
    outputs: Float[Array, "*pairs o o"]
    """G = E[g gᵀ]."""


def empty_pairs(layer: Affine, *stack: int) -> Kronecker:
    """No curvature, for the weights of one layer."""
    inputs, outputs = layer.weight.shape[-2:]
    return Kronecker(jnp.zeros((*stack, inputs + 1, inputs + 1)), jnp.zeros((*stack, outputs, outputs)))


def merge(old: Kronecker, new: Kronecker) -> Kronecker:
    """One pair for the sum of two: c (A + π A_t) ⊗ (G + G_t / π); the new pair itself if there was none.

    π = √(tr A · tr G_t / (tr A_t · tr G)), and c preserves the trace of the sum.
    """
    sizes = jnp.array([[jnp.trace(factor) for factor in (pair.inputs, pair.outputs)] for pair in (old, new)])
    (a, g), (new_a, new_g) = sizes
    pi = jnp.sqrt(divide(a * new_g, new_a * g))
    scale = divide(a * g + new_a * new_g, (a + pi * new_a) * (g + new_g / pi))
    return Kronecker(scale * (old.inputs + pi * new.inputs), old.outputs + new.outputs / pi)


def nearest(old: Kronecker, new: Kronecker) -> Kronecker:
    """The Kronecker product nearest to the sum of two (in the Frobenius norm), scaled to the trace of the sum.

    It is exact where the pairs share one of their factors, and the new pair itself if there was none. The best
    rank-one fit to A ⊗ G + A_t ⊗ G_t has factors x_1 A + x_2 A_t and y_1 G + y_2 G_t (Van Loan & Pitsianis, 1993):
    x is the leading eigenvector of a matrix without negative entries, so the factors are positive semi-definite.
    """
    traces = jnp.array([[jnp.trace(factor) for factor in (pair.inputs, pair.outputs)] for pair in (old, new)])
    sizes = traces[:, 0] * traces[:, 1]
    inputs, outputs = (
        [divide(jnp.ones(()), traces[k, side]) * factor for k, factor in enumerate(factors)]
        for side, factors in enumerate([(old.inputs, new.inputs), (old.outputs, new.outputs)])
    )
    shares = sizes * divide(jnp.ones(()), jnp.max(sizes))
    x = leading(shares[:, None] * inner_products(outputs) * shares @ inner_products(inputs))
    y = shares * (inner_products(inputs) @ x)
    scale = jnp.sum(sizes) * divide(jnp.ones(()), jnp.sum(x) * jnp.sum(y))
    return Kronecker(scale * (x[0] * inputs[0] + x[1] * inputs[1]), y[0] * outputs[0] + y[1] * outputs[1])


def inner_products(matrices: Sequence[Float[Array, "n n"]]) -> Float[Array, "k k"]:
    """⟨M_i, M_j⟩ = tr(M_iᵀ M_j)."""
    return jnp.array([[jnp.sum(a * b) for b in matrices] for a in matrices])


def leading(matrix: Float[Array, "2 2"]) -> Float[Array, "2"]:
    """The eigenvector of the larger eigenvalue of a matrix without negative entries: it has none either."""
    (p, q), (r, s) = matrix
    largest = 0.5 * (p + s) + jnp.sqrt(0.25 * (p - s) ** 2 + q * r)
    # Both (q, λ - p) and (λ - s, r) are eigenvectors, or zero: at least one of them is not.
    return jnp.maximum(jnp.array([q + largest - s, largest - p + r]), 0.0)


def divide(numerator: Float[Array, ""], denominator: Float[Array, ""]) -> Float[Array, ""]:
    """The quotient of two sizes; 1 where one of them is zero."""
    proper = (numerator > 0) & (denominator > 0)
    return jnp.where(proper, numerator / jnp.where(proper, denominator, 1.0), 1.0)


def rows_of(layer: Affine) -> Float[Array, "i o"]:
    """A layer's weights with its bias as the last row."""
    return jnp.concatenate([layer.weight, layer.bias[None]])


def affine_of(rows: Float[Array, "i o"]) -> Affine:
    """What `rows_of` put together."""
    return Affine(rows[:-1], rows[-1])


def with_one(h: Float[Array, "*n i"]) -> Float[Array, "*n j"]:
    """A layer's inputs, and the input 1 of its bias."""
    return jnp.concatenate([h, jnp.ones((*h.shape[:-1], 1), h.dtype)], axis=-1)


class Spread(eqx.Module):
    """The covariance U ⊗ V of a layer's weights (its bias is the last row)."""

    rows: Float[Array, "i i"]
    """U, over the layer's inputs."""
    root: Float[Array, "o o"]
    """The Cholesky factor of V, over its outputs."""

    def leverage(self, h: Float[Array, "*n i"]) -> Float[Array, "*n"]:
        """hᵀ U h, where h has the 1 of the bias."""
        return jnp.sum((h @ self.rows) * h, axis=-1)


def spread_of(
    pair: Kronecker, prior_precision: float | Float[Array, ""], temperature: float | Float[Array, ""]
) -> Spread:
    """The covariance β (A ⊗ G + δ I)⁻¹, with (A + π√δ I) ⊗ (G + √δ/π I) for the sum (Martens & Grosse, 2015)."""
    sizes = [jnp.trace(factor) / len(factor) for factor in (pair.inputs, pair.outputs)]
    pi = jnp.sqrt(divide(sizes[0], sizes[1]))
    damping = jnp.sqrt(prior_precision)
    rows = inverse(pair.inputs + pi * damping * jnp.eye(len(pair.inputs)))
    columns = inverse(pair.outputs + damping / pi * jnp.eye(len(pair.outputs)))
    return Spread(rows, jnp.sqrt(temperature) * jnp.linalg.cholesky(columns))


def inverse(matrix: Float[Array, "n n"]) -> Float[Array, "n n"]:
    """The inverse of a symmetric positive definite matrix, exactly symmetric."""
    root = jax.scipy.linalg.solve_triangular(jnp.linalg.cholesky(matrix), jnp.eye(len(matrix)), lower=True)
    return root.T @ root


class MatrixNormal(eqx.Module):
    """q(W) = MN(M, U, V) for each layer by itself."""

    mean: Weights
    spreads: tuple[Spread, ...]
    """The covariance of each layer, the head's last."""


class LayerMoments(NamedTuple):
    mean: Affine
    spread: Spread


@dataclass(frozen=True)
class KroneckerFactored:
    """A matrix normal for the weights of each layer. A `vcl.posteriors.Family`.

    `noise` names the generator of its draws: see `vcl.noise`.

    Examples
    --------
    >>> from vcl.core import StreamSpec
    >>> from vcl.nets import MLP, zeros
    >>> weights = zeros(MLP((5,)), StreamSpec((4,), "float32", 2, (0,), 10))
    >>> weights = weights.with_layers([*weights.body, jax.tree.map(lambda a: a[0], weights.head)])
    >>> q = KroneckerFactored().prior(weights, std=1.0)
    >>> float(KroneckerFactored().kl(q, q))
    0.0
    """

    noise: Generator = "threefry"

    def prior(self, like: Weights, std: float) -> MatrixNormal:
        """N(0, std²) on every weight and bias."""
        return self.around(jax.tree.map(jnp.zeros_like, like), std)

    def fresh(self, key: Key[Array, ""], like: Weights, init_std: float, init_log_var: float) -> MatrixNormal:
        """Small random means, small variances without correlations."""
        leaves, structure = jax.tree.flatten(like)
        keys = jax.random.split(key, len(leaves))
        means = [init_std * jax.random.normal(k, a.shape) for k, a in zip(keys, leaves, strict=True)]
        return self.around(jax.tree.unflatten(structure, means), math.exp(0.5 * init_log_var))

    def around(self, mean: Weights, std: float) -> MatrixNormal:
        """N(mean, std²) for every weight by itself."""
        return MatrixNormal(mean, tuple(spread_of(empty_pairs(layer), std**-2.0, 1.0) for layer in mean.layers))

    def sample(self, key: Key[Array, ""], q: MatrixNormal) -> Weights:
        """W = M + U^½ E (V^½)ᵀ, E ~ N(0, I)."""
        keys = jax.random.split(key, len(q.spreads))
        layers = []
        for k, layer, spread in zip(keys, q.mean.layers, q.spreads, strict=True):
            rows = rows_of(layer)
            noise = normal(k, rows.shape, rows.dtype, self.noise)
            layers.append(affine_of(rows + jnp.linalg.cholesky(spread.rows) @ noise @ spread.root.T))
        return q.mean.with_layers(layers)

    def kl(self, q: MatrixNormal, p: MatrixNormal) -> Float[Array, ""]:
        """½ Σ_layers [tr(U_p⁻¹ U) tr(V_p⁻¹ V) + tr(Dᵀ U_p⁻¹ D V_p⁻¹) - io + o log|U_p|/|U| + i log|V_p|/|V|]."""
        changes = jax.tree.map(jnp.subtract, q.mean, p.mean)
        layers = zip(changes.layers, q.spreads, p.spreads, strict=True)
        return jnp.sum(jnp.stack([_kl(rows_of(change), ours, theirs) for change, ours, theirs in layers]))

    def network(self, q: MatrixNormal) -> Weights:
        """The mean weights, which know their network."""
        return q.mean

    def layers(self, q: MatrixNormal) -> Sequence[LayerMoments]:
        """What `preactivation` takes, for each affine map from the inputs up."""
        return tuple(LayerMoments(*both) for both in zip(q.mean.layers, q.spreads, strict=True))

    def preactivation(
        self, key: Key[Array, ""], layer: LayerMoments, h: Float[Array, "..."], num_samples: int | None
    ) -> Float[Array, "..."]:
        """a ~ N(hᵀM, (hᵀ U h) V), h with the 1 of the bias, independently for each example (and place)."""
        centre = product(h, layer.mean.weight) + layer.mean.bias
        return centre + self.draw(key, layer.spread, layer.spread.leverage(with_one(h)), num_samples)

    def draw(
        self, key: Key[Array, ""], spread: Spread, leverage: Float[Array, "*n"], num_samples: int | None
    ) -> Float[Array, "*s o"]:
        """√(hᵀ U h) · V^½ ε for each example; `num_samples` adds a leading axis of so many draws."""
        shape = (*leverage.shape, len(spread.root))
        shape = shape if num_samples is None else (num_samples, *shape)
        noise = normal(key, shape, leverage.dtype, self.noise)
        # Rounding may leave a leverage that is zero a little below it.
        return jnp.sqrt(jnp.maximum(leverage, 1e-12))[..., None] * (noise @ spread.root.T)

    def marginals(self, q: MatrixNormal) -> Gaussian:
        """The mean and the variance of every weight by itself."""
        variances = [
            affine_of(jnp.outer(jnp.diag(spread.rows), jnp.sum(spread.root**2, axis=1))) for spread in q.spreads
        ]
        return Gaussian(q.mean, jax.tree.map(jnp.log, q.mean.with_layers(variances)))


def logits_kronecker(
    key: Key[Array, ""],
    q: MatrixNormal,
    inputs: Float[Array, "n d"],
    num_samples: int,
    family: KroneckerFactored = KroneckerFactored(),
) -> Float[Array, "s n c"]:
    """Pre-activations drawn from q, independently for each example."""
    return local_logits(family, key, q, inputs, num_samples)


def _kl(change: Float[Array, "i o"], q: Spread, p: Spread) -> Float[Array, ""]:
    inputs, outputs = change.shape
    roots = [jnp.linalg.cholesky(p.rows), p.root]
    whitened = [
        jax.scipy.linalg.solve_triangular(root, ours, lower=True)
        for root, ours in zip(roots, (jnp.linalg.cholesky(q.rows), q.root), strict=True)
    ]
    moved = jax.scipy.linalg.solve_triangular(roots[0], change, lower=True)
    moved = jax.scipy.linalg.solve_triangular(roots[1], moved.T, lower=True)
    logs = [2.0 * jnp.sum(jnp.log(jnp.diag(w))) for w in whitened]
    sizes = [jnp.sum(w**2) for w in whitened]
    return 0.5 * (sizes[0] * sizes[1] + jnp.sum(moved**2) - inputs * outputs - outputs * logs[0] - inputs * logs[1])
