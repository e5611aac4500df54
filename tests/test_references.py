import dataclasses
import pickle

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import blobs, make_stream

from vcl.benchmarks import StreamOptions, build, joint, online
from vcl.benchmarks.streams import from_arrays
from vcl.core import Task
from vcl.errors import VclError
from vcl.methods import METHODS
from vcl.methods.finetune import Finetune
from vcl.methods.references import Joint, JointVCL, cross_entropy_in_head, slot_key
from vcl.methods.vcl import VCL
from vcl.nets import MLP, pixels, random
from vcl.posteriors.mean_field import Gaussian, isotropic, kl
from vcl.runs.fold import learn
from vcl.training import Batch, Fitter, to_device

KEY = jax.random.key(3)
SMALL = {"hidden": (8, 7), "epochs": 3, "batch_size": 16, "learning_rate": 0.01}
LEARNERS = {method: METHODS[method](**SMALL) for method in ("separate", "separate-vcl", "joint", "joint-vcl")}
ALONE = {"separate": Finetune(**SMALL), "separate-vcl": VCL(**SMALL)}


def equal(a, b) -> bool:
    return all(np.array_equal(x, y) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))


def data_of(stream, stage):
    return to_device(stream.train(stage), stream.spec.capacity)


def slot(state, number):
    return jax.tree.map(lambda leaf: leaf[number], state)


# Separate


@pytest.mark.parametrize("method", ["separate", "separate-vcl"])
def test_each_slot_is_a_learner_that_knows_its_task_alone(method):
    stream = make_stream()
    learner, alone = LEARNERS[method], ALONE[method]
    before = learner.init(KEY, stream.spec)
    after = learner.observe(KEY, before, stream.spec.task(1), data_of(stream, 1), Fitter())
    spec = dataclasses.replace(stream.spec, heads=(0,))
    only = alone.observe(KEY, alone.init(slot_key(KEY, 1), spec), Task(0, 0), data_of(stream, 1), Fitter())
    assert equal(slot(after, 1), only)
    assert all(equal(slot(after, t), slot(before, t)) for t in (0, 2))
    assert not equal(slot(after, 1), slot(before, 1))
    read = learner.readout(KEY, after, stream.spec.task(1), Fitter())
    assert equal(read, alone.readout(KEY, only, Task(0, 0), Fitter()))


def test_a_task_that_comes_in_batches_goes_on_in_its_slot():
    stream = make_stream(shared_head=True)
    learner, alone = LEARNERS["separate"], ALONE["separate"]
    state = learner.init(KEY, stream.spec)
    only = slot(state, 2)
    for number in range(2):
        key = jax.random.fold_in(KEY, number)
        state = learner.observe(key, state, stream.spec.task(2), data_of(stream, number), Fitter())
        only = alone.observe(key, only, Task(0, 0), data_of(stream, number), Fitter())
    assert equal(slot(state, 2), only)


def test_the_coresets_of_separate_networks_are_read_out_apart():
    """One fitter serves all read-outs, and answers the same name with what it found before."""
    spec = make_stream().spec
    learner = dataclasses.replace(LEARNERS["separate-vcl"], coreset=5)
    state = learner.init(KEY, spec)
    state = eqx.tree_at(lambda s: s.coreset.filled, state, jnp.array([[5], [5], [0]]))
    names = []

    def fit(key, name, step, params, args, data, *, epochs, batch_size):
        names.append((name, int(data.size)))
        return params

    for task in range(3):
        learner.readout(KEY, state, spec.task(task), fit)
    assert names == [("coreset-1-1", 5), ("coreset-1-2", 5)]


@pytest.mark.parametrize("method", ["separate", "separate-vcl"])
def test_processes_can_pass_it_on(method):
    assert pickle.loads(pickle.dumps(LEARNERS[method])) == LEARNERS[method] != ALONE[method]


def test_separate_networks_cannot_find_out_the_task():
    spec = build("split-digits", StreamOptions(scenario="class"), seed=0).spec
    with pytest.raises(VclError, match="class scenario"):
        METHODS["separate"]().init(KEY, spec)


# Joint


@pytest.mark.parametrize("options", [StreamOptions(num_tasks=3), StreamOptions(scenario="class", num_tasks=3)])
@pytest.mark.parametrize("size", [0, 150])
def test_the_joint_stream_brings_all_so_far(options, size):
    plain = build("split-digits", options, seed=0)
    plain = online(plain, size, seed=0) if size else plain
    stream = joint(plain)
    parts = [plain.train(s) for s in range(len(plain.stages))]
    heads = [plain.spec.heads[t] for t in plain.stages]
    for stage in range(len(parts)):
        inputs, labels, groups = stream.train(stage)
        assert (inputs.dtype, labels.dtype) == (np.uint8, np.int32)
        np.testing.assert_array_equal(inputs, np.concatenate([p.inputs for p in parts[: stage + 1]]))
        np.testing.assert_array_equal(labels, np.concatenate([p.labels for p in parts[: stage + 1]]))
        whose = [np.full(len(p.labels), head) for p, head in zip(parts[: stage + 1], heads, strict=False)]
        np.testing.assert_array_equal(groups, np.concatenate(whose))
        assert stream.ends_task(stage) == plain.ends_task(stage)
    assert stream.spec == dataclasses.replace(plain.spec, capacity=len(labels))
    np.testing.assert_array_equal(stream.test(1).inputs, plain.test(1).inputs)


