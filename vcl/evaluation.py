"""What a learner knows: predictions, uncertainty, calibration, and what it kept of earlier tasks."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key, Shaped

from vcl.core import Examples, Learner, Params
from vcl.errors import VclError

BATCH, SMALL_BATCH = 1000, 64
BINS = 15

Matrix = Sequence[Sequence[float | None]]


@dataclass(frozen=True)
class Prediction:
    """The predictive distribution and how its entropy comes about, in nats.

    total = H[E_θ p(y|x,θ)]; aleatoric = E_θ H[p(y|x,θ)], the noise that more data would not remove; the rest,
    total - aleatoric, is what the model does not know (the mutual information of y and θ).
    """

    log_probs: Float[np.ndarray, "n c"]
    total_entropy: Float[np.ndarray, "n"]
    aleatoric_entropy: Float[np.ndarray, "n"]

    @property
    def probabilities(self) -> Float[np.ndarray, "n c"]:
        return np.exp(self.log_probs)

    @property
    def classes(self) -> Int[np.ndarray, "n"]:
        return np.argmax(self.log_probs, axis=1)

    @property
    def epistemic_entropy(self) -> Float[np.ndarray, "n"]:
        return self.total_entropy - self.aleatoric_entropy


class NormalPrediction(NamedTuple):
    """The predictive distribution of a number: its mean, and its variance in two parts.

    Var[y] = E_θ Var[y|θ] + Var_θ E[y|θ]: noise that more data would not remove, and what the model does not know.
    """

    mean: Float[np.ndarray, "n"]
    aleatoric: Float[np.ndarray, "n"]
    epistemic: Float[np.ndarray, "n"]


class Uncertainty(NamedTuple):
    """Entropies of the predictive distribution of each example, in nats. total = aleatoric + epistemic."""

    total: Float[np.ndarray, "n"]
    aleatoric: Float[np.ndarray, "n"]
    """Noise in the labels, which more data would not remove."""
    epistemic: Float[np.ndarray, "n"]
    """What the model has not learnt: the mutual information of the label and the weights."""


@dataclass(frozen=True)
class Scores:
    """How well one task's test data is predicted."""

    accuracy: float
    log_likelihood: float
    calibration_error: float
    total_entropy: float
    aleatoric_entropy: float
    brier_score: float


def predict(
    learner: Learner,
    key: Key[Array, ""],
    params: Params,
    inputs: Shaped[np.ndarray, "n d"],
    classes: Int[np.ndarray, "k"] | None = None,
    *,
    common_noise: bool = False,
) -> Prediction:
    """Monte-Carlo predictive probabilities, in batches so that memory stays bounded.

    Where `classes` are named, only these compete, and only they are in the answer, in this order. With
    `common_noise` all examples meet the same draws, so that none depends on what else is asked.
    """

    def batch(key: Key[Array, ""], inputs: Shaped[Array, "n d"]) -> tuple[Array, ...]:
        return _predict(learner, key, params, inputs, classes, common_noise)

    return Prediction(*in_batches(batch, key, inputs, common_noise))


def predict_normal(
    learner: Learner, key: Key[Array, ""], params: Params, inputs: Shaped[np.ndarray, "n d"]
) -> NormalPrediction:
    """Mean and variance of the predictive distribution of a number, for a learner with the likelihood `Normal`."""
    return NormalPrediction(*in_batches(lambda k, x: _predict_normal(learner, k, params, x), key, inputs, True))


def in_batches(
    function: Callable[..., tuple[Array, ...]],
    key: Key[Array, ""],
    inputs: Shaped[np.ndarray, "n d"],
    common_noise: bool,
) -> list[np.ndarray]:
    """`function(key, inputs)` batch by batch, put together again."""
    parts = []
    # One row alone is computed by the same program as many, so that it comes out the same.
    few = SMALL_BATCH if common_noise else len(inputs)
    rows = few if len(inputs) <= min(few, BATCH) else BATCH
    for number, start in enumerate(range(0, len(inputs), rows)):
        batch = inputs[start : start + rows]
        # The last batch is filled up to the others' shape: one compiled program serves all.
        filled = np.pad(batch, ((0, rows - len(batch)), (0, 0)))
        outputs = function(key if common_noise else jax.random.fold_in(key, number), jnp.asarray(filled))
        parts.append([np.asarray(a)[: len(batch)] for a in outputs])
    return [numbers(np.concatenate(column)) for column in zip(*parts, strict=True)]


def numbers(values: np.ndarray) -> np.ndarray:
    """The same values, checked."""
    if np.isnan(values).any():
        raise VclError(
            "The network's predictions are not numbers: its weights, its prior or the inputs are too large. Scale "
            "the inputs, or choose smaller settings."
        )
    return values


