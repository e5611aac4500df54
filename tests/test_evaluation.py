"""Predictions, uncertainty and what the accuracy matrix says, against numbers worked out by hand."""

import itertools
from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.calibration import calibration_curve
from sklearn.metrics import brier_score_loss, roc_auc_score

from vcl import evaluation
from vcl.evaluation import BATCH, Prediction, entropy, expected_calibration_error, predict, score

KEY = jax.random.key(0)

# Rows: after task 1, 2, 3. Columns: tasks. What is not seen yet is None.
MATRIX = [[0.9, None, None], [0.95, 0.8, None], [0.6, 0.85, 0.7]]


def test_average_accuracy_is_the_last_rows_mean():
    assert evaluation.average_accuracy(MATRIX) == pytest.approx((0.6 + 0.85 + 0.7) / 3)


def test_forgetting_is_the_fall_from_the_best_earlier_row():
    assert evaluation.forgetting(MATRIX) == pytest.approx(((0.95 - 0.6) + (0.8 - 0.85)) / 2)


def test_backward_transfer_is_the_change_since_a_task_was_learnt():
    assert evaluation.backward_transfer(MATRIX) == pytest.approx(((0.6 - 0.9) + (0.85 - 0.8)) / 2)


def test_forward_transfer_compares_with_an_untrained_model_on_all_but_the_first_task():
    assert evaluation.forward_transfer([0.1, 0.7, 0.4], [0.9, 0.5, 0.5]) == pytest.approx((0.2 - 0.1) / 2)


def test_a_single_task_forgets_and_transfers_nothing():
    assert evaluation.forgetting([[0.9]]) == evaluation.backward_transfer([[0.9]]) == 0.0
    assert evaluation.forward_transfer([0.5], [0.4]) == 0.0
    assert evaluation.average_accuracy([[0.9]]) == 0.9


@dataclass(frozen=True)
class Chooser:
    """A learner whose draws are its parameters: p(y | x, θ_s) = softmax(x · θ_s)."""

    recipes: ClassVar[dict] = {}
    needs_task_id: ClassVar[bool] = False
    joint: ClassVar[bool] = False

    def init(self, key, spec): ...
    def grow(self, key, state, old, new): ...
    def observe(self, key, state, task, data, fit): ...
    def readout(self, key, state, task, fit): ...
    def footprint(self, state): ...
    def predict(self, key, params, inputs):
        return jax.nn.log_softmax(jnp.einsum("nd,sdc->snc", inputs, params))


def softmax(x):
    return np.exp(x) / np.exp(x).sum(-1, keepdims=True)


def test_the_prediction_is_the_average_over_draws_and_entropy_splits():
    rng = np.random.default_rng(0)
    inputs, draws = rng.normal(size=(7, 3)).astype(np.float32), rng.normal(size=(4, 3, 5)).astype(np.float32)
    found = predict(Chooser(), KEY, draws, inputs)
    each = softmax(np.einsum("nd,sdc->snc", inputs, draws))
    mean = each.mean(0)
    np.testing.assert_allclose(found.probabilities, mean, rtol=1e-4)
    np.testing.assert_array_equal(found.classes, mean.argmax(1))
    total, aleatoric = -(mean * np.log(mean)).sum(-1), -(each * np.log(each)).sum(-1).mean(0)
    np.testing.assert_allclose(found.total_entropy, total, rtol=1e-4)
    np.testing.assert_allclose(found.aleatoric_entropy, aleatoric, rtol=1e-4)
    np.testing.assert_allclose(found.epistemic_entropy, total - aleatoric, atol=1e-5)
    assert (found.epistemic_entropy > 0.01).all()


def test_draws_that_agree_leave_no_doubt_about_the_model():
    draws = np.broadcast_to(np.random.default_rng(0).normal(size=(3, 5)), (4, 3, 5)).astype(np.float32)
    found = predict(Chooser(), KEY, draws, np.eye(3, dtype=np.float32))
    np.testing.assert_allclose(found.epistemic_entropy, 0.0, atol=1e-6)
    assert (found.total_entropy > 0.5).all()


@pytest.mark.parametrize("size", [BATCH, BATCH + 1, 2 * BATCH + 357])
def test_batches_are_put_together_in_order(size):
    inputs = np.random.default_rng(0).normal(size=(size, 2)).astype(np.float32)
    found = predict(Chooser(), KEY, np.eye(2, dtype=np.float32)[None], inputs)
    np.testing.assert_allclose(found.probabilities, softmax(inputs), rtol=1e-4)


def test_batches_draw_their_own_noise():
    @dataclass(frozen=True)
    class Noisy(Chooser):
        def predict(self, key, params, inputs):
            return jax.nn.log_softmax(jax.random.normal(key, (1, len(inputs), 2)))

    found = predict(Noisy(), KEY, None, np.zeros((2 * BATCH, 1), np.float32))
    assert not np.array_equal(found.log_probs[:BATCH], found.log_probs[BATCH:])