def mixed_batch(heads: int, classes: int):
    rng = np.random.default_rng(0)
    labels, groups = (jnp.asarray(rng.integers(0, most, 12), jnp.int32) for most in (classes, heads))
    inputs = jnp.asarray(rng.normal(size=(12, 6)), jnp.float32)
    return Batch(inputs, labels, jnp.arange(12) < 9, jnp.int32(50), groups)


def own_log_probs(network, batch):
    """log p(y | x) in numpy, in a loop over examples, each with its own head."""
    network = jax.tree.map(lambda a: np.asarray(a, np.float64), network)
    found = []
    for x, label, head in zip(*map(np.asarray, (batch.inputs, batch.labels, batch.groups)), strict=True):
        h = x
        for layer in network.body:
            h = np.maximum(h @ layer.weight + layer.bias, 0.0)
        outputs = h @ network.head.weight[head] + network.head.bias[head]
        found.append(outputs[label] - np.log(np.exp(outputs).sum()))
    return np.array(found)


def test_the_cross_entropy_is_within_the_example_s_own_head():
    network, batch = random(KEY, MLP((8, 7)), make_stream().spec), mixed_batch(3, 2)
    expected = -own_log_probs(network, batch)[:9].mean()
    assert float(jax.jit(Joint(**SMALL).loss)(KEY, network, None, batch)) == pytest.approx(expected, rel=1e-4)


def test_the_variational_bound_is_within_the_example_s_own_head():
    network, batch = random(KEY, MLP((8, 7)), make_stream().spec), mixed_batch(3, 2)
    # With hardly any variance the samples are the means.
    q, prior = (
        Gaussian(network, jax.tree.map(lambda a: jnp.full_like(a, -30.0), network)),
        isotropic(network, 0.0, 1.0),
    )
    expected = -own_log_probs(network, batch)[:9].mean() + float(kl(q, prior)) / 50
    for estimator in ("local", "weights"):
        learner = JointVCL(**SMALL, train_samples=2, estimator=estimator)
        assert float(jax.jit(learner.nelbo)(KEY, q, prior, batch)) == pytest.approx(expected, rel=1e-4)


def test_heads_that_are_not_the_example_s_own_do_not_matter():
    outputs = jnp.asarray(np.random.default_rng(1).normal(size=(4, 5, 3, 2)), jnp.float32)
    labels, heads = jnp.array([0, 1, 0, 0, 1]), jnp.array([0, 1, 2, 1, 2])
    batch = Batch(jnp.zeros((5, 6)), labels, jnp.ones(5, bool), jnp.int32(5), heads)
    other = outputs.at[:, 1, 0].set(9.0).at[:, 0, 1].set(-9.0)
    assert np.array_equal(cross_entropy_in_head(outputs, batch), cross_entropy_in_head(other, batch))
    assert cross_entropy_in_head(outputs, batch).shape == (4, 5)


@pytest.mark.parametrize("method", ["joint", "joint-vcl"])
def test_each_stage_forgets_its_network_and_counts_its_examples(method):
    stream = joint(make_stream())
    learner = LEARNERS[method]
    start = learner.init(KEY, stream.spec)
    first = learner.observe(KEY, start, stream.spec.task(0), data_of(stream, 0), Fitter())
    again, anew = (
        learner.observe(KEY, s, stream.spec.task(1), data_of(stream, 1), Fitter()) for s in (first, start)
    )
    assert equal(again, anew)
    assert [learner.footprint(s).stored_examples for s in (start, first, again)] == [0, 60, 60 + 47]


def conflicting():
    """The second task swaps the labels of a region that lies beside the first one's."""

    def task(number, examples):
        inputs, labels = blobs(0, examples)
        inputs[:, 5] += 2.0 * number
        return inputs, labels if number == 0 else 1 - labels

    return from_arrays([(*task(t, 200), *task(t, 100)) for t in range(2)], shared_head=True)


def test_joint_training_learns_what_fine_tuning_forgets():
    stream = conflicting()
    settings = {"hidden": (30,), "epochs": 60, "batch_size": 32, "learning_rate": 0.02}
    assert learn(Joint(**settings), stream)["average_accuracy"] > 0.9
    assert learn(Finetune(**settings), stream)["accuracy_matrix"][-1][0] < 0.7


IGNORED = [{"coreset": 5}, {"start": "previous"}, {"forgetting": 0.1}, {"first_init_std": 1.0}]
IGNORED += [{"further_epochs": 3}, {"further_schedule": "cosine"}]


@pytest.mark.parametrize("settings", IGNORED)
def test_joint_variational_inference_refuses_what_it_would_ignore(settings):
    (name,) = settings
    with pytest.raises(VclError, match=f"Joint.*--{name.replace('_', '-')}"):
        JointVCL(**settings)


def test_pixels_are_scaled_as_everywhere():
    network = random(KEY, MLP((8, 7)), make_stream().spec)
    bytes_in = jnp.asarray(np.random.default_rng(0).integers(0, 256, (4, 6)), jnp.uint8)
    batch = Batch(bytes_in, jnp.array([0, 1, 0, 1]), jnp.ones(4, bool), jnp.int32(4), jnp.array([0, 1, 2, 0]))
    scaled = dataclasses.replace(batch, inputs=pixels(bytes_in))
    loss = Joint(**SMALL).loss
    assert float(loss(KEY, network, None, batch)) == float(loss(KEY, network, None, scaled))
