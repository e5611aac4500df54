"""Synaptic intelligence: the path integral and what becomes of it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from by_hand import SIZE, Known, adam, assert_close, drawn, spec, to_mlp
from conftest import blobs

from vcl.core import Examples
from vcl.errors import VclError
from vcl.methods.si import SI, PathIntegral, SIState
from vcl.nets import Affine, from_layers
from vcl.training import Fitter, first_moments, to_device


def test_the_path_integral_is_that_of_the_tasks_own_gradient_along_adams_steps(float64):
    """Every step by hand: batches hold all examples, so that their order does not matter."""
    rng = np.random.default_rng(0)
    x, y = blobs(0, SIZE)
    x = x.astype(np.float64)
    start, anchor, importance = drawn(rng, -1, 1), drawn(rng, -1, 1), drawn(rng, 0, 2)
    learner = SI(hidden=(4,), strength=0.7, learning_rate=0.05)
    network, path, _ = Fitter()(
        jax.random.key(0), "train", PathIntegral(learner), (to_mlp(start), first_moments("adam", to_mlp(start))),
        (to_mlp(importance), to_mlp(anchor)), to_device(Examples(x, y), SIZE), epochs=6, batch_size=SIZE,
    )  # fmt: skip

    end, omega = dict(start), {name: np.zeros_like(a) for name, a in start.items()}
    steps = adam(start, importance, anchor, 0.7, 0.05, x, y)
    for _ in range(6):
        own, change = next(steps)
        omega = {name: omega[name] - own[name] * change[name] for name in omega}
        end = {name: end[name] + change[name] for name in end}
    assert_close(network, end)
    assert_close(path, omega)


def test_importance_is_the_loss_lowered_for_the_way_that_was_gone():
    learner = SI(hidden=(1,), xi=0.5)
    one = from_layers([Affine(jnp.zeros((6, 1)), jnp.zeros(1)), Affine(jnp.zeros((2, 1, 2)), jnp.zeros((2, 2)))])
    state = SIState(jax.tree.map(jnp.ones_like, one), jax.tree.map(lambda a: a + 3.0, one))
    head = one.with_layers([*one.body, jax.tree.map(lambda a: a[0], one.head)])
    end = jax.tree.map(lambda a: a + 2.0, head)  # every weight went from 1 to 2
    gained, lost = jax.tree.map(lambda a: a + 6.0, head.body), jax.tree.map(lambda a: a - 6.0, head.head)
    path = head.with_layers([*gained, lost])  # what was lost does not count
    fit = Known(end, path, None)
    x, y = blobs(0, SIZE)
    after = learner.observe(
        jax.random.key(0), state, spec((0, 1)).task(1), to_device(Examples(x, y), SIZE), fit
    )  # fmt: skip
    importance, anchor = fit.held
    assert {float(a) for leaf in jax.tree.leaves(importance) for a in leaf.ravel()} == {3.0}
    assert {float(a) for leaf in jax.tree.leaves(anchor) for a in leaf.ravel()} == {1.0}
    np.testing.assert_allclose(after.importance.body[0].weight, 3.0 + 6.0 / (1.0**2 + 0.5))
    np.testing.assert_allclose(after.importance.head.weight, 3.0)
    np.testing.assert_allclose(after.network.head.weight[1], 2.0)
    np.testing.assert_allclose(after.network.head.weight[0], 1.0)


def test_weights_that_matter_are_held():
    x, y = blobs(0, SIZE)
    x2, y2 = blobs(1, SIZE)
    ways = []
    for strength in (0.0, 10.0):
        learner = SI(hidden=(4,), strength=strength, learning_rate=0.02, epochs=20, batch_size=SIZE)
        state = learner.init(jax.random.key(0), spec((0, 0)))
        for task, data in enumerate([(x, y), (x2, y2)]):
            before = state
            state = learner.observe(
                jax.random.key(task), state, spec((0, 0)).task(task), to_device(Examples(*data), SIZE), Fitter()
            )
        way = jax.tree.map(
            lambda o, a, b: jnp.sum(o * (a - b) ** 2), before.importance, state.network, before.network
        )
        ways.append(float(sum(jax.tree.leaves(way))))
    assert ways[0] > 2 * ways[1] > 0


def test_kept_moments_make_two_tasks_on_the_same_data_one_longer_fit():
    """Without a penalty, and with all examples in each batch, what was cut into two tasks is one fit."""
    x, y = blobs(0, SIZE)
    data = to_device(Examples(x, y), SIZE)

    def learnt(moments: str, tasks: int, epochs: int) -> SIState:
        learner = SI(hidden=(4,), strength=0.0, moments=moments, learning_rate=0.02, epochs=epochs, batch_size=SIZE)
        state = learner.init(jax.random.key(0), spec((0,)))
        for _ in range(tasks):
            state = learner.observe(jax.random.key(1), state, spec((0,)).task(0), data, Fitter())
        return state

    once, twice = learnt("keep", 1, 12), learnt("keep", 2, 6)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), once.network, twice.network)
    assert int(twice.moments.count) == 12
    afresh = learnt("reset", 2, 6)
    assert not np.allclose(afresh.network.head.weight, once.network.head.weight, rtol=1e-3)


def test_each_head_keeps_its_own_moments():
    x, y = blobs(0, SIZE)
    learner = SI(hidden=(4,), moments="keep", epochs=2, batch_size=SIZE)
    state = learner.init(jax.random.key(0), spec((0, 1)))
    after = learner.observe(
        jax.random.key(0), state, spec((0, 1)).task(0), to_device(Examples(x, y), SIZE), Fitter()
    )  # fmt: skip
    assert float(jnp.abs(after.moments.mu.head.weight[0]).max()) > 0
    assert float(jnp.abs(after.moments.mu.head.weight[1]).max()) == 0
    assert float(jnp.abs(after.moments.nu.body[0].weight).max()) > 0


@pytest.mark.parametrize("settings", [{"strength": -1.0}, {"xi": 0.0}])
def test_settings_out_of_range_are_refused(settings):
    with pytest.raises(VclError, match=next(iter(settings))):
        SI(**settings)
