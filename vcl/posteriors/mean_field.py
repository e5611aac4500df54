"""Mean-field Gaussians over pytrees of arrays, and over the weights of networks."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key, PyTree

from vcl.nets import Affine, Weights, forward, logits, product
from vcl.noise import Generator, normal
from vcl.posteriors.local import After, local_logits, unchanged

Scalar = float | Float[Array, ""]


class Gaussian(eqx.Module):
    """q(θ) = Π_i N(θ_i; mean_i, exp(log_var_i)), one factor for each number in a pytree."""

    mean: PyTree[Float[Array, "..."]]
    log_var: PyTree[Float[Array, "..."]]


def isotropic(like: PyTree[Float[Array, "..."]], mean: float, std: float) -> Gaussian:
    """N(mean, std²) for every number in `like`."""
    return constant(like, mean, 2.0 * jnp.log(std))


@jax.jit
def constant(like: PyTree[Float[Array, "..."]], mean: Scalar, log_var: Scalar) -> Gaussian:
    """The same mean and the same log-variance for every number in `like`."""
    return Gaussian(
        jax.tree.map(lambda a: jnp.full_like(a, mean), like), jax.tree.map(lambda a: jnp.full_like(a, log_var), like)
    )


@jax.jit
def standard_normal(key: Key[Array, ""], like: PyTree[Float[Array, "..."]]) -> PyTree[Float[Array, "..."]]:
    """Draws from N(0, 1) for every number in `like`."""
    leaves, structure = jax.tree.flatten(like)
    keys = jax.random.split(key, len(leaves))
    draws = [jax.random.normal(k, a.shape) for k, a in zip(keys, leaves, strict=True)]
    return jax.tree.unflatten(structure, draws)


@jax.jit
def scaled(tree: PyTree[Float[Array, "..."]], std: Scalar) -> PyTree[Float[Array, "..."]]:
    """Not compiled together with the draws, so that their bits do not depend on the compiler's rearrangements."""
    return jax.tree.map(lambda a: std * a, tree)


def sample(key: Key[Array, ""], q: Gaussian, noise: Generator = "threefry") -> PyTree[Float[Array, "..."]]:
    """θ = mean + std · ε, ε ~ N(0, 1)."""
    means, structure = jax.tree.flatten(q.mean)
    keys = jax.tree.unflatten(structure, list(jax.random.split(key, len(means))))
    return jax.tree.map(
        lambda k, m, v: m + jnp.exp(0.5 * v) * normal(k, m.shape, m.dtype, noise), keys, q.mean, q.log_var
    )


def log_prob(q: Gaussian, theta: PyTree[Float[Array, "..."]]) -> Float[Array, ""]:
    """log q(θ) = -½ Σ [log 2π + log_var + (θ - mean)² / var]."""
    return total(
        lambda x, m, v: -0.5 * (jnp.log(2 * jnp.pi) + v + (x - m) ** 2 * jnp.exp(-v)), theta, q.mean, q.log_var
    )


def kl(q: Gaussian, p: Gaussian) -> Float[Array, ""]:
    """KL(q ‖ p) = ½ Σ [log(σ_p²/σ_q²) - 1 + (σ_q² + (μ_q - μ_p)²) / σ_p²]."""
    return total(kl_terms, q.mean, q.log_var, p.mean, p.log_var)


def kl_terms(
    mean: Float[Array, "*s"],
    log_var: Float[Array, "*s"],
    prior_mean: Float[Array, "*s"],
    prior_log_var: Float[Array, "*s"],
) -> Float[Array, "*s"]:
    """The KL divergence of each factor by itself."""
    ratio = jnp.exp(log_var - prior_log_var)
    return 0.5 * (prior_log_var - log_var - 1.0 + ratio + (mean - prior_mean) ** 2 * jnp.exp(-prior_log_var))


def fast_kl(q: Gaussian, p: Gaussian) -> Float[Array, ""]:
    """`kl`, rounded differently, of what a step has anyway: exp(log_var), and exp(-prior_log_var) once a task."""

    def terms(mean: Array, log_var: Array, prior_mean: Array, prior_log_var: Array) -> Array:
        square = jnp.exp(log_var) + (mean - prior_mean) ** 2
        return 0.5 * (prior_log_var - log_var - 1.0 + square * jnp.exp(-prior_log_var))

    return total(terms, q.mean, q.log_var, p.mean, p.log_var, add=sum_by_product)


def sum_by_product(a: Float[Array, "..."]) -> Float[Array, ""]:
    """Rows are added up by a matrix product, which on a CPU is faster than a sum to one number."""
    return jnp.sum(jnp.tensordot(jnp.ones(a.shape[0], a.dtype), a, 1) if a.ndim > 1 else a)


