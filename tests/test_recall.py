"""Kronecker VCL that recalls earlier tasks by Gaussian inputs."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
from conftest import blobs, make_stream

from vcl.benchmarks import StreamOptions, build
from vcl.core import Examples
from vcl.methods.base.eigenbasis import bases_of, rotate, rotated_logits
from vcl.methods.kronecker_vcl import Held, believed
from vcl.methods.variants.kronecker_vcl_recall import (
    KroneckerVCLRecall,
    Moments,
    draw,
    mean_divergence,
    moved,
    rotated_moments,
    with_task,
)
from vcl.nets import logits, select_head
from vcl.runs.fold import learn
from vcl.training import Fitter, to_device

KEY = jax.random.key(0)
SMALL = KroneckerVCLRecall(hidden=(8,), epochs=6, batch_size=16, learning_rate=0.02, temperature=0.2)


def none(tasks=2, rank=6, width=6):
    return Moments(
        jnp.zeros((tasks, width)), jnp.zeros((tasks, rank, width)), jnp.zeros(tasks), jnp.zeros(tasks, jnp.int32)
    )


def batch(inputs):
    return to_device(Examples(inputs, np.zeros(len(inputs), np.int64)), len(inputs) + 5)


def test_moments_of_batches_are_those_of_all_examples():
    inputs, _ = blobs(1)
    moments = with_task(with_task(none(), 1, 0, batch(inputs[:17])), 1, 0, batch(inputs[17:]))
    np.testing.assert_allclose(moments.mean[1], inputs.mean(0), atol=1e-6)
    np.testing.assert_allclose(moments.factor[1].T @ moments.factor[1], np.cov(inputs.T, bias=True), atol=1e-5)
    assert moments.count.tolist() == [0, 60]


def test_the_leading_directions_are_kept():
    inputs, _ = blobs(0)
    factor = with_task(none(rank=2), 0, 0, batch(inputs)).factor[0]
    values, vectors = np.linalg.eigh(np.cov(inputs.T, bias=True))
    expected = (vectors[:, -2:] * values[-2:]) @ vectors[:, -2:].T
    np.testing.assert_allclose(factor.T @ factor, expected, atol=1e-5)


def test_drawn_inputs_have_the_moments_and_empty_places_do_not_matter():
    inputs, _ = blobs(0, 500)
    moments = with_task(none(tasks=1), 0, 0, batch(inputs))
    drawn, tasks = draw(KEY, moments, 40_000)
    flat = drawn.reshape(-1, 6)
    np.testing.assert_allclose(flat.mean(0), inputs.mean(0), atol=0.03)
    np.testing.assert_allclose(np.cov(flat.T), np.cov(inputs.T), atol=0.05)
    assert set(tasks.tolist()) == {0}
    larger = with_task(none(tasks=4), 0, 0, batch(inputs))
    np.testing.assert_array_equal(draw(KEY, larger, 40_000)[0], drawn)


def test_tasks_are_drawn_by_their_numbers_of_examples():
    moments = dataclasses.replace(none(tasks=3), count=jnp.array([10.0, 0.0, 30.0]))
    tasks = np.concatenate([draw(jax.random.key(seed), moments, 16)[1] for seed in range(100)])
    assert (tasks == 1).sum() == 0
    assert (tasks == 2).mean() == pytest.approx(0.75, abs=0.05)


def held_after_one_task(shared_head, head=0):
    stream = make_stream(shared_head=shared_head)
    data = to_device(stream.train(0), stream.spec.capacity)
    state = SMALL.observe(KEY, SMALL.init(KEY, stream.spec), stream.task(0), data, Fitter())
    belief = believed(state, 0)
    bases = bases_of(belief.pairs)
    recalled = rotated_moments(state.moments, bases, state.mean, head)
    spreads = SMALL.posterior(belief).spreads
    return state, Held(bases, rotate(bases, belief.mean), spreads, belief.mean, recalled)


@pytest.mark.parametrize(("shared_head", "head"), [(True, 0), (False, 1), (False, 0)])
def test_the_answers_have_not_moved_where_the_weights_have_not(shared_head, head):
    _, held = held_after_one_task(shared_head, head)

    def distance(rotated):
        return moved(KEY, rotated, held, held.recalled, 64)

    assert float(distance(held.centre)) == pytest.approx(0.0, abs=1e-6)
    away = jax.tree.map(lambda w: w + 0.3, held.centre)
    assert float(distance(away)) > 0.01
    gradient = jax.grad(distance)(held.centre)
    assert max(float(jnp.abs(g).max()) for g in gradient) < 1e-5
    # Another task's output layer stays as it is; the one that is trained again is held back.
    assert bool(jnp.any(jax.grad(distance)(away)[-1] != 0)) == (head == 0)


def test_rotated_inputs_get_the_same_answers():
    state, held = held_after_one_task(True)
    turned = rotated_logits(held.network, held.bases, held.centre, held.recalled.moments.mean)[0]
    np.testing.assert_allclose(turned, logits(select_head(state.mean, 0), state.moments.mean), atol=1e-4)


def test_classes_that_come_in_turn_are_told_apart_without_stored_examples():
    stream = build("split-digits", StreamOptions(scenario="class", num_tasks=3), seed=0)
    learner = KroneckerVCLRecall(hidden=(30,), epochs=15, batch_size=32)
    with_recall = learn(learner, stream)["accuracy_matrix"][-1]
    without = learn(dataclasses.replace(learner, recall=0.0), stream)["accuracy_matrix"][-1]
    assert min(with_recall) > 0.8
    assert min(without) < 0.5


def test_forgetting_gives_up_a_part_of_what_is_recalled():
    stream = make_stream(shared_head=True)
    learner = dataclasses.replace(SMALL, forgetting=0.25)
    state = learner.init(KEY, stream.spec)
    for stage in range(2):
        data = to_device(stream.train(stage), stream.spec.capacity)
        state = learner.observe(KEY, state, stream.task(stage), data, Fitter())
    assert state.moments.count.tolist() == [45.0, 47.0, 0.0]


def test_softer_answers_are_compared_by_their_logits():
    before, now = jax.random.normal(KEY, (2, 50, 4))
    p, q = (np.asarray(jax.nn.softmax(z / 2.0)) for z in (before, now))
    expected = 4.0 * np.mean(scipy.special.rel_entr(p, q).sum(1))
    assert float(mean_divergence(before, now, 2.0)) == pytest.approx(expected, rel=1e-4)
    change = np.asarray(now - before)
    assert float(mean_divergence(before, now, 100.0)) == pytest.approx(0.5 * change.var(1).mean(), rel=0.03)