def draw(
    learner: Learner, key: Key[Array, ""], params: Params, inputs: Shaped[Array, "n d"], common_noise: bool
) -> Float[Array, "s n c"]:
    """What the learner answers under each draw; under the same draws for all examples, if asked."""
    if not common_noise:
        return learner.predict(key, params, inputs)
    return jax.vmap(lambda x: learner.predict(key, params, x[None])[:, 0], out_axes=1)(inputs)


@functools.partial(jax.jit, static_argnames="learner")
def _predict_normal(
    learner: Learner, key: Key[Array, ""], params: Params, inputs: Shaped[Array, "n d"]
) -> tuple[Float[Array, "n"], Float[Array, "n"], Float[Array, "n"]]:
    draws = draw(learner, key, params, inputs, True)
    mean, log_var = draws[..., 0], draws[..., 1]
    return jnp.mean(mean, axis=0), jnp.mean(jnp.exp(log_var), axis=0), jnp.var(mean, axis=0)


@functools.partial(jax.jit, static_argnames=("learner", "common_noise"))
def _predict(
    learner: Learner,
    key: Key[Array, ""],
    params: Params,
    inputs: Shaped[Array, "n d"],
    classes: Int[np.ndarray | Array, "k"] | None,
    common_noise: bool,
) -> tuple[Float[Array, "n k"], Float[Array, "n"], Float[Array, "n"]]:
    draws = draw(learner, key, params, inputs, common_noise)
    if classes is not None:
        draws = jax.nn.log_softmax(draws[..., classes])
    average = jax.nn.logsumexp(draws, axis=0) - jnp.log(draws.shape[0])
    return average, entropy(average), jnp.mean(entropy(draws), axis=0)


def entropy(log_probs: Float[Array, "*s c"]) -> Float[Array, "*s"]:
    """H[p] = -Σ p log p, where 0 log 0 = 0."""
    return -jnp.sum(jnp.where(jnp.isneginf(log_probs), 0.0, jnp.exp(log_probs) * log_probs), axis=-1)


def score(prediction: Prediction, labels: Int[np.ndarray, "n"]) -> Scores:
    return Scores(
        accuracy=float(np.mean(prediction.classes == labels)),
        log_likelihood=float(np.mean(prediction.log_probs[np.arange(len(labels)), labels])),
        calibration_error=expected_calibration_error(prediction.probabilities, labels),
        total_entropy=float(np.mean(prediction.total_entropy)),
        aleatoric_entropy=float(np.mean(prediction.aleatoric_entropy)),
        brier_score=brier_score(prediction.probabilities, labels),
    )


def evaluate(learner: Learner, key: Key[Array, ""], params: Params, examples: Examples) -> Scores:
    return score(predict(learner, key, params, examples.inputs), examples.labels)


def expected_calibration_error(
    probabilities: Float[np.ndarray, "n c"], labels: Int[np.ndarray, "n"], bins: int = BINS
) -> float:
    """Σ_b (n_b / n) · |accuracy_b - confidence_b| over equal bins of confidence (Guo et al., 2017)."""
    found = reliability(probabilities, labels, bins)
    return float(np.sum(found.counts * np.abs(found.accuracy - found.confidence)) / len(labels))


class Reliability(NamedTuple):
    """A reliability diagram: bins of equal width in confidence; zeros where a bin is empty."""

    counts: Int[np.ndarray, "bins"]
    confidence: Float[np.ndarray, "bins"]
    """Mean confidence of the examples in each bin."""
    accuracy: Float[np.ndarray, "bins"]


def reliability(
    probabilities: Float[np.ndarray, "n c"], labels: Int[np.ndarray, "n"], bins: int = BINS
) -> Reliability:
    """How often predictions of each confidence are right.

    >>> found = reliability(np.array([[0.9, 0.1], [0.6, 0.4]]), np.array([0, 1]), bins=2)
    >>> found.counts.tolist(), found.accuracy.tolist()
    ([0, 2], [0.0, 0.5])
    """
    confidence = probabilities.max(axis=1)
    correct = probabilities.argmax(axis=1) == labels
    which = np.minimum((confidence * bins).astype(int), bins - 1)
    counts = np.bincount(which, minlength=bins)
    sums = [np.bincount(which, weights=values, minlength=bins) for values in (confidence, correct)]
    return Reliability(counts, *(total / np.maximum(counts, 1) for total in sums))


