"""Smaller and larger networks with the same predictions, and further training of them."""

import json
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small_runs
from test_cli import refused, vcl  # noqa: F401
from test_units import KEY, planted, probes, random_posterior

from vcl import runs
from vcl.analysis import analyse, prune, widen
from vcl.analysis.pruning import restricted, widened
from vcl.analysis.units import predictive, widths, without
from vcl.errors import VclError
from vcl.methods.vcl import completed
from vcl.nets import MLP, logits, select_head
from vcl.posteriors.mean_field import Gaussian
from vcl.runs.derived import extended_path
from vcl.runs.folder import RunFolder

BOTH = np.ones(2, bool)


def sharp(q: Gaussian) -> Gaussian:
    """q without its variances."""
    return Gaussian(q.mean, jax.tree.map(lambda v: jnp.where(jnp.isneginf(v), v, -60.0), q.log_var))


def made(root, benchmark="split-digits", tasks=3, **settings):
    return small_runs.learn(root, benchmark, tasks, **{"epochs": 8, "hidden": (24,), "test_samples": 10, **settings})


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    return made(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def two_layers(tmp_path_factory):
    return made(tmp_path_factory.mktemp("runs"), "permuted-digits", tasks=2, hidden=(12, 10))


def posterior(folder, stage):
    config, spec = runs.from_record(folder.record), runs.spec_from_record(folder.record)
    return folder.state_after(stage, config.learner.init(KEY, spec)).posterior


# The networks


@pytest.mark.parametrize(("hidden", "last"), [((6,), "relu"), ((5, 4), "linear"), ((4, 6, 5), "relu")])
def test_a_restricted_network_is_the_whole_one_without_the_units(hidden, last):
    rng = np.random.default_rng(1)
    keep = tuple(np.append(rng.random(width - 1) < 0.6, True) for width in hidden)
    q = sharp(random_posterior(hidden, last))
    small = restricted(q, keep)
    assert widths(small) == tuple(int(mask.sum()) for mask in keep)
    for head, x in probes():
        np.testing.assert_allclose(
            predictive(KEY, select_head(small, head), x),
            predictive(KEY, select_head(without(q, keep), head), x),
            atol=1e-5,
        )


@pytest.mark.parametrize(("old", "new"), [((6,), (9,)), ((5, 4), (5, 7)), ((5, 4), (8, 7)), ((4, 6, 5), (9, 9, 9))])
def test_a_widened_network_predicts_the_same(old, new):
    q = random_posterior(old)
    wide = widened(q, new, BOTH, 1.0)
    assert widths(wide) == new
    for head, x in probes():
        # Neither the means of the outputs nor anything drawn can feel weights without mean and variance.
        x_on_device = jnp.asarray(x)
        means = [logits(select_head(network.mean, head), x_on_device) for network in (q, wide)]
        np.testing.assert_allclose(means[0], means[1], atol=1e-5)
        many = [predictive(KEY, select_head(network, head), x, 4000) for network in (q, wide)]
        np.testing.assert_allclose(many[0], many[1], atol=0.04)
    cut = restricted(wide, tuple(np.arange(n) < o for n, o in zip(new, old, strict=True)))
    jax.tree.map(np.testing.assert_array_equal, cut, q)


def test_added_units_know_nothing_and_only_untrained_heads_may_use_them_yet():
    wide = widened(random_posterior((5, 4)), (7, 6), np.array([True, False]), 0.5)
    prior = 2 * np.log(0.5)
    for layer, old in enumerate((5, 4)):
        np.testing.assert_array_equal(wide.mean.body[layer].weight[:, old:], 0.0)
        np.testing.assert_allclose(wide.log_var.body[layer].weight[:, old:], prior)
        np.testing.assert_allclose(wide.log_var.body[layer].bias[old:], prior)
    assert np.isneginf(wide.log_var.body[1].weight[5:, :4]).all()
    assert np.isneginf(wide.log_var.head.weight[0, 4:]).all()
    np.testing.assert_allclose(wide.log_var.head.weight[1, 4:], prior)


def test_the_next_task_finds_added_units_at_the_prior():
    wide = widened(planted(0, (8,), ({2, 5},)), (10,), BOTH, 1.0)
    prior = completed(wide, 0.0)
    np.testing.assert_array_equal(prior.log_var.head.weight[:, 8:], 0.0)
    np.testing.assert_array_equal(prior.log_var.head.weight[:, :8], wide.log_var.head.weight[:, :8])


# The runs


def test_a_pruned_run_predicts_the_same_and_is_a_run(digits, tmp_path):
    pruning = prune(digits, tmp_path / "small")
    small = RunFolder.open(pruning.run)
    analysis = analyse(digits)
    assert pruning.after.hidden == (int(analysis.counts[0, -1]),)
    assert pruning.after.hidden[0] < 24 == pruning.before.hidden[0]
    assert pruning.after.parameters == 2 * (64 + 1 + 3 * 2) * pruning.after.hidden[0] + 2 * 3 * 2
    assert pruning.after.checkpoint_bytes == small.path_after(3).stat().st_size < pruning.before.checkpoint_bytes
    assert max(pruning.total_variation) < 0.01 + max(pruning.noise)
    kept = np.flatnonzero(analysis.layers[0].active[-1])
    assert small.record["origin"]["kept"] == [kept.tolist()]
    np.testing.assert_array_equal(
        posterior(small, 1).mean.body[0].weight, posterior(digits, 1).mean.body[0].weight[:, kept]
    )
    # Test sets of some seventy images each, and a network that is not sure of them: three answers may change.
    np.testing.assert_allclose(pruning.after.accuracy, pruning.before.accuracy, atol=0.045)
    result, before = small.result, digits.result
    assert result["accuracy_matrix"][:-1] == before["accuracy_matrix"][:-1]
    np.testing.assert_allclose(result["accuracy_matrix"][-1], before["accuracy_matrix"][-1], atol=0.06)
    x = np.random.default_rng(0).integers(0, 17, (20, 64)).astype(np.uint8)
    distance = runs.predict(small, x, task=2).probabilities - runs.predict(digits, x, task=2).probabilities
    assert np.abs(distance).mean() < 0.1


def test_a_pruning_that_is_stopped_leaves_nothing_that_looks_like_a_run(digits, tmp_path, monkeypatch):
    def stop(*args, **settings):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "save_after", stop)
        with pytest.raises(KeyboardInterrupt):
            widen(digits, tmp_path / "wide", (30,))
    assert not (tmp_path / "wide").exists()
    assert widen(digits, tmp_path / "wide", (30,)).stages() == [1, 2, 3]
    assert [path.name for path in tmp_path.iterdir()] == ["wide"]


