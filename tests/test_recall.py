"""Kronecker VCL that recalls earlier tasks by Gaussian inputs."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
from conftest import blobs, make_stream

from vcl.benchmarks import StreamOptions, build
from vcl.core import Examples
from vcl.methods.base.eigenbasis import bases_of, rotate, rotate_back, rotated_logits
from vcl.methods.kronecker_vcl import Held, believed
from vcl.methods.variants.kronecker_vcl_recall import (
    KroneckerVCLRecall,
    Moments,
    RecalledClasses,
    draw,
    draw_classes,
    mean_divergence,
    moved,
    moved_classes,
    no_classes,
    rotated_moments,
    with_classes,
    with_task,
)
from vcl.nets import logits, select_head
from vcl.runs.fold import Interrupted, learn
from vcl.runs.folder import RunFolder
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


def held_after_one_task(shared_head):
    stream = make_stream(shared_head=shared_head)
    data = to_device(stream.train(0), stream.spec.capacity)
    state = SMALL.observe(KEY, SMALL.init(KEY, stream.spec), stream.task(0), data, Fitter())
    belief = believed(state, 0)
    bases = bases_of(belief.pairs)
    recalled = rotated_moments(state.moments, bases, state.mean)
    spreads = SMALL.posterior(belief).spreads
    return state, Held(bases, rotate(bases, belief.mean), spreads, belief.mean, recalled)


@pytest.mark.parametrize("shared_head", [True, False])
def test_the_answers_have_not_moved_where_the_weights_have_not(shared_head):
    _, held = held_after_one_task(shared_head)

    def distance(rotated):
        return moved(KEY, rotated, held, held.recalled, 64)

    assert float(distance(held.centre)) == pytest.approx(0.0, abs=1e-6)
    away = jax.tree.map(lambda w: w + 0.3, held.centre)
    assert float(distance(away)) > 0.01
    gradient = jax.grad(distance)(held.centre)
    assert max(float(jnp.abs(g).max()) for g in gradient) < 1e-5
    head = jax.grad(distance)(away)[-1]
    assert bool(jnp.any(head != 0)) == shared_head  # an earlier task's own output layer stays as it is


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


CLASSES = dataclasses.replace(SMALL, recall_by="class")


def labelled(count=300):
    """Inputs within [0, 1] whose classes have means of their own, and their labels."""
    rng = np.random.default_rng(0)
    labels = rng.choice(3, count, p=[0.5, 0.3, 0.2])
    centres, mixing = rng.uniform(0.3, 0.7, (3, 6)), 0.05 * rng.normal(size=(6, 6))
    return np.clip(centres[labels] + rng.normal(size=(count, 6)) @ mixing, 0, 1).astype(np.float32), labels


def classes_of(inputs, labels, *splits, tasks=2, rank=6, classes=4):
    moments = no_classes(tasks, classes, rank, 6)
    for rows in np.split(np.arange(len(labels)), splits):
        moments = with_classes(moments, 1, 0, to_device(Examples(inputs[rows], labels[rows]), len(labels) + 5))
    return moments


def around_classes(inputs, labels):
    means = np.stack([inputs[labels == c].mean(0) for c in range(3)])
    centred = inputs - means[labels]
    return means, centred.T @ centred / len(labels)


@pytest.mark.parametrize("splits", [(), (40, 110)])
def test_moments_of_classes_are_those_of_the_data_given_the_class(splits):
    inputs, labels = labelled()
    moments = classes_of(inputs, labels, *splits)
    means, covariance = around_classes(inputs, labels)
    np.testing.assert_allclose(moments.mean[1, :3], means, atol=1e-6)
    np.testing.assert_allclose(moments.factor[1].T @ moments.factor[1], covariance, atol=1e-6)
    assert moments.count[1].tolist() == [*np.bincount(labels), 0]
    np.testing.assert_array_equal(moments.least[1], inputs.min(0))
    np.testing.assert_array_equal(moments.greatest[1], inputs.max(0))
    assert not any(bool(leaf[0].any()) for leaf in jax.tree.leaves(moments))


def test_a_class_that_comes_later_has_its_own_mean_at_once():
    inputs, labels = labelled()
    order = np.argsort(labels, kind="stable")
    inputs, labels = inputs[order], labels[order]
    moments = classes_of(inputs, labels, int((labels == 0).sum()))
    means, covariance = around_classes(inputs, labels)
    np.testing.assert_allclose(moments.mean[1, :3], means, atol=1e-6)
    np.testing.assert_allclose(moments.factor[1].T @ moments.factor[1], covariance, atol=1e-6)


def test_inputs_drawn_by_class_have_the_moments_of_the_data():
    inputs, labels = labelled()
    moments = classes_of(inputs, labels)
    without_range = dataclasses.replace(moments, least=moments.least - 99, greatest=moments.greatest + 99)
    number = 40_000
    flat = np.asarray(draw_classes(KEY, without_range, number)[0]).reshape(-1, 6)
    error = 5 * inputs.std(0).max() / np.sqrt(number)
    np.testing.assert_allclose(flat.mean(0), inputs.mean(0), atol=error)
    # Between classes and around their means: the covariance of all inputs together.
    np.testing.assert_allclose(np.cov(flat.T), np.cov(inputs.T, bias=True), atol=5 * inputs.var(0).max() / 100)


def test_inputs_drawn_by_class_stay_within_the_range_of_the_data():
    inputs, labels = labelled()
    moments = classes_of(inputs, labels)
    wide = dataclasses.replace(moments, factor=10 * moments.factor)
    drawn = np.asarray(draw_classes(KEY, wide, 4_000)[0]).reshape(-1, 6)
    np.testing.assert_array_equal(drawn.min(0), inputs.min(0))
    np.testing.assert_array_equal(drawn.max(0), inputs.max(0))


def test_room_for_more_tasks_and_classes_does_not_change_the_draw():
    inputs, labels = labelled()
    small, large = classes_of(inputs, labels), classes_of(inputs, labels, tasks=5, classes=9)
    np.testing.assert_array_equal(draw_classes(KEY, small, 512)[0], draw_classes(KEY, large, 512)[0])


def test_the_footprint_counts_means_of_classes_directions_and_range():
    stream = make_stream(shared_head=True)
    spec = stream.spec
    state = CLASSES.init(KEY, spec)
    width = spec.input_size
    a_task = (spec.num_classes + min(CLASSES.rank, width) + 2) * width + spec.num_classes + 1
    plain = CLASSES.footprint(state).parameters - spec.num_tasks * a_task
    of_tasks = SMALL.footprint(SMALL.init(KEY, spec)).parameters
    assert plain == of_tasks - spec.num_tasks * ((min(SMALL.rank, width) + 1) * width + 2)
    assert CLASSES.footprint(state).stored_examples == 0


@pytest.mark.parametrize("shared_head", [True, False])
def test_answers_by_class_are_those_of_the_network_and_do_not_move_with_it(shared_head):
    stream = make_stream(shared_head=shared_head)
    data = to_device(stream.train(0), stream.spec.capacity)
    state = CLASSES.observe(KEY, CLASSES.init(KEY, stream.spec), stream.task(0), data, Fitter())
    belief = believed(state, 0)
    bases = bases_of(belief.pairs)
    recalled = CLASSES.recollection(state, bases)
    assert isinstance(recalled, RecalledClasses)
    held = Held(bases, rotate(bases, belief.mean), CLASSES.posterior(belief).spreads, belief.mean, recalled)

    def distance(rotated):
        return moved_classes(KEY, rotated, held, recalled, 64)

    assert float(distance(held.centre)) == pytest.approx(0.0, abs=1e-6)
    away = jax.tree.map(lambda w: w + 0.3, held.centre)
    head = jax.grad(distance)(away)[-1]
    assert bool(jnp.any(head != 0)) == shared_head
    # The same by hand: KL between the answers before and now to the inputs that are drawn.
    inputs = draw_classes(KEY, state.moments, 64)[0].reshape(-1, stream.spec.input_size)
    now = rotate_back(bases, away, belief.mean)
    if not shared_head:
        now = dataclasses.replace(now, head=belief.mean.head)
    p, q = (np.asarray(jax.nn.softmax(logits(w, inputs))) for w in (belief.mean, now))
    assert float(distance(away)) == pytest.approx(np.mean(scipy.special.rel_entr(p, q).sum(1)), rel=1e-4)


def test_classes_that_come_in_turn_are_told_apart_by_class_too():
    stream = build("split-digits", StreamOptions(scenario="class", num_tasks=3), seed=0)
    learner = KroneckerVCLRecall(hidden=(30,), epochs=15, batch_size=32, recall_by="class")
    assert min(learn(learner, stream)["accuracy_matrix"][-1]) > 0.8


def test_forgetting_gives_up_a_part_of_what_is_recalled_by_class():
    stream = make_stream(shared_head=True)
    learner = dataclasses.replace(CLASSES, forgetting=0.25)
    state = learner.init(KEY, stream.spec)
    for stage in range(2):
        data = to_device(stream.train(stage), stream.spec.capacity)
        state = learner.observe(KEY, state, stream.task(stage), data, Fitter())
    np.testing.assert_allclose(state.moments.count.sum(1), [45.0, 47.0, 0.0])


def test_softer_answers_are_compared_by_their_logits():
    before, now = jax.random.normal(KEY, (2, 50, 4))
    p, q = (np.asarray(jax.nn.softmax(z / 2.0)) for z in (before, now))
    expected = 4.0 * np.mean(scipy.special.rel_entr(p, q).sum(1))
    assert float(mean_divergence(before, now, 2.0)) == pytest.approx(expected, rel=1e-4)
    change = np.asarray(now - before)
    assert float(mean_divergence(before, now, 100.0)) == pytest.approx(0.5 * change.var(1).mean(), rel=0.03)


def learnt_by_class(stream, *, grown):
    spec = dataclasses.replace(stream.spec, heads=stream.spec.heads[:1]) if grown else stream.spec
    state = CLASSES.init(KEY, spec)
    for stage in range(3):
        wider = dataclasses.replace(stream.spec, heads=stream.spec.heads[: stage + 1]) if grown else stream.spec
        state, spec = CLASSES.grow(KEY, state, spec, wider), wider
        data = to_device(stream.train(stage), spec.capacity)
        state = CLASSES.observe(jax.random.fold_in(KEY, stage), state, stream.task(stage), data, Fitter())
    return state


@pytest.mark.parametrize("shared_head", [True, False])
def test_growing_by_class_equals_allocating_all_at_once(shared_head):
    stream = make_stream(shared_head=shared_head)
    states = [learnt_by_class(stream, grown=grown) for grown in (True, False)]
    for one, other in zip(*map(jax.tree.leaves, states), strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_run_by_class_resumes_to_the_bit(tmp_path):
    stream = make_stream(shared_head=True)
    whole = learn(CLASSES, stream)
    folder = RunFolder.create(tmp_path / "run", {"stages": stream.stages})
    answers = itertools.chain([False] * 3, itertools.repeat(True))
    with pytest.raises(Interrupted):
        learn(CLASSES, stream, folder=folder, stop=answers.__next__, seconds_between_checkpoints=0.0)
    result = learn(CLASSES, stream, folder=folder)
    assert result["state_sha256"] == whole["state_sha256"]
    assert result["accuracy_matrix"] == whole["accuracy_matrix"]
