"""Which hidden units are active, and by what measure.

The paper describes a pruned unit as one with incoming weights at the prior and outgoing weights at a delta on zero,
so that its removal does not change the predictions (section 4.1). Outgoing weights need not be near a delta for that
(docs/understanding.md), so every part of the sentence is a measure here, for every unit:

- `information`: KL(q ‖ p) of its incoming weights and bias, in nats. Near zero: the data taught it nothing.
- `signal_to_noise`: the largest |μ|/σ of its outgoing weights. Below about one: none is surely different from 0.
- `removal_effects`: the mean total-variation distance between predictions with and without it.

`active_units` makes a rule of them: pruned are the units that say nothing, and those whose word changes nothing.
"""

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Key, Shaped

from vcl.nets import Affine, Weights, activated, pixels, select_head
from vcl.posteriors.mean_field import Gaussian, kl_terms, logits_local

SAMPLES = 10
TOLERANCE = 0.0002
"""How far predictions may move, in mean total-variation distance, when all idle units are removed."""

Units = tuple[Float[np.ndarray, "_"], ...]
"""A number for each unit of each hidden layer."""
Mask = tuple[Bool[np.ndarray, "_"], ...]
"""A yes or no for each unit of each hidden layer."""
Answer = TypeVar("Answer", bound=Array)


class Probe(NamedTuple):
    """Inputs of a task, and the head that answers for it."""

    head: int
    inputs: Shaped[np.ndarray, "n d"]


def widths(q: Gaussian) -> tuple[int, ...]:
    """How many units each hidden layer has."""
    return tuple(layer.bias.shape[0] for layer in q.mean.body)


def information(q: Gaussian, prior: Gaussian) -> Units:
    """KL(q ‖ prior) of each unit's incoming weights and its bias, in nats."""
    divergences = jax.tree.map(kl_terms, q.mean.body, q.log_var.body, prior.mean.body, prior.log_var.body)
    return tuple(np.asarray(incoming(layer)) for layer in divergences)


def incoming(divergences: Affine) -> Float[Array, "u"]:
    """What each unit of a layer has of its incoming weights and its bias together."""
    return jnp.sum(divergences.weight, axis=0) + divergences.bias


def signal_to_noise(q: Gaussian, trained: Bool[np.ndarray, "heads"]) -> Units:
    """The largest |μ|/σ among each unit's outgoing weights; of the heads, only the trained ones count."""
    ratios = jax.tree.map(ratio, outgoing(q.mean, trained), outgoing(q.log_var, trained))
    return tuple(np.asarray(jnp.max(layer, axis=1)) for layer in ratios)


def ratio(mean: Float[Array, "*s"], log_var: Float[Array, "*s"]) -> Float[Array, "*s"]:
    """|μ|/σ of each weight."""
    # A weight that is not there has neither mean nor variance.
    return jnp.where(jnp.isneginf(log_var), 0.0, jnp.abs(mean) * jnp.exp(-0.5 * log_var))


def outgoing(network: Weights, trained: Bool[np.ndarray, "heads"]) -> tuple[Float[Array, "_ _"], ...]:
    """The weights that leave each hidden layer; into all trained heads from the last."""
    heads = jnp.concatenate([*network.head.weight[np.flatnonzero(trained)]], axis=1)
    return (*(layer.weight for layer in network.body[1:]), heads)


def without(q: Gaussian, keep: Mask) -> Gaussian:
    """q with the outgoing weights of all units but those in `keep` taken away: mean 0, variance 0."""

    def cut(network: Weights, value: float) -> Weights:
        body = [network.body[0]]
        for kept, layer in zip(keep[:-1], network.body[1:], strict=True):
            body.append(Affine(jnp.where(kept[:, None], layer.weight, value), layer.bias))
        head = Affine(jnp.where(keep[-1][:, None], network.head.weight, value), network.head.bias)
        return network.with_layers([*body, head])

    return Gaussian(cut(q.mean, 0.0), cut(q.log_var, -jnp.inf))


def predictive(
    key: Key[Array, ""], q: Gaussian, inputs: Shaped[np.ndarray, "n d"], samples: int = SAMPLES
) -> Float[Array, "n c"]:
    """E_q p(y | x, θ), for a network with one head. The same key means the same noise, with units or without."""
    return _predictive(key, q, jnp.asarray(inputs), samples)


@functools.partial(jax.jit, static_argnames="samples")
def _predictive(key: Key[Array, ""], q: Gaussian, inputs: Shaped[Array, "n d"], samples: int) -> Float[Array, "n c"]:
    return jnp.mean(jax.nn.softmax(logits_local(key, q, pixels(inputs), samples)), axis=0)


def total_variation(p: Float[Array, "*s n c"], q: Float[Array, "*s n c"]) -> Float[Array, "*s"]:
    """½ Σ_y |p(y|x) - q(y|x)|, averaged over the inputs."""
    return 0.5 * jnp.mean(jnp.sum(jnp.abs(p - q), axis=-1), axis=-1)


