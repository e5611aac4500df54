"""What stored runs tell of their units: counts, transfer, and accuracy without the pruned ones."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small_runs
from test_cli import refused, vcl  # noqa: F401

from vcl import analysis, runs
from vcl.analysis.stored import trained_heads
from vcl.analysis.units import active_units, change_without, information, removal_effects, signal_to_noise
from vcl.benchmarks.streams import from_arrays
from vcl.errors import VclError
from vcl.nets import Affine, from_layers, select_head
from vcl.posteriors.mean_field import Gaussian
from vcl.runs.folder import RunFolder
from vcl.runs.stored import StoredRun
from vcl.training import Fitter


@pytest.fixture(scope="module")
def split(tmp_path_factory):
    folder = small_runs.split(tmp_path_factory.mktemp("split"), hidden=(30,))
    return folder, analysis.analyse(folder)


@pytest.fixture(scope="module")
def permuted(tmp_path_factory):
    folder = small_runs.permuted(tmp_path_factory.mktemp("permuted"))
    return folder, analysis.analyse(folder)


@pytest.mark.parametrize("which", ["split", "permuted"])
def test_every_stage_is_measured_as_by_hand(which, request):
    folder, found = request.getfixturevalue(which)
    config, spec = runs.from_record(folder.record), runs.spec_from_record(folder.record)
    like = config.learner.init(jax.random.key(0), spec)
    stream = StoredRun(folder).stream()
    key = jax.random.key(0)
    before = like.posterior
    for number in range(spec.num_tasks):
        q = folder.state_after(number + 1, like).posterior
        asked = found.probes[: number + 1]
        np.testing.assert_array_equal(asked[number].inputs, stream.train(number).inputs[: len(asked[number].inputs)])
        trained = trained_heads(spec.heads, number + 1)
        effects = removal_effects(key, q, asked)
        active = active_units(key, q, asked, trained, effects)
        for layer, told in enumerate(found.layers):
            np.testing.assert_array_equal(told.active[number], active[layer])
            np.testing.assert_array_equal(told.removal_effect[number], effects[layer])
            np.testing.assert_array_equal(told.information[number], information(q, like.posterior)[layer])
            np.testing.assert_array_equal(told.information_gain[number], information(q, before)[layer])
            np.testing.assert_array_equal(told.signal_to_noise[number], signal_to_noise(q, trained)[layer])
        assert found.change_without_pruned[number] == max(change_without(key, q, active, asked))
        before = q


def test_some_units_are_active_and_some_are_not(split):
    _, found = split
    assert found.counts.shape == (1, 3)
    assert 0 < found.counts[0, 0] < 30
    first = found.layers[0].first_active
    for unit in range(30):
        stages = np.flatnonzero(found.layers[0].active[:, unit])
        assert first[unit] == (stages[0] + 1 if len(stages) else 0)


def test_accuracy_stays_without_the_pruned_units(split):
    folder, found = split
    accuracy = analysis.accuracy_without_pruned(found, StoredRun(folder).stream())
    assert accuracy.shape == (3, 2)
    np.testing.assert_allclose(accuracy[:, 0], accuracy[:, 1], atol=0.03)
    expected = [np.mean([a for a in row if a is not None]) for row in folder.result["accuracy_matrix"]]
    np.testing.assert_allclose(accuracy[:, 0], expected, atol=0.03)


def test_use_of_units_is_what_their_removal_changes(split):
    _, found = split
    use = analysis.forward_use(found)
    assert np.isnan(use[np.tril_indices(3, -1)]).all()
    keep = (found.layers[0].first_active != 1,)
    expected = change_without(jax.random.key(0), found.posteriors[2], keep, [found.probes[2]])
    assert [use[0, 2]] == expected
    assert use[0, 0] > 0.05


def test_change_of_units_is_the_news_that_later_tasks_bring(split):
    _, found = split
    layer = found.layers[0]
    change = analysis.backward_change(found)
    ones = layer.first_active == 1
    np.testing.assert_allclose(change[0], layer.information_gain[:, ones].mean(axis=1), rtol=1e-6)
    for task in range(3):
        expected = layer.information_gain[task, layer.first_active == task + 1]
        assert (
            change[task, task] == pytest.approx(expected.mean()) if len(expected) else np.isnan(change[task, task])
        )


def test_forgetting_begins_at_the_accuracy_of_the_run(permuted):
    folder, found = permuted
    causes = analysis.forgetting(found, StoredRun(folder).stream())
    expected = [a for row in folder.result["accuracy_matrix"] for a in row if a is not None]
    np.testing.assert_allclose(causes.accuracy[[0, 0, 1], [0, 1, 1]], expected, atol=0.03)
    for matrix in causes:
        assert np.isnan(matrix[1, 0])
        assert ((matrix >= 0) & (matrix <= 1))[[0, 0, 1], [0, 1, 1]].all()


TELLS_APART, SPOILS, NOTHING = (3.0, -3.0), (-9.0, 9.0), (0.0, 0.0)
"""Outgoing weights of a unit that fires for positive inputs, which are of the first class."""


@pytest.mark.parametrize(
    ("later", "mended_without_newer_units", "mended_with_earlier_weights"),
    [((TELLS_APART, SPOILS), True, False), ((SPOILS, NOTHING), False, True), ((SPOILS, SPOILS), False, False)],
)
def test_the_cause_of_forgetting_is_found(later, mended_without_newer_units, mended_with_earlier_weights):
    inputs, labels = np.array([[1.0], [-1.0]] * 20, np.float32), np.array([0, 1] * 20)
    stream = from_arrays([(inputs, labels, inputs, labels)] * 2, shared_head=True)
    posteriors = [two_units(outgoing) for outgoing in ((TELLS_APART, NOTHING), later)]
    found = analysis.Analysis(
        prior=posteriors[0],
        posteriors=tuple(posteriors),
        heads=(0, 0),
        layers=(analysis.Layer(*[np.zeros((2, 2))] * 4, active=np.array([[True, False], [True, True]])),),
        change_without_pruned=np.zeros(2),
        probes=(),
    )
    causes = analysis.forgetting(found, stream)
    assert [matrix[0, 0] for matrix in causes] == [1, 1, 1]
    assert causes.accuracy[0, 1] == 0.5
    assert (causes.without_newer_units[0, 1] == 1) == mended_without_newer_units
    assert (causes.with_earlier_weights[0, 1] == 1) == mended_with_earlier_weights


def two_units(outgoing):
    """A network of two units that fire for positive inputs; where neither does, it answers the second class."""
    body = Affine(jnp.ones((1, 2)), jnp.zeros(2))
    head = Affine(jnp.array([outgoing]), jnp.array([[-1.0, 1.0]]))
    mean = dataclasses.replace(from_layers([body, head]), head=head)
    return Gaussian(mean, jax.tree.map(lambda a: jnp.full_like(a, -12.0), mean))


def test_change_of_accuracy_is_relative_to_when_a_task_was_learnt():
    matrix = [[0.9, None, None], [0.7, 0.8, None], [0.8, 0.9, 0.6]]
    expected = [[0.0, -0.2, -0.1], [np.nan, 0.0, 0.1], [np.nan, np.nan, 0.0]]
    np.testing.assert_allclose(analysis.accuracy_change(matrix), expected, atol=1e-12)


def test_patterns_of_the_first_layer_are_its_weights(permuted):
    _, found = permuted
    q, inputs = found.posteriors[0], found.probes[0].inputs
    np.testing.assert_allclose(
        analysis.exciting_patterns(q, 0, inputs), np.asarray(q.mean.body[0].weight).T, rtol=1e-4, atol=1e-5
    )


def test_patterns_further_up_go_through_the_units_that_are_on(permuted):
    _, found = permuted
    q, inputs = found.posteriors[0], found.probes[0].inputs
    first, second = (np.asarray(layer.weight, np.float64) for layer in q.mean.body)
    x = inputs / 255.0 if inputs.dtype == np.uint8 else inputs
    on = (x @ first + np.asarray(q.mean.body[0].bias) > 0).mean(axis=0)
    np.testing.assert_allclose(
        analysis.exciting_patterns(q, 1, inputs), (first @ (on[:, None] * second)).T, atol=1e-4
    )


def test_the_command_tells_what_the_analysis_found(vcl, split):  # noqa: F811
    folder, found = split
    told = json.loads(vcl("units", folder.path, "--json").out)
    assert told["active_units"] == found.counts.T.tolist()
    assert told["layers"][0]["first_active"] == found.layers[0].first_active.tolist()
    assert told["forward_use"][2][0] is None
    lost = told["forgetting"]["accuracy"]
    assert lost[1][0] is None
    shown = vcl("units", folder.path)
    assert shown.code == 0
    assert f"{100 * told['accuracy'][2]:.2f}" in shown.out
    assert f"{100 * (lost[0][2] + lost[1][2]) / 2:.2f}" in shown.out
    strict = json.loads(vcl("units", folder.path, "--tolerance", "0.2", "--json").out)
    assert strict["active_units"][2][0] < told["active_units"][2][0]


def test_runs_without_units_or_without_a_task_are_refused(vcl, split, tmp_path):  # noqa: F811
    ewc = small_runs.learn(tmp_path, "split-digits", 2, "ewc", epochs=1, hidden=(4,))
    refused(vcl("units", ewc.path), "is one of ewc", "vcl, joint-vcl, gvcl, kronecker-vcl, kronecker-vcl-recall")
    folder, _ = split
    refused(vcl("units", folder.path, "--tolerance", "-1"), "--tolerance", "above 0")
    empty = RunFolder.create(tmp_path / "empty", folder.record)
    with pytest.raises(VclError, match="has not learnt a task yet"):
        analysis.analyse(empty)


@pytest.mark.parametrize(("method", "settings"), [("kronecker-vcl-recall", {}), ("gvcl", {"film": False})])
def test_other_methods_with_a_posterior_over_one_network_are_measured_too(method, settings, tmp_path):
    folder = small_runs.learn(tmp_path, "split-digits", 2, method, epochs=2, hidden=(6,), **settings)
    run, found = StoredRun(folder), analysis.analyse(folder)
    params = run.learner.readout(jax.random.key(0), run.state(), run.spec.task(1), Fitter())
    predicts = params.posterior if method == "gvcl" else run.learner.family.marginals(params)
    pairs = zip(jax.tree.leaves(select_head(found.posteriors[1], 1)), jax.tree.leaves(predicts), strict=True)
    for analysed, predicting in pairs:
        np.testing.assert_allclose(analysed, predicting, rtol=1e-5)
    assert found.counts.shape == (1, 2)
    assert found.counts.min() >= 1
    assert (found.layers[0].information_gain > 0).all()


@pytest.mark.parametrize(
    ("method", "settings", "reason"),
    [
        ("gvcl", {"film": True}, "FiLM layers, which scale and shift its units for each task"),
        ("kronecker-vcl", {"temperature": 0.0}, "--temperature 0, so that its weights have no variance"),
    ],
)
def test_runs_whose_weights_do_not_tell_enough_are_refused(method, settings, reason, tmp_path):
    folder = small_runs.learn(tmp_path, "split-digits", 2, method, epochs=1, hidden=(4,), **settings)
    with pytest.raises(VclError, match=reason):
        analysis.analyse(folder)
