"""Which units are active: planted ones are found, and every measure is what it says."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from vcl.analysis.units import (
    Probe,
    active_units,
    change_without,
    information,
    outgoing,
    predictive,
    removal_effects,
    signal_to_noise,
    total_variation,
    without,
)
from vcl.core import StreamSpec
from vcl.nets import MLP, Activation, Affine, from_layers, select_head, zeros
from vcl.posteriors.mean_field import Gaussian, isotropic

KEY = jax.random.key(3)
INPUTS = 12
BOTH = np.ones(2, bool)


def planted(seed: int, hidden: tuple[int, ...], active: tuple[set[int], ...], heads: int = 2) -> Gaussian:
    """A posterior with these units active; the others' incoming weights are at the prior, the outgoing ones silent.

    An active unit looks at inputs, or units, of its own, and everything that is active below is looked at.
    """
    rng = np.random.default_rng(seed)
    q = isotropic(zeros(MLP(hidden), StreamSpec((INPUTS,), "float32", 3, tuple(range(heads)), 10)), 0.0, 1.0)
    means = [np.asarray(layer.weight).copy() for layer in (*q.mean.body, q.mean.head)]
    log_vars = [np.asarray(layer.weight).copy() for layer in (*q.log_var.body, q.log_var.head)]
    biases = [np.full(np.shape(layer.bias), -8.0) for layer in (*q.log_var.body, q.log_var.head)]
    below = list(range(INPUTS))
    for number, units in enumerate(map(sorted, active)):
        for place, unit in enumerate(units):
            means[number][:, unit] = rng.normal(0, 0.01, len(means[number]))
            means[number][below[place :: len(units)], unit] = 2.0
            log_vars[number][:, unit] = -8.0
        below = units
    for place, unit in enumerate(below):
        means[-1][:, unit, place % 3] = 3.0
    log_vars[-1][:] = -8.0
    for number, units in enumerate(active):
        pruned = [unit for unit in range(hidden[number]) if unit not in units]
        means[number][:, pruned], log_vars[number][:, pruned], biases[number][pruned] = 0.0, 0.0, 0.0
    for number, units in enumerate(active):
        pruned = [unit for unit in range(hidden[number]) if unit not in units]
        silent = np.ones(means[number + 1].shape[-1], bool)
        if number + 1 < len(active):
            # What enters a pruned unit of the next layer stays at the prior.
            silent = np.isin(np.arange(len(silent)), list(active[number + 1]))
        means[number + 1][..., pruned, :] = 0.0
        log_vars[number + 1][..., pruned, :] = np.where(silent, -16.0, 0.0)

    def network(weights, biases):
        layers = [Affine(jnp.asarray(w), jnp.asarray(b, jnp.float32)) for w, b in zip(weights, biases, strict=True)]
        return from_layers(layers)

    return Gaussian(network(means, [0.0 * b for b in biases]), network(log_vars, biases))


def probes(heads: int = 2, seed: int = 0) -> list[Probe]:
    rng = np.random.default_rng(seed)
    return [Probe(h, rng.random((40, INPUTS)).astype(np.float32)) for h in range(heads)]


PLANTS = [
    ((8,), ({2, 5},)),
    ((8,), ({0, 1, 2, 3, 4, 5, 6, 7},)),
    ((20,), ({19},)),
    ((9, 7), ({1, 4, 8}, {0, 6})),
    ((6, 6, 6), ({0, 3}, {5, 2}, {1, 2})),
]


@pytest.mark.parametrize(("hidden", "active"), PLANTS)
@pytest.mark.parametrize("seed", [0, 1])
def test_planted_units_are_found_exactly(hidden, active, seed):
    q, asked = planted(seed, hidden, active), probes(seed=seed)
    found = active_units(KEY, q, asked, BOTH, removal_effects(KEY, q, asked))
    assert [set(np.flatnonzero(mask).tolist()) for mask in found] == list(active)


def test_a_unit_that_speaks_but_never_fires_is_pruned():
    q, asked = planted(0, (8,), ({2, 5},)), probes()
    head = q.mean.head
    dead = q.mean.with_layers(
        [
            Affine(q.mean.body[0].weight.at[:, 3].set(-50.0), q.mean.body[0].bias),
            Affine(head.weight.at[:, 3].set(5.0), head.bias),
        ]
    )
    q = Gaussian(dead, q.log_var)
    assert signal_to_noise(q, BOTH)[0][3] > 10
    found = active_units(KEY, q, asked, BOTH, removal_effects(KEY, q, asked))
    assert set(np.flatnonzero(found[0]).tolist()) == {2, 5}


def test_noise_is_not_taken_for_activity():
    """Many units whose weights are as likely positive as negative move predictions together, yet say nothing."""
    q, asked = planted(0, (40,), ({2, 5},)), probes()
    others = np.array([unit not in (2, 5) for unit in range(40)])
    weight = jnp.where(others[:, None], -2.0, q.log_var.head.weight)
    q = Gaussian(q.mean, q.log_var.with_layers([*q.log_var.body, Affine(weight, q.log_var.head.bias)]))
    assert max(change_without(KEY, q, (~others,), asked)) > 0.02
    found = active_units(KEY, q, asked, BOTH, removal_effects(KEY, q, asked))
    assert set(np.flatnonzero(found[0]).tolist()) == {2, 5}


@pytest.mark.parametrize(("hidden", "active"), PLANTS)
def test_the_measures_tell_planted_units_apart(hidden, active):
    q, asked = planted(0, hidden, active), probes()
    prior = isotropic(q.mean, 0.0, 1.0)
    for number, units in enumerate(active):
        planted_here = np.isin(np.arange(hidden[number]), list(units))
        told = information(q, prior)[number]
        assert (told[planted_here] > 5.0).all()
        np.testing.assert_allclose(told[~planted_here], 0.0, atol=1e-5)
        ratio = signal_to_noise(q, BOTH)[number]
        assert (ratio[planted_here] > 10.0).all()
        np.testing.assert_array_equal(ratio[~planted_here], 0.0)
        effect = removal_effects(KEY, q, asked)[number]
        assert effect[planted_here].min() > 100 * effect[~planted_here].max(initial=1e-8)


def random_posterior(hidden: tuple[int, ...], last: Activation = "relu") -> Gaussian:
    like = zeros(MLP(hidden, last), StreamSpec((INPUTS,), "float32", 3, (0, 1), 10))
    draws = [jax.random.normal(jax.random.fold_in(KEY, n), (10_000,)) for n in range(2)]

    def filled(draw, centre):
        start = 0
        leaves = []
        for leaf in jax.tree.leaves(like):
            leaves.append(centre + 0.7 * draw[start : start + leaf.size].reshape(leaf.shape))
            start += leaf.size
        return jax.tree.unflatten(jax.tree.structure(like), leaves)

    return Gaussian(filled(draws[0], 0.0), filled(draws[1], -2.0))


@pytest.mark.parametrize(("hidden", "last"), [((5,), "relu"), ((5, 4), "linear"), ((4, 3, 5), "relu")])
def test_removal_effects_equal_removing_the_units_one_by_one(hidden, last):
    q, asked = random_posterior(hidden, last), probes()
    effects = removal_effects(KEY, q, asked)
    for layer, width in enumerate(hidden):
        for unit in range(width):
            keep = tuple(np.ones(w, bool) for w in hidden)
            keep[layer][unit] = False
            expected = max(change_without(KEY, q, keep, asked))
            assert effects[layer][unit] == pytest.approx(expected, abs=2e-5)
            assert expected > 1e-3


def test_a_network_without_units_predicts_as_one_that_never_had_them():
    q = random_posterior((5, 4))
    keep = (np.array([1, 0, 1, 1, 0], bool), np.array([0, 1, 1, 1], bool))
    x = probes()[0].inputs
    many = 4000
    cut = predictive(KEY, select_head(without(q, keep), 0), x, many)

    def narrow(net):
        first = Affine(net.body[0].weight[:, keep[0]], net.body[0].bias[keep[0]])
        second = Affine(net.body[1].weight[keep[0]][:, keep[1]], net.body[1].bias[keep[1]])
        return from_layers([first, second, Affine(net.head.weight[:, keep[1]], net.head.bias)])

    small = predictive(KEY, select_head(Gaussian(narrow(q.mean), narrow(q.log_var)), 0), x, many)
    # Standard error of a mean of 4000 numbers in [0, 1]: at most 0.008.
    np.testing.assert_allclose(np.asarray(cut), np.asarray(small), atol=0.04)
    assert float(total_variation(cut, predictive(KEY, select_head(q, 0), x, many))) > 0.02


def test_information_is_the_divergence_of_incoming_weights_and_bias(float64):
    q = random_posterior((3, 2))
    prior = isotropic(q.mean, 0.1, 0.5)
    for layer in range(2):
        mean, log_var = q.mean.body[layer], q.log_var.body[layer]
        for unit in range(mean.bias.shape[0]):
            mu = np.append(mean.weight[:, unit], mean.bias[unit])
            sd = np.exp(0.5 * np.append(log_var.weight[:, unit], log_var.bias[unit]))
            # KL = E_q log q - E_q log p, in closed form by scipy's entropies and moments.
            cross = -np.sum(stats.norm(0.1, 0.5).logpdf(mu) - 0.5 * sd**2 / 0.25)
            expected = cross - np.sum(stats.norm(mu, sd).entropy())
            assert information(q, prior)[layer][unit] == pytest.approx(expected, rel=1e-5)


def test_signal_to_noise_ignores_heads_that_saw_no_data():
    q = random_posterior((3, 2))
    one, both = np.array([True, False]), np.array([True, True])
    expected = np.abs(q.mean.head.weight[0]) * np.exp(-0.5 * np.asarray(q.log_var.head.weight[0]))
    np.testing.assert_allclose(signal_to_noise(q, one)[1], expected.max(axis=1), rtol=1e-6)
    assert (signal_to_noise(q, both)[1] >= signal_to_noise(q, one)[1]).all()
    assert [w.shape for w in outgoing(q.mean, both)] == [(3, 2), (2, 6)]


def test_absent_weights_have_no_signal():
    q = random_posterior((3, 2))
    keep = (np.ones(3, bool), np.array([True, False]))
    ratios = signal_to_noise(without(q, keep), np.ones(2, bool))
    assert ratios[1][1] == 0.0
    assert ratios[1][0] > 0.0


def test_a_higher_tolerance_prunes_more_and_is_kept_to():
    q, asked = random_posterior((12,)), probes()
    effects = removal_effects(KEY, q, asked)
    heard = tuple(ratio >= 1 for ratio in signal_to_noise(q, BOTH))
    counts = []
    for tolerance in (1e-9, 0.02, 0.1, 0.99):
        mask = active_units(KEY, q, asked, BOTH, effects, tolerance)
        assert max(change_without(KEY, without(q, heard), mask, asked)) <= tolerance
        counts.append(int(mask[0].sum()))
    assert counts == sorted(counts, reverse=True)
    assert counts[0] > counts[1]
    assert counts[-1] == 0