def change_without(key: Key[Array, ""], q: Gaussian, keep: Mask, probes: Sequence[Probe]) -> list[float]:
    """For each probe, how far the predictions move when only the units in `keep` stay."""
    cut = without(q, keep)
    return [
        float(
            total_variation(
                predictive(key, select_head(cut, probe.head), probe.inputs),
                predictive(key, select_head(q, probe.head), probe.inputs),
            )
        )
        for probe in probes
    ]


def removal_effects(key: Key[Array, ""], q: Gaussian, probes: Sequence[Probe]) -> Units:
    """How far the predictions move when one unit alone is removed: for the probe that it matters most to."""
    effects = [
        _removal_effects(key, select_head(q, probe.head), jnp.asarray(probe.inputs), SAMPLES) for probe in probes
    ]
    return tuple(np.max([np.asarray(layer) for layer in layers], axis=0) for layers in zip(*effects, strict=True))


@functools.partial(jax.jit, static_argnames="samples")
def _removal_effects(
    key: Key[Array, ""], q: Gaussian, inputs: Shaped[Array, "n d"], samples: int
) -> tuple[Float[Array, "_"], ...]:
    """As `change_without` one unit, for all of them."""
    return without_each(
        key, q, inputs, samples, lambda outputs: jnp.mean(jax.nn.softmax(outputs), axis=0), total_variation
    )


def without_each(
    key: Key[Array, ""],
    q: Gaussian,
    inputs: Shaped[Array, "n d"],
    samples: int,
    answer: Callable[[Float[Array, "s n c"]], Answer],
    difference: Callable[[Answer, Answer], Float[Array, ""]],
) -> tuple[Float[Array, "_"], ...]:
    """difference(answer with all units, answer without one), for each unit; what lies below it is computed once.

    An answer is made of the outputs of a network with one head, under the same noise with the unit or without.
    """
    layers = [*zip(q.mean.body, q.log_var.body, strict=True), (q.mean.head, q.log_var.head)]
    kinds = q.mean.network.layers
    noise = [
        jax.random.normal(k, (samples, len(inputs), mean.bias.shape[0]), mean.bias.dtype)
        for k, (mean, _) in zip(jax.random.split(key, len(layers)), layers, strict=True)
    ]

    def moments(number: int, h: Float[Array, "*s n i"]) -> tuple[Float[Array, "*s n o"], Float[Array, "*s n o"]]:
        mean, log_var = layers[number]
        return h @ mean.weight + mean.bias, (h * h) @ jnp.exp(log_var.weight) + jnp.exp(log_var.bias)

    def draw(number: int, centre: Float[Array, "*s n o"], variance: Float[Array, "*s n o"]) -> Float[Array, "s n o"]:
        return centre + jnp.sqrt(variance) * noise[number]

    def finish(number: int, centre: Float[Array, "*s n o"], variance: Float[Array, "*s n o"]) -> Answer:
        """From the moments of a layer up to the answer."""
        a = draw(number, centre, variance)
        if number == len(layers) - 1:
            return answer(a)
        return finish(number + 1, *moments(number + 1, activated(kinds[number], a)))

    h = pixels(inputs)
    whole = finish(0, *moments(0, h))
    effects = []
    for number in range(len(layers) - 1):
        h = activated(kinds[number], draw(number, *moments(number, h)))
        above = number + 1
        centre, variance = moments(above, h)
        weight, spread = layers[above][0].weight, jnp.exp(layers[above][1].weight)

        def effect(
            unit: tuple[Array, Array, Array], above: int = above, c: Array = centre, v: Array = variance
        ) -> Float[Array, ""]:
            output, mean, spread = unit
            lost = output[..., None]
            # Rounding can leave a variance just below zero.
            left = jnp.maximum(v - lost**2 * spread, 0.0)
            return difference(whole, finish(above, c - lost * mean, left))

        effects.append(jax.lax.map(effect, (jnp.moveaxis(h, -1, 0), weight, spread)))
    return tuple(effects)


def active_units(
    key: Key[Array, ""],
    q: Gaussian,
    probes: Sequence[Probe],
    trained: Bool[np.ndarray, "heads"],
    effects: Units,
    tolerance: float = TOLERANCE,
) -> Mask:
    """The units that are neither silent nor idle; there is nothing to tune for a run.

    Silent: none of its outgoing weights is further from zero than its own standard deviation. It adds noise at most.
    Idle: of the others, in the order of their effects from the smallest, as many as can be removed together, from
    all layers, while no probe's predictions move further than `tolerance`.
    """
    heard = tuple(ratio >= 1.0 for ratio in signal_to_noise(q, trained))
    ranks = np.concatenate(effects).argsort(kind="stable").argsort()
    places = np.split(ranks, np.cumsum([len(layer) for layer in effects])[:-1])
    # Without the noise of silent units, which would be taken for something to say.
    clear = without(q, heard)

    def keep(idle: int) -> Mask:
        return tuple(loud & (place >= idle) for loud, place in zip(heard, places, strict=True))

    fine, too_many = 0, len(ranks) + 1
    while too_many - fine > 1:
        middle = (fine + too_many) // 2
        if max(change_without(key, clear, keep(middle), probes)) <= tolerance:
            fine = middle
        else:
            too_many = middle
    return keep(fine)
