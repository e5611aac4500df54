"""What a learner knows: predictions, uncertainty, calibration, and what it kept of earlier tasks."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key, Shaped

from vcl.core import Examples, Learner, Params

BATCH = 1000
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


def predict(
    learner: Learner,
    key: Key[Array, ""],
    params: Params,
    inputs: Shaped[np.ndarray, "n d"],
    classes: Int[np.ndarray, "k"] | None = None,
) -> Prediction:
    """Monte-Carlo predictive probabilities, in batches so that memory stays bounded.

    Where `classes` are named, only these compete, and only they are in the answer, in this order.
    """
    parts = []
    for number, start in enumerate(range(0, len(inputs), BATCH)):
        batch = inputs[start : start + BATCH]
        # The last batch is filled up to the others' shape: one compiled program serves all.
        filled = np.pad(batch, ((0, min(BATCH, len(inputs)) - len(batch)), (0, 0)))
        outputs = _predict(learner, jax.random.fold_in(key, number), params, jnp.asarray(filled), classes)
        parts.append([np.asarray(a)[: len(batch)] for a in outputs])
    return Prediction(*(np.concatenate(column) for column in zip(*parts, strict=True)))


@functools.partial(jax.jit, static_argnames="learner")
def _predict(
    learner: Learner,
    key: Key[Array, ""],
    params: Params,
    inputs: Shaped[Array, "n d"],
    classes: Int[np.ndarray | Array, "k"] | None,
) -> tuple[Float[Array, "n k"], Float[Array, "n"], Float[Array, "n"]]:
    draws = learner.predict(key, params, inputs)
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
    )


def evaluate(learner: Learner, key: Key[Array, ""], params: Params, examples: Examples) -> Scores:
    return score(predict(learner, key, params, examples.inputs), examples.labels)


def expected_calibration_error(
    probabilities: Float[np.ndarray, "n c"], labels: Int[np.ndarray, "n"], bins: int = BINS
) -> float:
    """Σ_b (n_b / n) · |accuracy_b - confidence_b| over equal bins of confidence (Guo et al., 2017)."""
    confidence = probabilities.max(axis=1)
    correct = probabilities.argmax(axis=1) == labels
    which = np.minimum((confidence * bins).astype(int), bins - 1)
    gaps = np.bincount(which, weights=correct - confidence, minlength=bins)
    return float(np.abs(gaps).sum() / len(labels))


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


def forward_transfer(before: Sequence[float], untrained: Sequence[float]) -> float:
    """Mean over j > 1 of A[j-1,j] - b_j: accuracy just before a task is learnt, against an untrained model's."""
    return _mean(np.subtract(before[1:], untrained[1:]))


def _array(matrix: Matrix) -> Float[np.ndarray, "t t"]:
    return np.array([[np.nan if a is None else a for a in row] for row in matrix])


def _mean(values: Any) -> float:
    return float(np.mean(values)) if len(values) else 0.0
