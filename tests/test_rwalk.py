"""Riemannian walk: the Fisher information's moving average, the scores, and their scale."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from by_hand import SIZE, Known, adam, assert_close, drawn, spec, to_mlp
from conftest import blobs

from vcl.core import Examples
from vcl.errors import VclError
from vcl.methods.rwalk import RiemannianStep, RWalk, RWalkState, Walk, scaled, settle
from vcl.nets import Affine, Weights, from_layers
from vcl.training import Fitter, to_device


def test_fisher_and_scores_are_those_of_the_tasks_own_gradient_along_adams_steps(float64):
    """Every step by hand, over two whole intervals and a part of a third; batches hold all examples."""
    rng = np.random.default_rng(0)
    x, y = blobs(0, SIZE)
    x = x.astype(np.float64)
    start, anchor, importance, fisher = (drawn(rng, *ends) for ends in [(-1, 1), (-1, 1), (0, 2), (0, 0.1)])
    learner = RWalk(hidden=(4,), strength=0.7, learning_rate=0.05, fisher_rate=0.3, interval=3, epsilon=0.01)
    network, walk = Fitter()(
        jax.random.key(0), "train", RiemannianStep(learner), (to_mlp(start), to_mlp(fisher)),
        (to_mlp(importance), to_mlp(anchor)), to_device(Examples(x, y), SIZE), epochs=8, batch_size=SIZE,
    )  # fmt: skip

    end, corner = dict(start), dict(start)
    gains, scores = ({name: np.zeros_like(a) for name, a in start.items()} for _ in range(2))
    steps = adam(start, importance, anchor, 0.7, 0.05, x, y)
    for step in range(1, 9):
        own, change = next(steps)
        for name, g in own.items():
            end[name] = end[name] + change[name]
            fisher[name] = 0.3 * g**2 + 0.7 * fisher[name]
            gains[name] = gains[name] - g * change[name]
            if step % 3 == 0:
                distance = 0.5 * fisher[name] * (end[name] - corner[name]) ** 2
                scores[name] = scores[name] + np.maximum(gains[name], 0.0) / (distance + 0.01)
                gains[name], corner[name] = np.zeros_like(g), end[name]
    for found, expected in [(network, end), (walk.fisher, fisher), (walk.scores, scores), (walk.gains, gains)]:
        assert_close(found, expected)
    assert_close(walk.corner, corner)


def filled(value: float, heads: tuple[int, ...] = ()) -> Weights:
    body = Affine(jnp.full((6, 1), value), jnp.full(1, value))
    return from_layers([body, Affine(jnp.full((*heads, 1, 2), value), jnp.full((*heads, 2), value))])


def test_settling_an_interval_twice_adds_nothing():
    walk = Walk(filled(2.0), filled(1.0), filled(3.0), filled(0.0), jnp.int32(0))
    once = settle(walk, filled(4.0), 0.5)
    np.testing.assert_allclose(once.scores.head.weight, 1.0 + 3.0 / (0.5 * 2.0 * 4.0**2 + 0.5))
    np.testing.assert_allclose(settle(once, filled(4.0), 0.5).scores.head.weight, once.scores.head.weight)
    assert not settle(
        Walk(filled(2.0), filled(0.0), filled(-3.0), filled(0.0), jnp.int32(0)), filled(4.0), 0.5
    ).scores.head.bias.any()


def test_after_a_task_scores_are_averaged_and_the_interval_that_was_not_complete_counts():
    learner = RWalk(hidden=(1,), epsilon=0.5)
    state = RWalkState(filled(1.0, (2,)), filled(0.0, (2,)), filled(3.0, (2,)))
    fit = Known(filled(2.0), Walk(filled(5.0), filled(4.0), filled(6.0), filled(1.0), jnp.int32(0)))
    data = to_device(Examples(*blobs(0, SIZE)), SIZE)
    after = learner.observe(jax.random.key(0), state, spec((0, 1)).task(1), data, fit)
    expected = 0.5 * (3.0 + 4.0 + 6.0 / (0.5 * 5.0 * 1.0**2 + 0.5))
    np.testing.assert_allclose(after.scores.body[0].weight, expected)
    np.testing.assert_allclose(after.scores.head.weight[:, 0, 0], [3.0, expected])
    np.testing.assert_allclose(after.fisher.head.bias[:, 0], [0.0, 5.0])


def test_what_holds_a_weight_is_the_sum_of_both_measures_scaled():
    body = Affine(jnp.array([[2.0, 6.0]]), jnp.array([4.0, 4.0]))
    found = scaled(from_layers([body, Affine(jnp.array([[3.0], [2.0]]), jnp.array([10.0]))]))
    np.testing.assert_allclose(found.body[0].weight, [[0.0, 0.5]])
    np.testing.assert_allclose(found.body[0].bias, [0.25, 0.25])
    np.testing.assert_allclose(found.head.weight, [[0.125], [0.0]])
    np.testing.assert_allclose(found.head.bias, [1.0])
    assert not any(leaf.any() for leaf in jax.tree.leaves(scaled(filled(0.0))))

    rng = np.random.default_rng(0)
    fisher, scores = (
        jax.tree.map(lambda a: jnp.asarray(rng.uniform(1, 9, a.shape)), filled(0.0, (1,))) for _ in "ab"
    )
    fit = Known(filled(2.0), Walk(*(filled(1.0) for _ in range(4)), jnp.int32(0)))
    data = to_device(Examples(*blobs(0, SIZE)), SIZE)
    state = RWalkState(filled(7.0, (1,)), fisher, scores)
    RWalk(hidden=(1,)).observe(jax.random.key(0), state, spec((0,)).task(0), data, fit)
    importance, anchor = fit.held
    np.testing.assert_allclose(anchor.head.weight, 7.0)
    for position in (lambda net: net.body[0].weight, lambda net: net.head.weight.reshape(1, 2)):
        expected = position(scaled(fisher)) + position(scaled(scores))
        np.testing.assert_allclose(position(importance), expected, rtol=1e-6)


@pytest.mark.parametrize(
    "settings", [{"strength": -1.0}, {"fisher_rate": 0.0}, {"fisher_rate": 1.5}, {"interval": 0}, {"epsilon": 0.0}]
)
def test_settings_out_of_range_are_refused(settings):
    with pytest.raises(VclError, match=next(iter(settings)).replace("_", "-")):
        RWalk(**settings)
