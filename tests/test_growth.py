"""Growing task by task is the same as allocating all tasks at once, and no index is ever clamped."""

import dataclasses

import jax
import numpy as np
import pytest
from conftest import make_stream
from test_methods import KEY, close, each_method, equal, learnt, small

from vcl.benchmarks.streams import joint
from vcl.core import StreamSpec, Task, overlay
from vcl.errors import VclError
from vcl.methods import METHODS
from vcl.training import Fitter, to_device

ROUNDED = {
    *("gem", "gem-sampled", "agem", "generative-replay", "feedback-replay", "icarl", "icarl-labels"),
    "progressive",
}
"""Methods whose sums run over all tasks or heads that are allocated, so that more of them round differently."""


def prefix(spec: StreamSpec, num_tasks: int) -> StreamSpec:
    return dataclasses.replace(spec, heads=spec.heads[:num_tasks])


@each_method
@pytest.mark.parametrize("shared_head", [False, True])
def test_growing_task_by_task_equals_allocating_all_at_once(method, shared_head):
    learner, stream = small(method), make_stream(shared_head=shared_head)
    stream = joint(stream) if learner.joint else stream
    spec = prefix(stream.spec, 2)
    state = learner.init(KEY, spec)
    for stage in range(3):
        wider = prefix(stream.spec, max(2, stage + 1))
        state, spec = learner.grow(KEY, state, spec, wider), wider
        data = to_device(stream.train(stage), spec.capacity)
        state = learner.observe(jax.random.fold_in(KEY, stage), state, stream.task(stage), data, Fitter())
    same = close if method in ROUNDED else equal
    assert same(state, learnt(method, shared_head)[-1])


@each_method
def test_what_was_learnt_stays_when_classes_and_examples_are_added(method):
    learner, spec = small(method), make_stream().spec
    more = dataclasses.replace(spec, num_classes=5, capacity=2 * spec.capacity)
    state = learnt(method)[1]
    grown = learner.grow(KEY, state, spec, more)
    assert jax.tree.structure(grown) == jax.tree.structure(jax.eval_shape(lambda: learner.init(KEY, more)))
    for old, new in zip(jax.tree.leaves(state), jax.tree.leaves(grown), strict=True):
        np.testing.assert_array_equal(new[tuple(slice(n) for n in old.shape)], old)


@each_method
def test_a_task_that_there_is_no_room_for_is_refused(method):
    learner, stream = small(method), make_stream()
    state = learner.init(KEY, prefix(stream.spec, 2))
    data = to_device(stream.train(2), stream.spec.capacity)
    for act in (
        lambda: learner.observe(KEY, state, Task(2, 2), data, Fitter()),
        lambda: learner.readout(KEY, state, Task(2, 2), Fitter()),
    ):
        with pytest.raises(VclError, match=r"There is no (head|task) 3"):
            act()


def test_a_state_only_grows():
    learner, spec = METHODS["vcl"](hidden=(4,)), make_stream().spec
    state = learner.init(KEY, spec)
    for changed in (
        dataclasses.replace(spec, heads=(0, 1)),
        dataclasses.replace(spec, heads=(0, 0, 0, 0)),
        dataclasses.replace(spec, num_classes=1),
        dataclasses.replace(spec, input_shape=(7,)),
    ):
        with pytest.raises(VclError):
            learner.grow(KEY, state, spec, changed)


def test_overlay_keeps_the_corner():
    new = np.arange(12.0).reshape(3, 4)
    placed = overlay(jax.numpy.full((2, 2), -1.0), jax.numpy.asarray(new))
    assert (placed[:2, :2] == -1.0).all()
    np.testing.assert_array_equal(placed[2:], new[2:])
    np.testing.assert_array_equal(placed[:, 2:], new[:, 2:])
