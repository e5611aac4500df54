"""A model that is kept: learn, predict, save, load, learn on."""

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from conftest import blobs, make_stream
from test_methods import SETTINGS, SMALL, UNDEFINED, each_method

import vcl
from vcl import learning, recording
from vcl.checkpoints import tree_digest
from vcl.errors import VclError
from vcl.methods import METHODS, make
from vcl.model import Model
from vcl.regression import RegressionModel
from vcl.runs import StreamOptions, configure, run

VCL_SMALL = {"hidden": (8,), "epochs": 20, "batch_size": 16, "learning_rate": 0.02}


def model(**settings) -> Model:
    return Model("vcl", **{**VCL_SMALL, **settings})


def state_of(kept: Model) -> str:
    assert kept._snapshot is not None
    return tree_digest(kept._snapshot.state)


def small_model(method: str, **options) -> Model:
    kind = METHODS[method]
    settings = {**kind.recipes["fast"]["split-digits"], **SMALL, **SETTINGS.get(method, {})}
    return Model(make(method, settings), **options)


@each_method
def test_saved_and_loaded_it_learns_on_to_the_same_bits(method, tmp_path):
    kept = small_model(method)
    kept.learn(*blobs(0), task="a")
    kept.save(tmp_path / "model")
    other = Model.load(str(tmp_path / "model"))
    for each in (kept, other):
        each.learn(*blobs(1, 47), task="b")
    assert state_of(kept) == state_of(other)
    x = blobs(0)[0]
    np.testing.assert_array_equal(kept.predict_proba(x, "a"), other.predict_proba(x, "a"))
    assert other.tasks_ == ["a", "b"]


@each_method
def test_new_classes_are_welcome_in_a_shared_head(method):
    kept = small_model(method, shared_head=True)
    x, y = blobs(0)
    kept.learn(x, y, task="first")
    if "class" in UNDEFINED.get(method, set()):
        with pytest.raises(VclError, match="scenario"):
            kept.learn(x, y + 2, task="second")
        assert kept.classes_ == [0, 1]
        return
    kept.learn(x + 4.0, y + 2, task="second")
    assert kept.classes_ == [0, 1, 2, 3]
    p = kept.predict_proba(x)
    assert p.shape == (len(x), 4)
    np.testing.assert_allclose(p.sum(1), 1.0, rtol=1e-5)


def test_a_model_in_a_new_process_equals_the_uninterrupted_one(tmp_path):
    """As a user would: two scripts, the second of which starts from the file."""
    script = """
import sys
sys.path.insert(0, {tests!r})
from conftest import blobs
import vcl
kept = vcl.Model.load({path!r})
kept.learn(*blobs(1), task="b").learn(*blobs(2, 70), task="c").save({path!r})
"""
    kept = model().learn(*blobs(0), task="a")
    path = str(tmp_path / "model")
    kept.save(path)
    code = script.format(tests=str(Path(__file__).parent), path=path)
    subprocess.run([sys.executable, "-c", code], check=True)
    kept.learn(*blobs(1), task="b").learn(*blobs(2, 70), task="c")
    assert state_of(Model.load(path)) == state_of(kept)


def test_it_learns_the_same_as_a_stream_of_the_same_tasks():
    stream = make_stream(sizes=(60, 60, 60))
    learner = make("vcl", VCL_SMALL)
    kept = Model(learner)
    snapshot = learning.begin(learner, stream.spec, 0)
    for stage in range(3):
        kept.learn(*stream.train(stage)[:2], task=stage)
        snapshot = learning.observe(snapshot, stream.task(stage), stream.train(stage), learning.Fitter())
    for task in range(3):
        x = stream.test(task).inputs
        expected = learning.predict(snapshot, stream.spec.task(task), x).probabilities
        np.testing.assert_array_equal(kept.predict_proba(x, task), expected)


def test_each_task_has_its_own_classes_and_columns_follow_classes_():
    x, y = blobs(0)
    kept = model().learn(x, np.where(y, "yes", "no"), task="march")
    kept.learn(*blobs(1), task="april")
    assert kept.classes_ == ["no", "yes", 0, 1]
    p = kept.predict_proba(x, task="march")
    assert p.shape == (60, 4)
    assert not p[:, 2:].any()
    np.testing.assert_allclose(p.sum(1), 1.0, rtol=1e-6)
    assert set(kept.predict(x, "march")) <= {"no", "yes"}
    assert kept.score(x, np.where(y, "yes", "no"), "march") > 0.9


def test_a_task_with_more_classes_than_the_others():
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(5), 20)
    x = np.eye(6)[labels] * 3 + rng.normal(0, 0.2, (100, 6))
    kept = model(epochs=100).learn(*blobs(0), task="two").learn(x, labels + 10, task="five")
    assert kept.score(x, labels + 10, "five") > 0.9
    assert kept.predict_proba(blobs(0)[0], "two")[:, 2:].sum() == 0.0