def partly_forgotten(q: Gaussian, p: Gaussian, forgetting: float) -> Gaussian:
    """q^(1-ε) p^ε (Kurle et al., 2020): precisions mix, and means by their precisions."""

    def precision(ours: Float[Array, "*s"], theirs: Float[Array, "*s"]) -> Float[Array, "*s"]:
        return (1.0 - forgetting) * jnp.exp(-ours) + forgetting * jnp.exp(-theirs)

    log_var = jax.tree.map(lambda a, b: -jnp.log(precision(a, b)), q.log_var, p.log_var)
    mean = jax.tree.map(
        lambda v, m, a, n, b: jnp.exp(v) * ((1.0 - forgetting) * jnp.exp(-a) * m + forgetting * jnp.exp(-b) * n),
        log_var,
        q.mean,
        q.log_var,
        p.mean,
        p.log_var,
    )
    return Gaussian(mean, log_var)


def total(
    term: Callable[..., Float[Array, "..."]],
    *trees: PyTree[Float[Array, "..."]],
    add: Callable[[Float[Array, "..."]], Float[Array, ""]] = jnp.sum,
) -> Float[Array, ""]:
    """Σ of `term` over corresponding numbers of the trees."""
    return jnp.sum(jnp.stack([add(a) for a in jax.tree.leaves(jax.tree.map(term, *trees))]))


LayerMoments = tuple[Affine, Affine]
"""The means and the log-variances of one affine map."""
Preactivations = tuple[Float[Array, "..."], Float[Array, "..."]]
"""The means and the standard deviations of pre-activations, given a layer's inputs."""
NoisePer = Literal["example", "batch", "class"]


@dataclass(frozen=True)
class MeanField:
    """q(θ) = Π_i N(θ_i; μ_i, σ_i²): every weight by itself. A `vcl.posteriors.Family`.

    `noise` names the generator of its draws, and `antithetic` makes half of those of pre-activations the negative of
    the other half: see `vcl.noise`. `noise_per` says which pre-activations have noise of their own: those of every
    `example`; of every `batch`, so that its examples share it; or of every `class`, so that each output moreover
    sees hidden units with noise of its own, as in the code published with the paper.

    Examples
    --------
    >>> import jax
    >>> from vcl.core import StreamSpec
    >>> from vcl.nets import MLP, zeros
    >>> from vcl.posteriors import MeanField
    >>> weights = zeros(MLP((5,)), StreamSpec((4,), "float32", 2, (0,), 10))
    >>> q = MeanField().prior(weights, std=1.0)
    >>> float(MeanField().kl(q, q))
    0.0
    """

    noise: Generator = "threefry"
    antithetic: bool = False
    noise_per: NoisePer = "example"

    def prior(self, like: Weights, std: float) -> Gaussian:
        """N(0, std²) on every weight and bias."""
        return isotropic(like, 0.0, std)

    def fresh(self, key: Key[Array, ""], like: Weights, init_std: float, init_log_var: float) -> Gaussian:
        """Small random means, small variances: where a new task's optimisation begins."""
        return Gaussian(scaled(standard_normal(key, like), init_std), constant(like, 0.0, init_log_var).log_var)

    def sample(self, key: Key[Array, ""], q: Gaussian) -> Weights:
        """θ ~ q."""
        return sample(key, q, self.noise)

    def kl(self, q: Gaussian, p: Gaussian) -> Float[Array, ""]:
        """KL(q ‖ p), in closed form."""
        # Runs of versions that had threefry only stay the same to the bit.
        return kl(q, p) if self.noise == "threefry" else fast_kl(q, p)

    def network(self, q: Gaussian) -> Weights:
        """The mean weights, which know their network."""
        return q.mean

    def layers(self, q: Gaussian) -> Sequence[LayerMoments]:
        """What `preactivation` takes, for each affine map from the inputs up."""
        return tuple(zip(q.mean.layers, q.log_var.layers, strict=True))

    def preactivation(
        self, key: Key[Array, ""], layer: LayerMoments, h: Float[Array, "..."], num_samples: int | None
    ) -> Float[Array, "..."]:
        """a ~ N(h·M + m, h²·S + s), M, m the means and S, s the variances, independently for each example.

        `num_samples` adds a leading axis of so many samples; None where `h` has it already.
        """
        return self.draw(key, self.moments(layer, h), num_samples)

    def moments(self, layer: LayerMoments, h: Float[Array, "..."]) -> Preactivations:
        """h·M + m and √(h²·S + s)."""
        mean, log_var = layer
        centre = product(h, mean.weight) + mean.bias
        return centre, jnp.sqrt(product(h * h, jnp.exp(log_var.weight)) + jnp.exp(log_var.bias))

    def moments_by_class(self, layer: LayerMoments, h: Float[Array, "s n f"]) -> Preactivations:
        """The same for the head, where output c sees only every c-th of the hidden samples."""
        mean, log_var = layer
        mine = h.reshape(-1, mean.bias.shape[-1], *h.shape[1:])
        centre = jnp.einsum("scnf,fc->snc", mine, mean.weight) + mean.bias
        variance = jnp.einsum("scnf,fc->snc", mine * mine, jnp.exp(log_var.weight)) + jnp.exp(log_var.bias)
        return centre, jnp.sqrt(variance)

    def draw(self, key: Key[Array, ""], moments: Preactivations, num_samples: int | None) -> Float[Array, "..."]:
        """Pre-activations with these means and standard deviations."""
        centre, std = moments
        shape = centre.shape if num_samples is None else (num_samples, *centre.shape)
        if self.noise_per != "example":
            shape = (shape[0], 1, *shape[2:])
        noise = normal(key, shape, centre.dtype, self.noise, antithetic=self.antithetic)
        return centre + std * noise

    def marginals(self, q: Gaussian) -> Gaussian:
        """The mean and the variance of every weight by itself."""
        return q


