"""What every learner must do, whatever its method."""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import make_stream

from vcl.benchmarks import StreamOptions, build
from vcl.benchmarks.streams import joint
from vcl.core import Learner
from vcl.errors import VclError
from vcl.methods import METHODS
from vcl.runs import configure, run
from vcl.runs.fold import Interrupted, learn
from vcl.runs.folder import RunFolder
from vcl.training import Fitter, to_device

KEY = jax.random.key(0)
SMALL = {"hidden": (8, 7), "epochs": 3, "batch_size": 16}
SETTINGS: dict[str, dict] = {
    "generative-replay": {"generator_hidden": (9,), "latent": 4},
    "icarl": {"exemplars": 30},
    "icarl-labels": {"exemplars": 30},
    "feedback-replay": {"decoder_hidden": (9,), "latent": 4},
    "gem": {"memory": 20, "optimizer": "adam", "learning_rate": 0.01},
    "gem-sampled": {"memory": 20, "reference": 8, "optimizer": "adam", "learning_rate": 0.01},
    "agem": {"memory": 20, "reference": 16, "optimizer": "adam", "learning_rate": 0.01},
    "ucb": {"learning_rate": 0.01},
    "ucb-cubed": {"optimizer": "adam", "learning_rate": 0.01, "spread_rate": 0.001},
}
"""Settings that make a method small, beyond SMALL."""
OFF: dict[str, dict] = {
    "ewc": {"strength": 0.0},
    "ewc-online": {"strength": 0.0},
    "laplace": {"strength": 0.0},
    "si": {"strength": 0.0},
    "rwalk": {"strength": 0.0},
    "gem": {"memory": 0, "learning_rate": 0.001},
    "gem-sampled": {"memory": 0, "learning_rate": 0.001},
    "agem": {"memory": 0, "learning_rate": 0.001},
}
"""Settings under which a method is fine-tuning."""
ON_DIGITS = {"epochs": 20}
UNDEFINED: dict[str, set[str]] = {
    "progressive": {"class"},
    "clnp": {"class"},
    "clnp-recovery": {"class"},
    "separate": {"class"},
    "separate-vcl": {"class"},
}
"""Scenarios that a method refuses."""


def small(method: str, **settings) -> Learner:
    kind = METHODS[method]
    return kind(**{**kind.recipes["fast"]["split-digits"], **SMALL, **SETTINGS.get(method, {}), **settings})


def observe(learner, stream, stages=None):
    """The states before and after each of the first stages."""
    stream = joint(stream) if learner.joint else stream
    states = [learner.init(KEY, stream.spec)]
    for stage in range(len(stream.stages) if stages is None else stages):
        data = to_device(stream.train(stage), stream.spec.capacity)
        task = stream.task(stage)
        states.append(learner.observe(jax.random.fold_in(KEY, stage), states[-1], task, data, Fitter()))
    return states


@functools.cache
def learnt(method: str, shared_head: bool = False):
    """The states along the three small tasks; each method learns them once for many tests."""
    return observe(small(method), make_stream(shared_head=shared_head))


def equal(a, b) -> bool:
    return all(np.array_equal(x, y) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))


def close(a, b) -> bool:
    """Equal but for rounding, which differs between compiled programs."""
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return all(np.allclose(x, y, rtol=1e-4, atol=1e-5) for x, y in pairs)


def each_of(methods):
    # What one process has learnt of a method, it need not learn again.
    grouped = [pytest.param(name, marks=pytest.mark.xdist_group(name)) for name in methods]
    return pytest.mark.parametrize("method", grouped)


each_method = each_of(METHODS)


@each_method
def test_there_are_settings_for_every_family_and_they_are_frozen(method):
    for family in ("split", "permuted"):
        learner = METHODS[method](**METHODS[method].recipes["fast"][family])
        assert hash(learner) == hash(dataclasses.replace(learner))
    assert (METHODS[method].__doc__ or "").splitlines()[0].endswith(".")


@each_method
@pytest.mark.parametrize("shared_head", [False, True])
def test_the_state_keeps_its_structure_shapes_and_types(method, shared_head):
    first, *others = learnt(method, shared_head)
    for state in others:
        assert jax.tree.structure(state) == jax.tree.structure(first)
        for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(state), strict=True):
            assert (a.shape, a.dtype) == (b.shape, b.dtype)