def test_entropy_of_certainty_is_zero_and_of_ignorance_log_c():
    np.testing.assert_allclose(entropy(jnp.log(jnp.array([[1.0, 0.0], [0.5, 0.5]]))), [0.0, np.log(2)], rtol=1e-6)


def test_scores_of_three_predictions():
    probabilities = np.array([[0.9, 0.1], [0.4, 0.6], [0.7, 0.3]])
    prediction = Prediction(np.log(probabilities), np.array([1.0, 2.0, 3.0]), np.array([0.5, 0.5, 2.0]))
    found = score(prediction, np.array([0, 1, 1]))
    assert found.accuracy == pytest.approx(2 / 3)
    assert found.log_likelihood == pytest.approx(np.log([0.9, 0.6, 0.3]).mean())
    assert found.calibration_error == pytest.approx((0.1 + 0.4 + 0.7) / 3)
    assert (found.total_entropy, found.aleatoric_entropy) == (2.0, 1.0)


def test_calibration_error_weighs_the_gap_of_each_bin():
    # Four at confidence 0.75, of which three are right: no gap. Two at 0.95, one right: a gap of 0.45.
    confidence = np.array([0.75, 0.75, 0.75, 0.75, 0.95, 0.95])
    probabilities = np.stack([confidence, 1 - confidence], 1)
    labels = np.array([0, 0, 0, 1, 0, 1])
    assert expected_calibration_error(probabilities, labels) == pytest.approx(2 / 6 * 0.45)


def test_within_a_bin_errors_cancel_and_between_bins_they_do_not():
    probabilities = np.array([[0.6, 0.4], [0.9, 0.1]])
    labels = np.array([0, 1])
    assert expected_calibration_error(probabilities, labels, bins=15) == pytest.approx((0.4 + 0.9) / 2)
    assert expected_calibration_error(probabilities, labels, bins=1) == pytest.approx(abs(0.5 - 0.75))


@given(st.integers(1, 60), st.integers(2, 5), st.integers(0, 2**32 - 1))
def test_calibration_error_equals_its_definition(examples, classes, seed):
    rng = np.random.default_rng(seed)
    probabilities = rng.dirichlet(np.full(classes, 0.3), examples)
    labels = rng.integers(0, classes, examples)
    confidence, right = probabilities.max(1), probabilities.argmax(1) == labels
    expected = 0.0
    edges = np.linspace(0, 1, evaluation.BINS + 1)
    for low, high in itertools.pairwise(edges):
        inside = (confidence >= low) & ((confidence < high) | (high == 1))
        if inside.any():
            expected += inside.mean() * abs(right[inside].mean() - confidence[inside].mean())
    assert expected_calibration_error(probabilities, labels) == pytest.approx(expected, abs=1e-9)


def test_brier_auroc_and_selective_risk_against_scikit_learn():
    rng = np.random.default_rng(0)
    probabilities = rng.dirichlet(np.ones(4), 200)
    labels = rng.integers(0, 4, 200)
    expected = np.mean([np.sum((p - np.eye(4)[y]) ** 2) for p, y in zip(probabilities, labels, strict=True)])
    assert evaluation.brier_score(probabilities, labels) == pytest.approx(expected)
    two = np.c_[1 - probabilities[:, 0], probabilities[:, 0]]
    assert evaluation.brier_score(two, (labels == 0).astype(int)) == pytest.approx(
        2 * brier_score_loss(labels == 0, two[:, 1])
    )
    inside, outside = rng.normal(size=150).round(1), rng.normal(0.5, 1, 80).round(1)
    truth = np.r_[np.zeros(150), np.ones(80)]
    assert evaluation.auroc(inside, outside) == pytest.approx(roc_auc_score(truth, np.r_[inside, outside]))
    doubt = 1 - probabilities.max(1)
    correct = probabilities.argmax(1) == labels
    assert evaluation.risk_at_coverage(doubt, correct, 1.0) == pytest.approx(1 - correct.mean())
    risks = [evaluation.risk_at_coverage(doubt, correct, k / 200) for k in range(1, 201)]
    assert evaluation.area_under_risk(doubt, correct) == pytest.approx(np.mean(risks))
    diagram = evaluation.reliability(probabilities, labels, bins=10)
    accuracy, confidence = calibration_curve(correct, 1 - doubt, n_bins=10)
    assert diagram.accuracy[diagram.counts > 0] == pytest.approx(accuracy)
    assert diagram.confidence[diagram.counts > 0] == pytest.approx(confidence)


def test_learning_accuracy_is_the_mean_of_the_diagonal():
    assert evaluation.learning_accuracy([[0.9, None], [0.5, 0.7]]) == pytest.approx(0.8)
