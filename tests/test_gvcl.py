"""Generalised VCL: its limits, and its FiLM layers."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import make_stream

from vcl.core import Task
from vcl.methods.gvcl import GVCL, extra_pull
from vcl.methods.kronecker_vcl import KroneckerVCL
from vcl.methods.vcl import VCL
from vcl.posteriors.mean_field import Gaussian, isotropic, kl, partly_forgotten
from vcl.training import Fitter, to_device

KEY = jax.random.key(0)
SIZES = {"hidden": (8,), "epochs": 5, "batch_size": 16, "learning_rate": 0.02}


def observe(learner, stream, stages=2):
    state = learner.init(KEY, stream.spec)
    for stage in range(stages):
        data = to_device(stream.train(stage), stream.spec.capacity)
        state = learner.observe(jax.random.fold_in(KEY, stage), state, stream.task(stage), data, Fitter())
    return state


def test_with_both_knobs_at_one_it_is_vcl(stream):
    ours = observe(GVCL(**SIZES, temperature=1.0, strength=1.0), stream)
    theirs = observe(VCL(**SIZES), stream)
    for a, b in zip(jax.tree.leaves(ours.posterior), jax.tree.leaves(theirs.posterior), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)


@pytest.mark.usefixtures("float64")
def test_as_the_temperature_falls_the_divergence_becomes_the_penalty_of_online_ewc():
    """A task's curvature H leaves the precision H/β + Λ_0, with which β KL_λ tends to λ/2 Σ H (μ - μ*)²."""
    rng = np.random.default_rng(0)
    curvature, old, new = (jnp.asarray(rng.uniform(0.5, 2.0, 6)) for _ in range(3))
    first = isotropic(old, 0.0, 1.0)
    for temperature, tolerance in ((1e-2, 0.2), (1e-6, 1e-4)):
        learner = GVCL(temperature=temperature, strength=7.0)
        log_var = -jnp.log(curvature / temperature + 1.0)

        def objective(log_var, learner=learner):
            """With the likelihood exp(-½ H (θ - μ*)²), whose expectation is known."""
            return 0.5 * jnp.sum(curvature * jnp.exp(log_var)) + learner.divergence(Gaussian(old, log_var), first)

        np.testing.assert_allclose(jax.grad(objective)(log_var), 0.0, atol=1e-12)
        found = learner.divergence(Gaussian(new, log_var), Gaussian(old, log_var))
        exact = 0.5 * 7.0 * jnp.sum(curvature * (new - old) ** 2)
        assert float(found) == pytest.approx(float(exact), rel=tolerance)


@pytest.mark.usefixtures("float64")
def test_the_pull_is_weighted_between_the_earlier_precision_and_the_first():
    rng = np.random.default_rng(1)
    q, prior = (Gaussian(jnp.asarray(rng.normal(size=4)), jnp.asarray(rng.uniform(-3, -1, 4))) for _ in range(2))
    before = np.exp(-np.asarray(prior.log_var))
    weights = 3.0 * (before - 1.0) + 1.0
    change = np.asarray(q.mean - prior.mean)
    same_mean = float(kl(Gaussian(prior.mean, q.log_var), prior))
    found = float(kl(q, prior) + extra_pull(q, prior, 3.0, 1.0))
    assert found == pytest.approx(same_mean + 0.5 * np.sum(weights * change**2), rel=1e-9)
    wide = Gaussian(prior.mean, jnp.full(4, 2.0))
    assert float(extra_pull(q, wide, 3.0, 1.0)) == 0.0


def test_film_layers_belong_to_one_task_and_stay_as_they_are_afterwards(stream):
    learner = GVCL(**SIZES, film=True)
    first, second = observe(learner, stream, 1), observe(learner, stream, 2)
    film = first.film[0]
    assert np.abs(film.scale[0] - 1.0).max() > 1e-3
    assert np.array_equal(film.scale[1:], np.ones((2, 8)))
    assert np.array_equal(film.shift[0], second.film[0].shift[0])
    params = learner.readout(KEY, second, Task(0, 0), Fitter())
    x = jnp.asarray(stream.test(0).inputs)
    off = dataclasses.replace(params, film=(dataclasses.replace(params.film[0], scale=jnp.zeros(8)),))
    assert not np.allclose(learner.predict(KEY, params, x), learner.predict(KEY, off, x))


def test_there_are_no_film_layers_where_tasks_share_a_head():
    assert GVCL(**SIZES, film=True).init(KEY, make_stream(shared_head=True).spec).film == ()


@pytest.mark.usefixtures("float64")
def test_forgetting_mixes_precisions_and_means_by_them():
    q = Gaussian(jnp.asarray([2.0]), jnp.log(jnp.asarray([0.25])))
    p = isotropic(q.mean, 0.0, 1.0)
    half = partly_forgotten(q, p, 0.5)
    assert float(jnp.exp(-half.log_var[0])) == pytest.approx(2.5)
    assert float(half.mean[0]) == pytest.approx(0.5 * 4.0 * 2.0 / 2.5)
    same, none = (partly_forgotten(q, p, share) for share in (0.0, 1.0))
    assert float(same.mean[0]) == pytest.approx(2.0)
    assert float(none.mean[0]) == 0.0


@pytest.mark.parametrize("kind", [VCL, GVCL, KroneckerVCL])
def test_a_learner_that_forgets_moves_further_from_what_it_knew(stream, kind):
    """The more of the earlier posterior is given up, the less holds its means where they were."""

    def moved(share):
        start = {} if kind is KroneckerVCL else {"start": "previous"}
        learner = kind(**{**SIZES, "epochs": 20}, **start, forgetting=share)
        before, after = (body_of(observe(learner, stream, stages)) for stages in (1, 2))
        return float(np.linalg.norm(after - before))

    distances = [moved(share) for share in (0.0, 0.5, 0.95)]
    assert distances == sorted(distances)
    assert distances[-1] > 1.03 * distances[0]


def body_of(state):
    """The means of the first layer."""
    return (state.mean if hasattr(state, "mean") else state.posterior.mean).body[0].weight
