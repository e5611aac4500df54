"""Averaged gradient episodic memory: the projection, what is drawn from the memories, and that it acts."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from conftest import make_stream

from vcl import memory
from vcl.core import Task
from vcl.memory import Memory
from vcl.methods.agem import AGEM, project
from vcl.methods.base.episodic import Episode
from vcl.methods.finetune import Finetune
from vcl.nets import cross_entropy, logits, select_head
from vcl.training import Fitter, to_device

KEY = jax.random.key(0)
SMALL = AGEM(hidden=(8,), epochs=4, batch_size=16, memory=20, reference=10)


def observe(learner, stream, stages):
    state = learner.init(KEY, stream.spec)
    for stage in range(stages):
        data = to_device(stream.train(stage), stream.spec.capacity)
        task = stream.spec.task(stream.stages[stage])
        state = learner.observe(jax.random.fold_in(KEY, stage), state, task, data, Fitter())
    return state


def close(a, b) -> bool:
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return all(np.allclose(x, y, atol=1e-5) for x, y in pairs)


def test_a_gradient_that_disagrees_with_the_reference_loses_its_part_along_it():
    g = {"a": jnp.array([[1.0, -2.0], [0.5, 3.0]]), "b": jnp.array([-1.0])}
    r = {"a": jnp.array([[2.0, 1.0], [0.0, -1.0]]), "b": jnp.array([4.0])}
    # g·r = 2 - 2 - 3 - 4 = -7, r·r = 4 + 1 + 1 + 16 = 22.
    found = project(g, r)
    np.testing.assert_allclose(found["a"], g["a"] + 7 / 22 * r["a"], rtol=1e-6)
    np.testing.assert_allclose(found["b"], g["b"] + 7 / 22 * r["b"], rtol=1e-6)
    assert abs(sum(jnp.sum(found[k] * r[k]) for k in g)) < 1e-5


def test_a_gradient_that_agrees_stays_as_it_is_and_so_it_does_without_a_reference():
    g = {"a": jnp.array([1.0, -2.0]), "b": jnp.array([-1.0])}
    for r in ({"a": jnp.array([2.0, 1.0]), "b": jnp.array([-4.0])}, jax.tree.map(jnp.zeros_like, g)):
        found = project(g, r)
        assert all(np.array_equal(found[k], g[k]) for k in g)


def test_examples_are_drawn_evenly_from_what_is_kept_of_all_tasks():
    inputs = jnp.arange(40.0).reshape(4, 10, 1)
    kept = Memory(inputs, jnp.arange(40, dtype=jnp.int32).reshape(4, 10), jnp.array([3, 0, 10, 1], jnp.int32))
    x, y, tasks = (np.asarray(a) for a in memory.draw(KEY, kept, 14_000))
    np.testing.assert_array_equal(x[:, 0], y)
    np.testing.assert_array_equal(tasks, y // 10)
    found, counts = np.unique(y, return_counts=True)
    assert list(found) == [0, 1, 2, *range(20, 30), 30]
    # Each of 14 examples is drawn 1000 times, with a standard deviation of 30.5.
    assert np.all(np.abs(counts - 1000) < 5 * 30.5)


def test_the_reference_is_the_gradient_of_each_example_at_its_own_head(stream):
    state = observe(SMALL, stream, stages=2)
    one = jax.tree.map(lambda a: a[:, :1], (state.memory.inputs, state.memory.labels))
    others = Memory(*one, jnp.array([1, 1, 0], jnp.int32))
    _, _, tasks = memory.draw(KEY, others, SMALL.reference)
    found = SMALL.reference_gradient(KEY, state.network, Episode(jnp.int32(2), others, state.heads))
    body = 0.0
    for task in (0, 1):
        share = float(np.mean(np.asarray(tasks) == task))
        assert share > 0
        own = jax.grad(lambda net, t=task: cross_entropy(logits(net, others.inputs[t]), others.labels[t])[0])(
            select_head(state.network, task)
        )
        np.testing.assert_allclose(found.head.weight[task], share * own.head.weight, atol=1e-6)
        body = body + share * own.body[0].weight
    np.testing.assert_allclose(found.body[0].weight, body, atol=1e-6)
    assert not np.any(np.asarray(found.head.weight[2]))


def test_the_first_task_is_learnt_as_by_fine_tuning_and_later_ones_are_not():
    stream = make_stream(shared_head=True)
    adam = dataclasses.replace(SMALL, optimizer="adam", learning_rate=0.01)
    plain = Finetune(hidden=(8,), epochs=4, batch_size=16, learning_rate=0.01)
    forgetful = dataclasses.replace(adam, memory=0)
    learners = (adam, plain, forgetful)
    first, second = ([observe(learner, stream, stages).network for learner in learners] for stages in (1, 2))
    assert close(first[0], first[1])
    assert close(second[1], second[2])
    assert not close(second[0], second[1])


def test_the_task_that_is_learnt_is_not_part_of_the_reference(stream):
    state = observe(SMALL, stream, stages=1)
    data = to_device(stream.train(0), stream.spec.capacity)
    forgetful = dataclasses.replace(SMALL, memory=0)
    blank = dataclasses.replace(state, memory=memory.empty(stream.spec, 0))
    found = SMALL.observe(KEY, state, Task(0, 0), data, Fitter()).network
    assert close(found, forgetful.observe(KEY, blank, Task(0, 0), data, Fitter()).network)