class Recorded:
    """Fits, and notes what decides whether a loop is compiled again: its step, and the types of what it is given."""

    def __init__(self):
        self.programs = set()

    def __call__(self, key, name, step, params, args, data, *, epochs, batch_size):
        leaves, structure = jax.tree.flatten((params, args, data))
        types = tuple(jax.typeof(jnp.asarray(leaf)) for leaf in leaves)
        self.programs.add((step, epochs, batch_size, structure, types))
        return Fitter()(key, name, step, params, args, data, epochs=epochs, batch_size=batch_size)


@each_method
def test_the_same_key_gives_the_same_bits_and_later_tasks_are_not_compiled_again(method, stream):
    learner = small(method)
    stream = joint(stream) if learner.joint else stream
    fit, state, programs = Recorded(), learner.init(KEY, stream.spec), []
    for stage in range(3):
        data = to_device(stream.train(stage), stream.spec.capacity)
        state = learner.observe(jax.random.fold_in(KEY, stage), state, stream.task(stage), data, fit)
        programs.append(len(fit.programs))
    assert 0 < programs[1] == programs[2]
    assert equal(learnt(method)[-1], state)


@each_method
def test_predictions_are_normalised(method, stream):
    learner, state = small(method), learnt(method)[2]
    for task in (0, 1):
        params = learner.readout(KEY, state, stream.spec.task(task), Fitter())
        draws = jax.jit(learner.predict)(KEY, params, jnp.asarray(stream.test(task).inputs))
        assert draws.shape[1:] == (40, 2)
        np.testing.assert_allclose(jnp.exp(draws).sum(-1), 1.0, rtol=1e-5)


@each_method
def test_it_resumes_to_the_bit_wherever_it_was_interrupted(method, tmp_path):
    stream = make_stream(shared_head=True)
    learner = small(method)
    whole = learn(learner, stream)
    folder = RunFolder.create(tmp_path / "run", {"stages": stream.stages})
    interruptions = 0
    result = None
    while result is None:
        answers = itertools.chain([False], itertools.repeat(True))
        try:
            result = learn(learner, stream, folder=folder, stop=answers.__next__, seconds_between_checkpoints=0.0)
        except Interrupted:
            interruptions += 1
            assert interruptions < 100
    assert interruptions > 0
    assert result["state_sha256"] == whole["state_sha256"]
    assert result["accuracy_matrix"] == whole["accuracy_matrix"]


@each_method
def test_the_footprint_counts_parameters_and_examples(method):
    footprint = small(method).footprint(learnt(method)[-1])
    plain = 6 * 8 + 8 + 8 * 7 + 7 + 3 * (7 * 2 + 2)
    assert footprint.parameters >= plain
    assert 0 <= footprint.stored_examples <= 60 + 47 + 55


@each_method
@pytest.mark.parametrize("scenario", ["domain", "class"])
def test_it_learns_a_split_benchmark_in_each_scenario_or_says_why_not(method, scenario):
    stream = build("split-digits", StreamOptions(scenario=scenario, num_tasks=2), seed=0)
    # Four classes that share an output layer take longer.
    learner = small(method, epochs=(2 if scenario == "class" else 1) * ON_DIGITS["epochs"])
    if scenario in UNDEFINED.get(method, set()):
        with pytest.raises(VclError, match="scenario"):
            learner.init(KEY, stream.spec)
    else:
        result = learn(learner, stream)
        assert result["accuracy_matrix"][0][0] > 0.7
        # Some learn a second task more slowly.
        assert result["accuracy_matrix"][1][1] > 0.5


@each_of(OFF)
def test_without_its_mechanism_it_is_fine_tuning_and_with_it_it_is_not(method, stream):
    plain, on = learnt("finetune")[2].network, learnt(method)[2].network
    off = observe(small(method, **OFF[method]), stream, stages=2)[-1].network
    assert close(plain, off)
    assert not close(plain, on)


@each_method
def test_it_runs_from_a_configuration_and_back(method, tmp_path):
    settings = {**SMALL, **SETTINGS.get(method, {}), **ON_DIGITS}
    config = configure("split-digits", method, stream=StreamOptions(num_tasks=2), **settings)
    result = run(config, tmp_path)
    assert result["accuracy_matrix"][0][0] > 0.9
    folder = RunFolder.open(tmp_path / config.name)
    assert result["parameters"] > 0
    assert result["state_bytes"] > 0
    assert folder.result == result
