"""Noise: its distribution, its independence, and that old runs keep theirs."""

import functools
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import vcl
from vcl.core import StreamSpec
from vcl.nets import MLP, zeros
from vcl.noise import GENERATORS, log, normal, words
from vcl.posteriors import KroneckerFactored, MeanField
from vcl.posteriors.kronecker import Spread
from vcl.runs.config import from_record
from vcl.runs.legacy import completed

KEY = jax.random.key(20)
COUNT = 1_000_000
MANY = 10_000_000


@functools.cache
def many_draws() -> np.ndarray:
    return draws_of(shape=(MANY,))


def draws_of(key: int = 20, shape: tuple[int, ...] = (COUNT,), **options: bool) -> np.ndarray:
    return np.asarray(normal(jax.random.key(key), shape, jnp.float32, "hash", **options), np.float64)


@pytest.mark.parametrize("power", range(1, 7))
def test_moments(power: int) -> None:
    def moment(p: int) -> float:
        return 0.0 if p % 2 else float(math.prod(range(1, p, 2)))

    error = np.mean(many_draws() ** power) - moment(power)
    assert abs(error) < 4.0 * math.sqrt((moment(2 * power) - moment(power) ** 2) / MANY)


def test_the_distribution_is_normal_far_into_the_tails() -> None:
    draws = many_draws()
    assert stats.kstest(draws, "norm").pvalue > 1e-3
    for bound in (2.0, 3.0, 4.0):
        expected = MANY * 2.0 * stats.norm.sf(bound)
        assert abs((np.abs(draws) > bound).sum() - expected) < 4.0 * math.sqrt(expected)
    assert np.abs(draws).max() < 6.7


def test_no_correlation_between_samples_examples_units_and_steps() -> None:
    """Correlations of neighbours along each axis, of powers too: independence is more than no covariance."""
    steps = np.stack([draws_of(key, (10, 256, 100)) for key in range(4)])
    for axis, powers in itertools.product(range(4), ((1, 1), (2, 2), (1, 2), (1, 3), (3, 3))):
        first, second = (np.delete(steps, at, axis).ravel() for at in (-1, 0))
        correlation = np.corrcoef(first ** powers[0], second ** powers[1])[0, 1]
        assert abs(correlation) < 4.5 / math.sqrt(len(first)), (axis, powers)


def test_pairs_fill_the_unit_square_evenly() -> None:
    """The two numbers that a word is turned into are independent: the cells of a grid are hit equally often."""
    word = np.asarray(words(KEY, (COUNT,)), np.uint64)
    turned = (word * 0x9E3779B1) % 2**32
    counts = np.histogram2d(word, turned, bins=64, range=[[0, 2**32]] * 2)[0]
    assert stats.chisquare(counts.ravel()).pvalue > 1e-3


def test_nearby_keys_share_no_noise() -> None:
    """Keys whose first words differ by one see the same places, one apart."""
    one, other = (
        np.asarray(normal(jax.random.wrap_key_data(jnp.array(data, jnp.uint32)), (100_000,)), np.float64)
        for data in ((7, 1), (6, 2))
    )
    assert abs(np.corrcoef(one[:-1], other[1:])[0, 1]) < 4.5 / math.sqrt(len(one))
    assert abs(np.corrcoef(one, other)[0, 1]) < 4.5 / math.sqrt(len(one))


def test_noise_is_a_function_of_key_and_place() -> None:
    assert (draws_of(1, (6, 5)) == draws_of(1, (6, 5))).all()
    assert (draws_of(1, (6, 5)).ravel() == draws_of(1, (30,))).all()
    assert (draws_of(1, (6, 5))[:4] == draws_of(1, (4, 5))).all(), "further places change earlier ones"
    assert (draws_of(1, (6, 5)) != draws_of(2, (6, 5))).all()


def test_threefry_is_what_jax_draws() -> None:
    assert (normal(KEY, (3, 4), jnp.float32, "threefry") == jax.random.normal(KEY, (3, 4))).all()


@pytest.mark.parametrize("shape", [(10, 7, 3), (1, 7, 3), (1, 1, 1)])
def test_antithetic_halves_are_negatives(shape: tuple[int, ...]) -> None:
    draws = draws_of(3, shape, antithetic=True)
    assert draws.shape == shape
    axis = next((a for a, n in enumerate(shape) if n > 1), None)
    if axis is not None:
        half = -(-shape[axis] // 2)
        first, second = np.split(draws, [half], axis)
        assert (second == -np.take(first, range(shape[axis] - half), axis)).all()


def test_the_logarithm() -> None:
    x = jnp.concatenate([jnp.logspace(-9.6, 0, 10_000, dtype=jnp.float32), jnp.ones(1)])
    assert np.abs(np.asarray(log(x)) - np.log(np.asarray(x, np.float64))).max() < 4e-6
    assert float(log(jnp.ones(()))) == 0.0
    assert (np.asarray(log(x)) <= 0).all(), "a positive logarithm would have no root"


def test_antithetic_preactivations_have_the_same_margins() -> None:
    weights = zeros(MLP((5,)), StreamSpec((4,), "float32", 2, (0,), 10))
    for family in (MeanField("hash"), MeanField("hash", antithetic=True)):
        layer = family.layers(family.prior(weights, 1.0))[0]
        drawn = np.asarray(family.preactivation(KEY, layer, jnp.ones((2, 4)), 20_000))
        assert np.abs(drawn.std(0) - math.sqrt(5.0)).max() < 0.06
        assert np.abs(drawn.mean(0)).max() < (1e-5 if family.antithetic else 0.07)


def test_correlated_noise_has_its_covariance_under_both_generators() -> None:
    root = jnp.array([[2.0, 0.0], [1.0, 0.5]])
    for generator in GENERATORS:
        drawn = KroneckerFactored(generator).draw(KEY, Spread(jnp.eye(1), root), jnp.array([4.0]), 100_000)  # type: ignore[arg-type]
        assert np.abs(np.cov(np.asarray(drawn[:, 0]).T) - 4.0 * root @ root.T).max() < 0.3, generator


@pytest.mark.parametrize("method", ["vcl", "kronecker-vcl"])
def test_settings_stored_before_there_was_a_choice_mean_threefry(method: str) -> None:
    assert completed(method, {})["noise"] == "threefry"
    assert completed(method, {"noise": "hash"})["noise"] == "hash"
    assert "noise" not in completed("ewc", {})
    config = vcl.configure("split-digits", method)
    learner = {name: value for name, value in config.settings["learner"].items() if name != "noise"}
    record = {"format": 2, "benchmark": "split-digits", "method": method, "seed": 0}
    stored = from_record({**record, "config": {**config.settings, "learner": learner}})  # type: ignore[typeddict-item]
    assert stored.learner.noise == "threefry"  # type: ignore[attr-defined]
    assert config.learner.noise == "hash"  # type: ignore[attr-defined]