def brier_score(probabilities: Float[np.ndarray, "n c"], labels: Int[np.ndarray, "n"]) -> float:
    """Mean of Σ_k (p_k - 1[y = k])² (Brier, 1950): 0 is perfect, 2 the worst.

    >>> brier_score(np.array([[1.0, 0.0], [0.5, 0.5]]), np.array([0, 0]))
    0.25
    """
    truth = np.eye(probabilities.shape[1])[labels]
    return float(np.mean(np.sum((probabilities - truth) ** 2, axis=1)))


def auroc(inside: Float[np.ndarray, "n"], outside: Float[np.ndarray, "m"]) -> float:
    """The probability that a score is larger for an example from outside than for one from inside; ties count half.

    >>> auroc(np.array([0.1, 0.2]), np.array([0.2, 0.9]))
    0.875
    """
    order = np.sort(inside)
    below, upto = (np.searchsorted(order, outside, side=side) for side in ("left", "right"))
    return float(np.mean(below + upto) / (2 * len(inside)))


def risk_at_coverage(
    uncertainty: Float[np.ndarray, "n"], correct: Shaped[np.ndarray, "n"], coverage: float
) -> float:
    """The part of wrong answers among the least uncertain `coverage` of all examples (selective prediction).

    >>> risk_at_coverage(np.array([0.1, 0.2, 0.9, 0.3]), np.array([True, True, False, True]), 0.75)
    0.0
    """
    return float(risk_curve(uncertainty, correct, (coverage,))[0])


def risk_curve(
    uncertainty: Float[np.ndarray, "n"], correct: Shaped[np.ndarray, "n"], coverages: Sequence[float]
) -> Float[np.ndarray, "c"]:
    """`risk_at_coverage` for each of several coverages.

    >>> risk_curve(np.array([0.1, 0.9]), np.array([True, False]), (0.5, 1.0)).tolist()
    [0.0, 0.5]
    """
    wrong = np.cumsum(~correct[np.argsort(uncertainty, kind="stable")].astype(bool))
    kept = np.maximum(1, np.round(np.multiply(coverages, len(correct))).astype(int))
    return wrong[kept - 1] / kept


def area_under_risk(uncertainty: Float[np.ndarray, "n"], correct: Shaped[np.ndarray, "n"]) -> float:
    """The mean risk over all coverages (AURC; Geifman & El-Yaniv, 2017): lower is better."""
    wrong = ~correct[np.argsort(uncertainty, kind="stable")].astype(bool)
    return float(np.mean(np.cumsum(wrong) / np.arange(1, len(wrong) + 1)))


def average_accuracy(matrix: Matrix) -> float:
    """Mean accuracy over all tasks, after the last one."""
    return float(np.mean([a for a in matrix[-1] if a is not None]))


def forgetting(matrix: Matrix) -> float:
    """Mean over j < T of max_{i<T} A[i,j] - A[T,j] (Chaudhry et al., 2018); 0 for a single task."""
    a = _array(matrix)
    return _mean([np.nanmax(a[:-1, j]) - a[-1, j] for j in range(len(a) - 1)])


def backward_transfer(matrix: Matrix) -> float:
    """Mean over j < T of A[T,j] - A[j,j] (Lopez-Paz & Ranzato, 2017); 0 for a single task."""
    a = _array(matrix)
    return _mean([a[-1, j] - a[j, j] for j in range(len(a) - 1)])


def learning_accuracy(matrix: Matrix) -> float:
    """Mean over j of A[j,j]: accuracy on each task just after it was learnt (Riemer et al., 2019)."""
    return _mean([row[j] for j, row in enumerate(matrix)])


def intransigence(matrix: Matrix, joint: Matrix) -> float:
    """Mean over j of A*[j,j] - A[j,j], A* that of joint training (Chaudhry et al., 2018): what was not learnt.

    >>> round(intransigence([[0.9, None], [0.8, 0.7]], [[0.9, None], [0.9, 0.9]]), 6)
    0.1
    """
    return learning_accuracy(joint) - learning_accuracy(matrix)


def forward_transfer(before: Sequence[float], untrained: Sequence[float]) -> float:
    """Mean over j > 1 of A[j-1,j] - b_j: accuracy just before a task is learnt, against an untrained model's."""
    return _mean(np.subtract(before[1:], untrained[1:]))


def prequential(before: Sequence[float]) -> float | None:
    """Mean accuracy on each task but the first just before it is learnt; None for a single task."""
    return _mean(before[1:]) if len(before) > 1 else None


def _array(matrix: Matrix) -> Float[np.ndarray, "t t"]:
    return np.array([[np.nan if a is None else a for a in row] for row in matrix])


def _mean(values: Any) -> float:
    return float(np.mean(values)) if len(values) else 0.0
