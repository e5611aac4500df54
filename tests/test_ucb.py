"""Uncertainty-guided learning: posterior, prior, learning rates in proportion to σ, and the cubed variant."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import make_stream
from scipy.special import logsumexp
from scipy.stats import norm

from vcl.core import Examples, StreamSpec
from vcl.errors import VclError
from vcl.methods.ucb import UCB, GuidedStep, Posterior, draw
from vcl.methods.variants.ucb_cubed import UCBCubed
from vcl.nets import select_head
from vcl.training import Batch, Fitter, to_device

KEY = jax.random.key(0)
SETTINGS = {
    "hidden": (5,),
    "epochs": 2,
    "batch_size": 16,
    "learning_rate": 0.01,
    "prior_mix": 0.3,
    "narrow_std": 0.05,
}
NEUTRAL = {"exponent": 1.0, "spread_rate": 0.01, "draws": "weights", "kl_weight": 1.0}
LEARNER = UCB(**SETTINGS)
VARIANT = UCBCubed(**SETTINGS, **NEUTRAL)
SPEC = StreamSpec((6,), "float32", 2, (0, 1, 2), 60)


def leaves(tree):
    return [np.asarray(a) for a in jax.tree.leaves(tree)]


def posterior() -> Posterior:
    """One whose σ differ from weight to weight."""
    q = select_head(LEARNER.init(KEY, SPEC).posterior, 0)
    rho, structure = jax.tree.flatten(q.rho)
    return Posterior(q.mean, jax.tree.unflatten(structure, [r + jax.random.normal(KEY, r.shape) for r in rho]))


def minibatch() -> Batch:
    examples = make_stream().train(0)
    return Batch(
        jnp.asarray(examples.inputs[:16]), jnp.asarray(examples.labels[:16]), jnp.ones(16, bool), jnp.int32(60)
    )


class Watch:
    """A fit that keeps what it was asked."""

    def __call__(self, key, name, step, params, args, data, *, epochs, batch_size):
        self.start, self.rates = params, args
        return Fitter()(key, name, step, params, args, data, epochs=epochs, batch_size=batch_size)


def watched(*, shared_head: bool):
    """What the fits of three tasks began at, and the rates they were given."""
    stream = make_stream(shared_head=shared_head)
    state, seen = LEARNER.init(KEY, stream.spec), []
    for stage in range(3):
        watch = Watch()
        data = to_device(stream.train(stage), stream.spec.capacity)
        state = LEARNER.observe(KEY, state, stream.spec.task(stage), data, watch)
        seen.append(watch)
    return seen


def test_sigma_is_the_softplus_of_rho_and_begins_as_told():
    q = posterior()
    for rho, std in zip(leaves(q.rho), leaves(q.std()), strict=True):
        np.testing.assert_allclose(std, np.log(1.0 + np.exp(rho.astype(float))), rtol=1e-5)
    for std in leaves(LEARNER.init(KEY, SPEC).posterior.std()):
        np.testing.assert_allclose(std, LEARNER.init_std, rtol=1e-5)


def test_the_gaussian_of_a_posterior_has_its_sigma():
    q = posterior()
    for log_var, std in zip(leaves(q.gaussian().log_var), leaves(q.std()), strict=True):
        np.testing.assert_allclose(np.exp(0.5 * log_var), std, rtol=1e-5)


def log_mixture(weights) -> float:
    parts = [
        np.log(share) + norm.logpdf(np.concatenate([w.ravel() for w in leaves(weights)]).astype(float), 0, std)
        for share, std in ((LEARNER.prior_mix, LEARNER.prior_std), (1 - LEARNER.prior_mix, LEARNER.narrow_std))
    ]
    return logsumexp(parts, axis=0).sum()


@pytest.mark.parametrize("w", [0.0, 0.01, -0.2, 0.7, 30.0])
def test_the_prior_is_a_mixture_of_two_gaussians_near_and_far(w, float64):
    weights = [jnp.full(3, w)]
    np.testing.assert_allclose(LEARNER.log_prior(weights), log_mixture(weights), rtol=1e-9)
    assert np.isfinite(jax.grad(lambda w: LEARNER.log_prior([w]))(weights[0])).all()


def test_the_divergence_is_taken_at_the_weights_that_answer_and_divided_by_all_examples():
    q, batch = posterior(), minibatch()
    weights, log_q = draw(jax.random.split(KEY, 1)[0], q)
    pairs = zip(leaves(weights), leaves(q.mean), leaves(q.std()), strict=True)
    expected = sum(norm.logpdf(w.astype(float), m, s).sum() for w, m, s in pairs)
    np.testing.assert_allclose(log_q, expected, rtol=1e-4)
    without = dataclasses.replace(VARIANT, kl_weight=0.0).loss(KEY, q, batch)
    twice = dataclasses.replace(VARIANT, kl_weight=2.0).loss(KEY, q, batch)
    np.testing.assert_allclose(twice - without, 2.0 * (expected - log_mixture(weights)) / 60, rtol=1e-4)
    np.testing.assert_allclose(LEARNER.loss(KEY, q, batch) - without, (twice - without) / 2, rtol=1e-4)


def test_drawn_weights_have_the_mean_and_the_spread_of_the_posterior():
    q, n = posterior(), 4000
    drawn = jax.jit(jax.vmap(lambda key: draw(key, q)[0]))(jax.random.split(KEY, n))
    for w, m, s in zip(leaves(drawn), leaves(q.mean), leaves(q.std()), strict=True):
        assert (np.abs(w.mean(0) - m) < 5 * s / np.sqrt(n)).all()
        assert (np.abs(w.std(0) / s - 1) < 5 / np.sqrt(2 * n)).all()


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_a_guided_step_of_the_means_is_sigma_times_the_plain_one_and_that_of_rho_is_not_scaled(optimizer, float64):
    step = GuidedStep(dataclasses.replace(LEARNER, optimizer=optimizer))
    q, yes, no = posterior(), jnp.array(True), jnp.array(False)
    carry, progress = step.init(q), jnp.zeros(())
    (plain, *_), _ = jax.jit(step)(KEY, carry, LEARNER.rates(q, no, no), minibatch(), progress)
    (guided, *_), _ = jax.jit(step)(KEY, carry, LEARNER.rates(q, yes, yes), minibatch(), progress)
    for before, a, b, std in zip(
        leaves(q.mean), leaves(plain.mean), leaves(guided.mean), leaves(q.std()), strict=True
    ):
        assert (a != before).all()
        np.testing.assert_allclose(b - before, std * (a - before), rtol=1e-6, atol=1e-15)
    for before, a, b in zip(leaves(q.rho), leaves(plain.rho), leaves(guided.rho), strict=True):
        assert (a != before).all()
        np.testing.assert_array_equal(a, b)


def test_rates_fall_by_the_exponent_and_are_never_above_that_of_the_first_task():
    learner, q = dataclasses.replace(VARIANT, guidance=10.0, exponent=3.0), posterior()
    rates, std = leaves(learner.rates(q, jnp.array(True), jnp.array(True))), leaves(q.std())
    assert any((10.0 * s > 1.0).any() for s in std)
    for rate, s in zip(rates, std, strict=True):
        np.testing.assert_allclose(rate, np.minimum((10.0 * s) ** 3, 1.0), rtol=1e-5)


def test_either_way_of_drawing_expects_the_same_loss():
    q, batch, n = posterior(), minibatch(), 4000

    def losses(draws: str) -> np.ndarray:
        learner = dataclasses.replace(VARIANT, draws=draws, kl_weight=0.0)
        return np.asarray(jax.jit(jax.vmap(lambda key: learner.loss(key, q, batch)))(jax.random.split(KEY, n)))

    weights, activations = losses("weights"), losses("activations")
    error = np.sqrt((weights.var() + activations.var()) / n)
    assert abs(weights.mean() - activations.mean()) < 4 * error
    assert activations.std() < weights.std()


def test_the_divergence_does_not_depend_on_what_is_drawn_for_the_likelihood():
    q, batch = posterior(), minibatch()
    learners = [dataclasses.replace(VARIANT, draws="activations", kl_weight=k) for k in (0.0, 1.0)]
    without, with_it = (learner.loss(KEY, q, batch) for learner in learners)
    learners = [dataclasses.replace(VARIANT, kl_weight=k) for k in (0.0, 1.0)]
    np.testing.assert_allclose(
        with_it - without, -np.subtract(*(learner.loss(KEY, q, batch) for learner in learners)), rtol=1e-4
    )


def test_where_the_data_says_nothing_sigma_stays_and_elsewhere_it_falls_but_never_rises():
    learner = dataclasses.replace(VARIANT, optimizer="sgd", spread_rate=300.0, draws="activations", kl_weight=0.0)
    learner = dataclasses.replace(learner, prior_std=learner.init_std)
    stream = make_stream()
    examples = stream.train(0)
    blind = Examples((examples.inputs * (np.arange(6) > 0)).astype(np.float32), examples.labels)
    data = to_device(blind, stream.spec.capacity)
    state = learner.init(KEY, stream.spec)
    after = learner.observe(KEY, state, stream.spec.task(0), data, Fitter())
    before, std = (np.asarray(s.posterior.std().body[0].weight) for s in (state, after))
    np.testing.assert_array_equal(std[0], before[0])
    assert (std <= before).all()
    assert std[1:].mean() < 0.95 * before[1:].mean()


def test_the_rate_of_rho_can_rise_as_that_of_the_means_falls():
    step = GuidedStep(dataclasses.replace(VARIANT, schedule="cosine", spread_schedule="opposite"))
    q, batch = select_head(LEARNER.init(KEY, SPEC).posterior, 0), minibatch()
    (first, *_), _ = jax.jit(step)(KEY, step.init(q), q.std(), batch, jnp.zeros(()))
    (last, *_), _ = jax.jit(step)(KEY, step.init(q), q.std(), batch, jnp.ones(()))
    for before, start, end in zip(leaves(q.rho), leaves(first.rho), leaves(last.rho), strict=True):
        np.testing.assert_array_equal(start, before)
        assert (end != before).any()
    for before, start, end in zip(leaves(q.mean), leaves(first.mean), leaves(last.mean), strict=True):
        assert (start != before).all()
        np.testing.assert_allclose(end, before, atol=1e-8)


def test_rho_can_be_held():
    step = GuidedStep(dataclasses.replace(VARIANT, spread_rate=0.0))
    q = posterior()
    (after, *_), _ = step(KEY, step.init(q), q.std(), minibatch(), jnp.zeros(()))
    assert all(np.array_equal(a, b) for a, b in zip(leaves(q.rho), leaves(after.rho), strict=True))


def test_the_first_task_is_not_guided_and_a_new_head_never_is():
    for number, fit in enumerate(watched(shared_head=False)):
        for rate, std in zip(leaves(fit.rates.body), leaves(fit.start.std().body), strict=True):
            np.testing.assert_allclose(rate, std if number else 1.0, rtol=1e-6)
        assert all((rate == 1.0).all() for rate in leaves(fit.rates.head))


def test_a_shared_head_is_guided_from_the_second_task_on():
    first, *others = watched(shared_head=True)
    assert all((rate == 1.0).all() for rate in leaves(first.rates))
    for fit in others:
        for rate, std in zip(leaves(fit.rates), leaves(fit.start.std()), strict=True):
            assert np.ptp(std) > 0
            np.testing.assert_allclose(rate, std, rtol=1e-6)


@pytest.mark.parametrize("shared_head", [True, False])
def test_later_batches_of_a_task_are_guided_by_earlier_tasks_only(shared_head):
    stream = make_stream(shared_head=shared_head)
    state = LEARNER.init(KEY, stream.spec)

    def protected(index: int, batch: int) -> tuple[bool, bool]:
        body, head = LEARNER.protected(state, dataclasses.replace(stream.spec.task(index), batch=batch))
        return bool(body), bool(head)

    assert protected(0, 0) == (False, False)
    state = dataclasses.replace(state, trained=state.trained.at[0].set(True))
    assert protected(0, 1) == (False, False)
    assert protected(1, 0) == (True, shared_head)
    state = dataclasses.replace(state, trained=state.trained.at[stream.spec.heads[1]].set(True))
    assert protected(1, 1) == (True, shared_head)
    if not shared_head:
        assert protected(0, 1) == (True, False)


def test_there_is_a_number_for_every_mean_and_every_spread():
    weights = 6 * 5 + 5 + 3 * (5 * 2 + 2)
    assert LEARNER.footprint(LEARNER.init(KEY, SPEC)).parameters == 2 * weights


@pytest.mark.parametrize(
    "settings",
    [
        {"prior_mix": 0.0},
        {"prior_mix": 1.0},
        {"spread_schedule": "opposite"},
        {"init_std": 2.0},
        {"narrow_std": 2.0},
        {"guidance": 0.0},
        {"exponent": 0.0},
        {"kl_weight": -1.0},
    ],
)
def test_settings_without_meaning_are_refused(settings):
    with pytest.raises(VclError, match=next(iter(settings)).replace("_", "-")):
        UCBCubed(**{"init_std": 0.01, **settings})


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_the_variant_with_neutral_settings_is_the_published_method_and_otherwise_it_is_not(optimizer):
    stream = make_stream(shared_head=True)

    def learn(learner: UCB):
        state = learner.init(KEY, stream.spec)
        for stage in range(2):
            data = to_device(stream.train(stage), stream.spec.capacity)
            state = learner.observe(jax.random.fold_in(KEY, stage), state, stream.spec.task(stage), data, Fitter())
        return leaves(state)

    published = learn(dataclasses.replace(LEARNER, optimizer=optimizer))
    neutral, cubed = (
        learn(dataclasses.replace(VARIANT, optimizer=optimizer, exponent=exponent)) for exponent in (1.0, 3.0)
    )
    assert all(np.allclose(a, b, rtol=1e-5, atol=1e-6) for a, b in zip(published, neutral, strict=True))
    assert not all(np.allclose(a, b, rtol=1e-3) for a, b in zip(published, cubed, strict=True))