@pytest.mark.parametrize(
    "relabel",
    [
        lambda y: y + 1,
        lambda y: y.astype(bool),
        lambda y: ["ab"[i] for i in y],
        lambda y: [("a", int(i)) for i in y],
        lambda y: [None if i is None else float(i) for i in y],
    ],
)
def test_labels_of_any_hashable_type(relabel, tmp_path):
    x, y = blobs(0)
    kept = model().learn(x, relabel(y))
    assert kept.score(x, relabel(y)) > 0.9
    kept.save(tmp_path / "m")
    assert Model.load(tmp_path / "m").classes_ == kept.classes_


def test_tables_lists_whole_numbers_and_pixels():
    pandas = pytest.importorskip("pandas", reason="only where pandas is installed")
    x, y = blobs(0)
    for inputs in (pandas.DataFrame(x), x.tolist(), (10 * x).astype(int), x > 0):
        assert model().learn(inputs, pandas.Series(y)).score(inputs, y) > 0.8


def test_whole_numbers_truth_values_and_pixels_are_inputs():
    x, y = blobs(0)
    for inputs in (x.tolist(), (10 * x).astype(int), x > 0):
        assert model().learn(inputs, list(y)).score(inputs, y) > 0.8
    images = np.clip(128 + 60 * x, 0, 255).astype(np.uint8).reshape(-1, 2, 3)
    kept = model(epochs=60).learn(images, y)
    assert kept.score(images, y) > 0.8
    with pytest.raises(VclError, match="uint8 pixels"):
        kept.learn(images / 255.0, y)


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (np.full((4, 6), np.nan), [0, 1, 0, 1], "NaN"),
        (np.ones((4, 6)), [0, 1, 0], "4 inputs and 3 labels"),
        (np.ones(4), [0, 1, 0, 1], "reshape"),
        (np.ones((0, 6)), [], "no examples"),
        (np.ones((2, 0)), [0, 1], "at least one feature"),
        (np.ones((2, 6)), [0, np.nan], "missing"),
        (np.ones((2, 6)), [[0], [1]], "ravel"),
        (np.array([["a"] * 6] * 2), [0, 1], "must be numbers"),
        (np.array([[{}] * 6] * 2, object), [0, 1], "not all numbers"),
        (1e30 * np.ones((2, 6)) ** 2 * 1e30, [0, 1], "too large"),
    ],
)
def test_data_that_cannot_be_learnt_is_refused_and_nothing_changes(x, y, message):
    kept = model()
    with pytest.raises(VclError, match=message):
        kept.learn(x, y)
    assert kept.tasks_ == []


def test_unknown_tasks_shapes_and_calls_before_learning_say_what_to_do(tmp_path):
    x, y = blobs(0)
    with pytest.raises(VclError, match="learn"):
        model().predict(x)
    with pytest.raises(VclError, match="nothing to save"):
        model().save(tmp_path / "m")
    kept = model().learn(x, y, task="march").learn(*blobs(1), task="april")
    with pytest.raises(VclError, match="'march'"):
        kept.predict(x)
    with pytest.raises(VclError, match=r"no task 'may'. Known: 'march', 'april'"):
        kept.predict(x, task="may")
    with pytest.raises(VclError, match=r"\(examples, 6\)"):
        kept.predict(x[:, :5], task="march")
    with pytest.raises(VclError, match="hashable"):
        kept.learn(x, y, task=["a list"])
    with pytest.raises(VclError, match="Did you mean 'vcl'"):
        Model("vlc")
    with pytest.raises(VclError, match="go with a method's name"):
        Model(vcl.VCL(), epochs=3)


def test_uncertainty_adds_up_and_is_larger_where_nothing_was_seen():
    x, y = blobs(0, 200)
    kept = model(epochs=60).learn(x, y)
    total, aleatoric, epistemic = kept.uncertainty(x)
    np.testing.assert_allclose(total, aleatoric + epistemic, atol=1e-5)
    between = np.zeros((20, 6))
    assert kept.uncertainty(between).total.mean() > total.mean()