def test_what_is_extended_after_widening_is_not_taken_for_an_ordinary_run(digits, tmp_path):
    wide = runs.StoredRun(widen(digits, tmp_path / "wide", (30,)))
    longer = runs.extend(wide, 4)
    assert longer.path == tmp_path / "wide-extended-4"
    assert longer.path.name != longer.config.name
    # The last step was an extension, those before it count too.
    assert extended_path(longer, 5).name == "wide-extended-4-extended-5"
    plain = runs.extend(runs.StoredRun(digits), 4, tmp_path / "plain")
    assert extended_path(plain, 5).name == replace(plain.config, stream=runs.StreamOptions(num_tasks=5)).name


def test_linear_layers_that_settings_do_not_name_are_refused(tmp_path):
    """The smaller run would have ReLUs instead."""
    run = made(tmp_path / "runs", tasks=2, network=MLP((6,), "linear"))
    with pytest.raises(VclError, match="linear layers"):
        widen(run, tmp_path / "wide", (9,))


def test_layers_are_never_emptied(two_layers, tmp_path):
    pruning = prune(two_layers, tmp_path / "small", tolerance=0.99)
    assert pruning.after.hidden == (1, 1)


def test_learning_goes_on_from_a_pruned_and_widened_network(digits, tmp_path):
    small = prune(digits, tmp_path / "small", after=2)
    assert RunFolder.open(small.run).result is None
    wide = widen(RunFolder.open(small.run), tmp_path / "wide", (30,))
    assert np.isneginf(posterior(wide, 2).log_var.head.weight[:2, small.after.hidden[0] :]).all()
    result = runs.resume(wide)
    after = posterior(wide, 3)
    assert widths(after) == (30,)
    assert np.isfinite(after.log_var.head.weight[2]).all()
    assert result["accuracy_matrix"][0] == digits.result["accuracy_matrix"][0]
    np.testing.assert_allclose(result["accuracy_matrix"][1][:2], digits.result["accuracy_matrix"][1][:2], atol=0.06)
    assert result["accuracy_matrix"][2][2] > 0.9
    assert analyse(wide).num_tasks == 3