def logits_weight_sampled(
    key: Key[Array, ""],
    q: Gaussian,
    inputs: Float[Array, "n d"],
    num_samples: int,
    family: MeanField = MeanField(),
) -> Float[Array, "s n c"]:
    """Weights drawn from q, once for the whole batch and each sample."""
    return jax.vmap(lambda k: logits(family.sample(k, q), inputs))(jax.random.split(key, num_samples))


def logits_local(
    key: Key[Array, ""],
    q: Gaussian,
    inputs: Float[Array, "n d"],
    num_samples: int,
    family: MeanField = MeanField(),
    after: After = unchanged,
) -> Float[Array, "s n c"]:
    """Pre-activations drawn from q, with noise as the family has it."""
    return local_logits(family, key, q, inputs, num_samples, after, draw_logits)


def draw_logits(
    family: MeanField,
    key: Key[Array, ""],
    network: Weights,
    layers: Sequence[LayerMoments],
    inputs: Float[Array, "n d"],
    num_samples: int,
    after: After = unchanged,
    first: Preactivations | None = None,
) -> Float[Array, "s n c"]:
    """One pass with sampled pre-activations. `first` are those of the first layer, where they are known already."""
    keys = jax.random.split(key, len(layers))
    by_class = family.noise_per == "class"
    hidden_samples = num_samples * (layers[-1][0].bias.shape[-1] if by_class else 1)

    def affine(number: int, layer: LayerMoments, h: Float[Array, "..."]) -> Float[Array, "..."]:
        if number == 0:
            return after(0, family.draw(keys[0], first or family.moments(layer, h), hidden_samples))
        last = number == len(layers) - 1
        moments = family.moments_by_class(layer, h) if by_class and last else family.moments(layer, h)
        return after(number, family.draw(keys[number], moments, None))

    return forward(network, layers, inputs, affine)


def expected_loss(
    key: Key[Array, ""],
    q: Gaussian,
    inputs: Float[Array, "n d"],
    num_samples: int,
    family: MeanField,
    loss: Callable[[Float[Array, "s n c"]], Float[Array, ""]],
) -> Float[Array, ""]:
    """The mean of `loss` over samples of the logits, one after the other, for dense networks.

    One sample fits into the processor's cache: the gradient of each is computed right after its loss, and only sums
    are kept. The samples share the first layer's products. All at once takes about 1.7 times as long.
    """
    network, (lowest, *upper) = family.network(q), family.layers(q)

    def one(sample_key: Key[Array, ""], varied: tuple[Preactivations, list[LayerMoments]]) -> Float[Array, ""]:
        first, layers = varied
        return loss(draw_logits(family, sample_key, network, [lowest, *layers], inputs, 1, first=first))

    return mean_with_gradient(one, num_samples, key, (family.moments(lowest, inputs), upper))


def mean_with_gradient(
    function: Callable[[Key[Array, ""], PyTree], Float[Array, ""]], count: int, key: Key[Array, ""], args: PyTree
) -> Float[Array, ""]:
    """The mean of `function(key_i, args)` over `count` keys; its gradient is summed up in the same loop."""

    def forward_pass(key: Key[Array, ""], args: PyTree) -> tuple[Float[Array, ""], PyTree]:
        def add(i: Int[Array, ""], sums: PyTree) -> PyTree:
            one = jax.value_and_grad(function, argnums=1)(jax.random.fold_in(key, i), args)
            return jax.tree.map(jnp.add, sums, one)

        zero = (jnp.zeros(()), jax.tree.map(jnp.zeros_like, args))
        return jax.tree.map(lambda a: a / count, jax.lax.fori_loop(0, count, add, zero))

    @jax.custom_vjp
    def mean(key: Key[Array, ""], args: PyTree) -> Float[Array, ""]:
        return forward_pass(key, args)[0]

    def backward_pass(gradient: PyTree, cotangent: Float[Array, ""]) -> tuple[None, PyTree]:
        return None, jax.tree.map(lambda a: a * cotangent, gradient)

    mean.defvjp(forward_pass, backward_pass)
    return mean(key, args)