def test_a_damaged_file_is_not_believed(tmp_path):
    path = tmp_path / "model"
    model().learn(*blobs(0)).save(path)
    whole = path.read_bytes()
    for place in (len(whole) // 2, len(whole) - 3):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(VclError, match=r"checksum|cannot be read"):
            Model.load(path)
    path.write_bytes(whole[:100])
    with pytest.raises(VclError, match="cannot be read"):
        Model.load(path)
    with pytest.raises(VclError, match="no model"):
        Model.load(tmp_path / "absent")


def test_a_learner_of_ones_own_is_handed_over_when_loading(tmp_path):
    from dataclasses import dataclass

    @dataclass(frozen=True)
    class Mine(METHODS["finetune"]):
        """A method of the user's."""

    learner = Mine(hidden=(4,), epochs=2)
    Model(learner).learn(*blobs(0)).save(tmp_path / "m")
    with pytest.raises(VclError, match="method=learner"):
        Model.load(tmp_path / "m")
    assert Model.load(tmp_path / "m", method=learner).tasks_ == ["default"]


def test_it_is_opened_from_a_run_and_learns_on(tmp_path):
    config = configure("split-digits", epochs=3, hidden=(8,), stream=StreamOptions(num_tasks=2))
    run(config, tmp_path)
    kept = Model.from_run(tmp_path / config.name)
    stream = vcl.build("split-digits", StreamOptions(num_tasks=3), seed=0)
    expected = vcl.predict(vcl.RunFolder.open(tmp_path / config.name), stream.test(1).inputs, task=2)
    np.testing.assert_array_equal(kept.predict_proba(stream.test(1).inputs, "2v3"), expected.probabilities)
    kept.learn(*stream.train(2)[:2], task="4v5")
    longer = configure("split-digits", epochs=3, hidden=(8,), stream=StreamOptions(num_tasks=3))
    matrix = run(longer, tmp_path)["accuracy_matrix"]
    assert kept.score(*stream.test(2)[:2], "4v5") == matrix[2][2]


@pytest.mark.parametrize(("scenario", "shared"), [("task", False), ("domain", True)])
def test_a_run_of_one_task_has_the_heads_of_its_scenario(scenario, shared, tmp_path):
    options = StreamOptions(num_tasks=1, scenario=scenario)
    config = configure("split-digits", epochs=1, hidden=(4,), threads=1, stream=options)
    run(config, tmp_path)
    kept = Model.from_run(tmp_path / config.name)
    assert kept.shared_head == shared
    kept.learn(*vcl.build("split-digits", StreamOptions(num_tasks=2), seed=0).train(1)[:2], task="2v3")
    assert kept.snapshot.spec.num_heads == (1 if shared else 2)


def test_ctrl_c_leaves_the_model_as_it_was_and_the_checkpoint_continues(tmp_path, monkeypatch):
    kept, whole = (model(epochs=400).learn(*blobs(0), task="a") for _ in range(2))
    before = state_of(kept)
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt, match="as it was"):
        # More than there is time for.
        Model("vcl", **{**VCL_SMALL, "epochs": 10_000_000}).learn(*blobs(1), checkpoint=tmp_path / "c")
    assert list((tmp_path / "c").glob("learn-train-*"))
    assert state_of(kept) == before

    class Stopped(recording.LearnRecorder):
        def advance(self, *args):
            self.stop = lambda: True

    with monkeypatch.context() as patch:
        patch.setattr(recording, "LearnRecorder", Stopped)
        with pytest.raises(KeyboardInterrupt):
            kept.learn(*blobs(1), task="b", checkpoint=tmp_path / "d")
    assert state_of(kept) == before
    assert list((tmp_path / "d").glob("learn-train-*"))
    kept.learn(*blobs(1), task="b", checkpoint=tmp_path / "d")
    assert not list((tmp_path / "d").glob("learn-*"))
    assert state_of(kept) == state_of(whole.learn(*blobs(1), task="b"))


def test_progress_is_shown(capsys):
    model().learn(*blobs(0), progress=True)
    assert "epoch 20/20" in capsys.readouterr().err


def test_the_log_tells_what_was_learnt(tmp_path):
    kept = model().learn(*blobs(0), task="a").learn(*blobs(0, 30), task="a")
    kept.save(tmp_path / "m")
    log = Model.load(tmp_path / "m").log_
    assert [(entry["task"], entry["examples"], entry["new_classes"]) for entry in log] == [
        ("a", 60, [0, 1]),
        ("a", 30, []),
    ]
    assert json.loads(json.dumps(log)) == log


def test_a_constant_target_is_not_divided_by_its_rounding():
    kept, constant = RegressionModel("vcl", **VCL_SMALL), np.full(1000, 0.1)
    assert constant.std() > 0, "which is what makes it hard"
    np.testing.assert_allclose(kept._targets(constant, 0).outputs, 0.0, atol=1e-9)
    assert kept.notes_["target"] == {"mean": pytest.approx(0.1), "std": 1.0}
    with pytest.raises(VclError, match="one for each example"):
        kept.learn(blobs(0)[0], [])


def test_further_batches_start_at_the_posterior_and_a_new_class_starts_afresh(monkeypatch):
    seen = []
    kind = METHODS["vcl"]
    original = kind.observe

    def observe(self, key, state, task, data, fit):
        seen.append((task.index, task.batch))
        return original(self, key, state, task, data, fit)

    monkeypatch.setattr(kind, "observe", observe)
    x, y = blobs(0)
    model(epochs=2).learn(x, y).learn(x, y).learn(x, y + 1).learn(x, y)
    assert seen == [(0, 0), (0, 1), (0, 0), (0, 3)]
