import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import make_stream

from vcl.curvature import diagonal_fisher
from vcl.errors import VclError
from vcl.methods.progress_compress import ProgressCompress, active_logits, beside, kl_of_classes
from vcl.nets import Weights, logits, random, random_like, select_head
from vcl.training import Batch, Fitter, to_device

KEY = jax.random.key(3)
LEARNER = ProgressCompress(hidden=(8, 7), epochs=4, batch_size=16, learning_rate=0.02, strength=7.0, decay=0.6)
STREAM = make_stream(shared_head=True)
TRUE = jnp.array(True)
FALSE = jnp.array(False)


def softmax(x):
    exponentials = np.exp(x - x.max(-1, keepdims=True))
    return exponentials / exponentials.sum(-1, keepdims=True)


def perturbed(key, tree, scale=0.1):
    leaves, structure = jax.tree.flatten(tree)
    keys = jax.random.split(key, len(leaves))
    return jax.tree.unflatten(
        structure, [a + scale * jax.random.normal(k, a.shape) for k, a in zip(keys, leaves, strict=True)]
    )


def networks():
    """A base, and an active column beside it."""
    base = perturbed(KEY, select_head(random(KEY, LEARNER.architecture, STREAM.spec), 0))
    return base, perturbed(KEY, random_like(jax.random.fold_in(KEY, 1), beside(base)))


def observe(learner, state, stage):
    data = to_device(STREAM.train(stage), STREAM.spec.capacity)
    return learner.observe(jax.random.fold_in(KEY, stage), state, STREAM.spec.task(stage), data, Fitter())


def equal(a, b) -> bool:
    return all(np.array_equal(x, y) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))


def numpy_active(active: Weights, base: Weights, x):
    """h_i = relu(W h_{i-1} + U h^base_{i-1} + b), with W and U apart."""
    relu = lambda a: np.maximum(a, 0.0)  # noqa: E731
    h, known = x, x
    for number, (layer, old) in enumerate(zip(active.body, base.body, strict=True)):
        weight = np.asarray(layer.weight)
        if number == 0:
            new = relu(h @ weight + layer.bias)
        else:
            width = h.shape[1]
            new = relu(h @ weight[:width] + known @ weight[width:] + layer.bias)
        h, known = new, relu(known @ np.asarray(old.weight) + old.bias)
    weight = np.asarray(active.head.weight)
    return h @ weight[: h.shape[1]] + known @ weight[h.shape[1] :] + active.head.bias


def test_the_column_is_fed_by_the_hidden_layers_of_the_base():
    base, active = networks()
    x = STREAM.train(0).inputs[:9]
    np.testing.assert_allclose(
        active_logits(active, base, TRUE, jnp.asarray(x)), numpy_active(active, base, x), rtol=2e-4, atol=1e-5
    )


def test_a_base_that_has_learnt_nothing_gives_nothing():
    base, active = networks()
    other = perturbed(jax.random.key(9), base, 1.0)
    x = jnp.asarray(STREAM.train(0).inputs[:9])
    one, same = (active_logits(active, b, FALSE, x) for b in (base, other))
    assert np.array_equal(one, same)
    assert not np.allclose(one, active_logits(active, base, TRUE, x))


def test_the_compress_loss_is_the_divergence_and_the_penalty():
    base, active = networks()
    network = perturbed(jax.random.key(5), base)
    precision = jax.tree.map(jnp.abs, perturbed(jax.random.key(6), base))
    x, labels = (jnp.asarray(a[:9]) for a in STREAM.train(0)[:2])
    batch = Batch(x, labels.astype(jnp.int32), jnp.arange(9) < 6, jnp.int32(60))
    p, q = softmax(numpy_active(active, base, np.asarray(x))), softmax(np.asarray(logits(network, x)))
    divergence = (p * np.log(p / q)).sum(1)[:6].mean()
    penalty = sum(
        float((np.asarray(f) * (np.asarray(w) - np.asarray(m)) ** 2).sum())
        for w, f, m in zip(*map(jax.tree.leaves, (network, precision, base)), strict=True)
    )

    def loss(learner):
        return float(learner.compress_loss(KEY, network, (active, TRUE, precision, base), batch))

    assert loss(LEARNER) == pytest.approx(divergence + 0.5 * 7.0 * 0.6 * penalty, rel=1e-4)
    assert loss(dataclasses.replace(LEARNER, strength=0.0)) == pytest.approx(divergence, rel=1e-4)
    assert penalty > 0.1 * divergence > 0


def test_the_divergence_is_zero_for_equal_distributions_only():
    teacher = jnp.asarray(np.random.default_rng(0).normal(0, 3, (20, 5)), jnp.float32)
    np.testing.assert_allclose(kl_of_classes(teacher, teacher + 2.0), 0.0, atol=1e-5)
    assert (kl_of_classes(teacher, -teacher) > 0.01).all()


def test_the_fisher_information_of_the_compressed_base_is_added_to_what_is_kept_of_the_old():
    states = [LEARNER.init(KEY, STREAM.spec)]
    for stage in range(2):
        states.append(observe(LEARNER, states[-1], stage))
    expected = jax.tree.map(jnp.zeros_like, states[0].precision)
    for stage, state in enumerate(states[1:]):
        data = to_device(STREAM.train(stage), STREAM.spec.capacity)
        fisher = diagonal_fisher(KEY, select_head(state.network, 0), data)
        old = select_head(expected, 0)
        expected = jax.tree.map(lambda p, f: 0.6 * p + f, old, fisher)
        found = select_head(state.precision, 0)
        for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-9)
        expected = state.precision


def test_the_penalty_holds_the_base_where_it_was():
    first = observe(LEARNER, LEARNER.init(KEY, STREAM.spec), 0)

    def moved(factor):
        """How far the second task moves the base, in the metric of what mattered to the first."""
        scaled = jax.tree.map(lambda f: factor * f, first.precision)
        network = observe(LEARNER, dataclasses.replace(first, precision=scaled), 1).network
        squares = jax.tree.map(
            lambda f, a, b: float(jnp.sum(f * (a - b) ** 2)), first.precision, network, first.network
        )
        return sum(jax.tree.leaves(squares))

    assert moved(1e3) < 0.1 * moved(0.0)


def test_the_column_starts_afresh_or_goes_on():
    state = observe(LEARNER, LEARNER.init(KEY, STREAM.spec), 0)
    other = dataclasses.replace(state, active=perturbed(KEY, state.active))
    assert equal(observe(LEARNER, state, 1), observe(LEARNER, other, 1))
    continued = dataclasses.replace(LEARNER, column="continued")
    assert not equal(observe(continued, state, 1), observe(continued, other, 1))


def test_a_decay_beyond_one_is_refused():
    with pytest.raises(VclError, match="--decay"):
        ProgressCompress(decay=1.5)