@pytest.mark.parametrize("settings", [{"coreset": 6}, {"start": "previous"}, {"last_hidden": "linear"}])
def test_widening_suits_every_variant(tmp_path, settings):
    folder = made(tmp_path / "runs", tasks=2, hidden=(6,), **settings)
    wide = widen(folder, tmp_path / "wide", (9,), after=1)
    result = runs.resume(wide)
    assert result["accuracy_matrix"][1][1] > 0.7
    assert np.isfinite(result["scores"][1][0]["log_likelihood"])


def test_widening_a_shared_head_lets_the_next_task_use_the_units(two_layers, tmp_path):
    wide = widen(two_layers, tmp_path / "wide", (14, 15), after=1)
    runs.resume(wide)
    after = posterior(wide, 2)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(after))
    assert (jnp.abs(after.mean.head.weight[0, 10:]).max(axis=1) > 0).all()


# The commands


def test_the_command_shows_what_was_gained(vcl, digits, tmp_path):  # noqa: F811
    answer = vcl("prune", digits.path, "--out", tmp_path / "small", "--json")
    told = json.loads(answer.out)
    assert told["run"] == "small"
    assert told["before"]["hidden"] == [24]
    assert len(told["total_variation"]) == 3
    plain = vcl("prune", digits.path, "--out", tmp_path / "again")
    assert plain.code == 0
    for words in ("parameters", "times less", "accuracy on task 3", "of the parameters removed"):
        assert words in plain.out
    shown = vcl("show", tmp_path / "small")
    assert shown.code == 0
    np.save(tmp_path / "x.npy", np.zeros((2, 8, 8), np.uint8))
    assert vcl("predict", tmp_path / "small", "--input", tmp_path / "x.npy", "--task", 1).code == 0
    assert vcl("widen", tmp_path / "small", "--hidden", "40").code == 0
    assert RunFolder.open(tmp_path / "small-widened").record["config"]["learner"]["hidden"] == [40]


def test_what_cannot_be_done_is_refused(vcl, digits, tmp_path):  # noqa: F811
    (tmp_path / "there").mkdir()
    refused(vcl("prune", digits.path, "--out", tmp_path / "there"), "exists already", "--out")
    refused(vcl("prune", digits.path, "--out", tmp_path / "x", "--tolerance", "0"), "--tolerance", "above 0")
    refused(vcl("prune", digits.path, "--out", tmp_path / "x", "--after", "7"), "no checkpoint after stage 7")
    refused(vcl("widen", digits.path, "--out", tmp_path / "x", "--hidden", "10"), "none of them narrower")
    refused(vcl("widen", digits.path, "--out", tmp_path / "x", "--hidden", "30,30"), "as many layers")
    assert [path.name for path in tmp_path.iterdir()] == ["there"]


def test_methods_without_a_posterior_are_refused(tmp_path):
    folder = small_runs.learn(tmp_path, "split-digits", 2, "ewc", epochs=1, hidden=(4,))
    with pytest.raises(VclError, match=r"is one of ewc.*runs of vcl, joint-vcl"):
        prune(folder, tmp_path / "small")


@pytest.mark.parametrize("method", ["kronecker-vcl", "kronecker-vcl-recall"])
def test_correlated_weights_are_not_removed_or_added_unit_by_unit(method, tmp_path):
    folder = small_runs.learn(tmp_path, "split-digits", 1, method, epochs=1, hidden=(4,))
    reason = rf"is one of {method}, whose weights are correlated.*unit by unit.*runs of vcl, joint-vcl"
    with pytest.raises(VclError, match=reason):
        prune(folder, tmp_path / "small")
    with pytest.raises(VclError, match=reason):
        widen(folder, tmp_path / "wide", (8,))


def test_joint_networks_can_be_pruned_too(tmp_path):
    folder = small_runs.learn(tmp_path, "split-digits", 2, "joint-vcl", epochs=4, hidden=(12,))
    assert prune(folder, tmp_path / "small", tolerance=0.05).after.hidden[0] < 12
