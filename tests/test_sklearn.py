"""The estimators are scikit-learn's in every respect, and continual learners besides."""

import pickle
import warnings

import numpy as np
import pytest
from conftest import blobs
from sklearn.base import clone
from sklearn.datasets import load_iris
from sklearn.exceptions import NotFittedError, SkipTestWarning
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator, estimator_checks_generator

from vcl import VCLClassifier, VclError, VCLRegressor
from vcl.checkpoints import tree_digest
from vcl.regression import RegressionModel

SMALL = {"hidden": (8,)}


def state_of(estimator) -> str:
    return tree_digest(estimator.model_._snapshot.state)


def line(examples: int = 120, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """A straight line; the noise is ten times larger where x is above 0."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1, 1, (examples, 1))
    noise = np.where(x[:, 0] > 0, 5.0, 0.5)
    return x, 200 + 30 * x[:, 0] + noise * rng.normal(size=examples)


DEPEND_ON_THE_METHOD = {
    "check_fit2d_1sample",
    "check_fit2d_1feature",
    "check_classifiers_one_label",
    "check_classifiers_train",
    "check_fit_idempotent",
    "check_methods_subset_invariance",
}
"""Checks of what is learnt from unusual data, and whether it is the same again; others are about the estimator."""


@pytest.mark.parametrize("estimator", [VCLClassifier("vcl", **SMALL), VCLRegressor(**SMALL)], ids=repr)
def test_it_passes_the_checks_of_scikit_learn(estimator):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SkipTestWarning)
        results = check_estimator(estimator)
    assert len(results) > 40
    assert {result["status"] for result in results} <= {"passed", "skipped"}


def test_the_default_method_passes_the_checks_that_depend_on_it():
    passed = set()
    for estimator, check in estimator_checks_generator(VCLClassifier(**SMALL)):
        if check.func.__name__ in DEPEND_ON_THE_METHOD:
            check(estimator)
            passed.add(check.func.__name__)
    assert passed == DEPEND_ON_THE_METHOD


def test_batches_add_up_and_new_classes_are_sorted_in():
    x, y = load_iris(return_X_y=True)
    names = np.array(["setosa", "versicolor", "virginica"])[y]
    model = VCLClassifier(**SMALL)
    model.partial_fit(x[50:], names[50:])
    assert model.classes_.tolist() == ["versicolor", "virginica"]
    model.partial_fit(x[:50], names[:50])
    assert model.classes_.tolist() == ["setosa", "versicolor", "virginica"]
    assert model.predict_proba(x).shape == (150, 3)
    assert (model.predict(x[:50]) == "setosa").mean() > 0.9


def test_announced_classes_have_no_probability_until_they_come():
    x, y = blobs(0)
    model = VCLClassifier(**SMALL).partial_fit(x, y, classes=[0, 1, 2])
    np.testing.assert_array_equal(model.predict_proba(x)[:, 2], 0.0)
    with pytest.raises(ValueError, match="does not"):
        VCLClassifier(**SMALL).partial_fit(x, y, classes=[0, 2])


def test_tasks_have_output_layers_of_their_own_if_asked():
    model = VCLClassifier(**SMALL, shared_head=False)
    for task in range(2):
        model.partial_fit(*blobs(task), task=task)
    assert min(model.predict(blobs(t)[0], task=t).__eq__(blobs(t)[1]).mean() for t in range(2)) > 0.9
    with pytest.raises(VclError, match="Say which one"):
        model.predict(blobs(0)[0])


def test_an_answer_does_not_depend_on_what_else_is_asked():
    x, y = blobs(0, 300)
    model = VCLClassifier(**SMALL).fit(x, y)
    many, one = model.predict_proba(x), np.concatenate([model.predict_proba(x[i : i + 1]) for i in (0, 7, 299)])
    np.testing.assert_allclose(many[[0, 7, 299]], one, atol=1e-6)


@pytest.mark.parametrize("kind", [VCLClassifier, VCLRegressor])
def test_saved_pickled_and_loaded_it_learns_on_to_the_same_bits(kind, tmp_path):
    data = blobs if kind is VCLClassifier else lambda n, m: line(m, n)
    first, second = data(0, 60), data(1, 60)
    model = kind(**SMALL, settings={"prior_std": 0.5}).partial_fit(*first)
    model.save(tmp_path / "model")
    others = [kind.load(tmp_path / "model"), pickle.loads(pickle.dumps(model))]
    for each in (model, *others):
        each.partial_fit(*second)
        assert state_of(each) == state_of(model)
        np.testing.assert_array_equal(each.predict(first[0]), model.predict(first[0]))
    assert others[0].get_params() == model.get_params()
    fresh = clone(model)
    with pytest.raises(NotFittedError):
        fresh.predict(first[0])


def test_it_can_be_searched_in_a_pipeline_by_several_processes():
    x, y = blobs(0)
    pipeline = make_pipeline(StandardScaler(), VCLClassifier(**SMALL, scale=False, epochs=10))
    search = GridSearchCV(pipeline, {"vclclassifier__learning_rate": [1e-6, 0.05]}, cv=2, n_jobs=2).fit(x, y)
    assert search.best_params_ == {"vclclassifier__learning_rate": 0.05}


def test_any_method_by_its_name():
    x, y = blobs(0)
    assert VCLClassifier("ewc", **SMALL, settings={"strength": 10.0}).fit(x, y).score(x, y) > 0.9
    with pytest.raises(VclError, match="must be a dict"):
        VCLClassifier(settings=b"x").fit(x, y)
    with pytest.raises(VclError, match="Give epochs as a parameter"):
        VCLClassifier(settings={"epochs": 3}).fit(x, y)
    with pytest.raises(VclError, match="no method 'ewd'"):
        VCLClassifier("ewd").fit(x, y)
    with pytest.raises(VclError, match="no method 'ewc'"):
        VCLRegressor("ewc").fit(*line())


def test_the_regressor_learns_the_noise_and_knows_where_it_has_seen_nothing():
    model = VCLRegressor(hidden=(20,), epochs=300).fit(*line(400))
    x = np.array([[-0.5], [0.5]])
    np.testing.assert_allclose(model.predict(x), [185, 215], atol=3)
    calm, noisy = model.predict_uncertainty(x).aleatoric
    assert calm < 1.5 < noisy / 2 < 4
    near, far = model.predict_uncertainty([[0.0], [20.0]]).epistemic
    assert far > 5 * near
    _, std = model.predict(x, return_std=True)
    total, aleatoric, epistemic = model.predict_uncertainty(x)
    np.testing.assert_allclose(std, total)
    np.testing.assert_allclose(total**2, aleatoric**2 + epistemic**2, rtol=1e-5)


def test_the_regressor_keeps_the_first_batch_when_the_second_is_elsewhere():
    x, y = line(400)
    low, high = x[:, 0] < 0, x[:, 0] >= 0
    model = VCLRegressor(hidden=(20,)).partial_fit(x[low], y[low]).partial_fit(x[high], y[high])
    forgetful = VCLRegressor(hidden=(20,)).fit(x[high], y[high])
    assert model.score(x, y) > 0.9
    assert model.score(x[low], y[low]) > forgetful.score(x[low], y[low])


def test_a_coreset_is_refused_where_it_would_round_numbers():
    with pytest.raises(VclError, match="no coreset"):
        VCLRegressor(settings={"coreset": 5}).fit(*line())


def test_what_could_not_be_learnt_leaves_the_estimator_as_it_was():
    x, y = blobs(0)
    model = VCLClassifier("vcl", **SMALL, epochs=-1)
    with pytest.raises(VclError, match="epochs"):
        model.partial_fit(x[:, :4], y)
    model.set_params(epochs=2).partial_fit(x, y)
    before, answers = state_of(model), model.predict_proba(x)
    with pytest.raises(VclError, match="epochs"):
        model.set_params(epochs=-1).fit(x[:, :4], y + 5)
    assert state_of(model) == before
    np.testing.assert_array_equal(model.predict_proba(x), answers)
    huge = np.full_like(x, 1e200, dtype=np.float64)
    with pytest.raises(VclError):
        model.set_params(epochs=2, scale=False).fit(huge, y)
    np.testing.assert_array_equal(model.predict_proba(x), answers)


def test_parameters_may_be_numbers_and_arrays_of_numpy(tmp_path):
    x, y = blobs(0)
    numbers = {"epochs": np.int64(2), "hidden": np.array([4]), "shared_head": np.True_}
    model = VCLClassifier("vcl", **numbers, settings={"prior_std": np.float32(0.5)}).fit(x, y)
    model.save(tmp_path / "model")
    loaded = VCLClassifier.load(tmp_path / "model")
    assert (loaded.epochs, loaded.hidden, loaded.shared_head) == (2, (4,), True)
    np.testing.assert_array_equal(loaded.predict_proba(x), model.predict_proba(x))


def test_a_constant_feature_is_not_blown_up_by_rounding():
    x, y = blobs(0)
    x = np.column_stack([x, np.full(len(x), 1.7e9 + 0.1)])
    model = VCLClassifier("vcl", **SMALL).fit(x, y)
    assert model.model_.notes_["inputs"]["std"][-1] == 1.0
    later = x + np.eye(7)[6]
    assert model.score(later, y) > 0.9


def test_classes_that_are_text_do_not_join_classes_that_are_numbers():
    x, y = blobs(0)
    model = VCLClassifier("vcl", **SMALL, epochs=2).partial_fit(x, y)
    with pytest.raises(ValueError, match="all as numbers"):
        model.partial_fit(x, np.array(["a", "b"])[y])
    assert model.classes_.tolist() == [0, 1]


def test_a_model_of_numbers_is_scored_on_as_many_targets_as_inputs():
    x, y = line()
    model = RegressionModel("vcl", hidden=(4,), epochs=2).learn(x, y)
    with pytest.raises(VclError, match="120 inputs and 1 labels"):
        model.score(x, y[:1])
