"""A model of numbers instead of classes, which can be kept like `vcl.Model`."""

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Float

from vcl import evaluation, learning
from vcl.core import Learner
from vcl.errors import VclError
from vcl.evaluation import NormalPrediction, Uncertainty
from vcl.inputs import Label, Targets, check_as_many, spread
from vcl.methods import REGRESSION
from vcl.model import Model

MEAN_AND_LOG_VARIANCE = [0, 1]


class RegressionModel(Model):
    """`vcl.Model` for numbers: a Gaussian likelihood whose noise is learnt, and may depend on the inputs.

    Targets are standardised by the mean and the standard deviation of the first batch, which are kept.

    Examples
    --------
    >>> import numpy as np
    >>> from vcl.regression import RegressionModel
    >>> x = np.linspace(-1, 1, 200)[:, None]
    >>> model = RegressionModel("vcl", hidden=(20,), epochs=100, batch_size=32).learn(x, 100 + 5 * x[:, 0])
    >>> bool(abs(model.predict([[0.0]])[0] - 100) < 1)
    True
    """

    kind: ClassVar[str] = "vcl.RegressionModel"
    methods: ClassVar[Mapping[str, type[Learner]]] = REGRESSION

    def _targets(self, y: Any, head: int) -> Targets:
        values = as_numbers(y)
        if self._snapshot is None:
            self.notes_["target"] = {"mean": float(values.mean()), "std": float(spread(values))}
        heads = max(head + 1, len(self._head_classes))
        standard = (values - self._centre) / self._spread
        return Targets(standard.astype(np.float32), [], [MEAN_AND_LOG_VARIANCE] * heads, [])

    @property
    def _centre(self) -> float:
        return self.notes_["target"]["mean"]

    @property
    def _spread(self) -> float:
        return self.notes_["target"]["std"]

    def moments(self, x: Any, task: Label | None = None) -> NormalPrediction:
        """The mean of the predictive distribution, and its variance in two parts: noise, and lack of knowledge."""
        key, params = learning.predictor(self.snapshot, self.answering(task)[0])
        mean, aleatoric, epistemic = evaluation.predict_normal(self.learner, key, params, self._rows(x))
        spread = self._spread
        return NormalPrediction(self._centre + spread * mean, spread**2 * aleatoric, spread**2 * epistemic)

    def predict(self, x: Any, task: Label | None = None) -> Float[np.ndarray, "n"]:
        """The mean of each example's predictive distribution."""
        return self.moments(x, task).mean

    def uncertainty(self, x: Any, task: Label | None = None) -> Uncertainty:
        """Standard deviations of each example's predictive distribution, in the unit of the target.

        total² = aleatoric² + epistemic².
        """
        _, noise, doubt = self.moments(x, task)
        return Uncertainty(np.sqrt(noise + doubt), np.sqrt(noise), np.sqrt(doubt))

    def score(self, x: Any, y: Any, task: Label | None = None) -> float:
        """R²: the part of the variance of `y` that is explained."""
        values = as_numbers(y)
        predicted = self.predict(x, task)
        check_as_many(predicted, values)
        residual = np.sum((values - predicted) ** 2)
        return float(1.0 - residual / np.sum((values - values.mean()) ** 2))

    def predict_proba(self, x: Any, task: Label | None = None) -> Float[np.ndarray, "n c"]:
        raise VclError("A model of numbers has no probabilities of classes. Use moments(x) or uncertainty(x).")


def as_numbers(y: Any) -> Float[np.ndarray, "n"]:
    """Targets as numbers that can be averaged."""
    try:
        values = np.asarray(y, np.float64)
    except (TypeError, ValueError) as error:
        raise VclError(f"The targets are not all numbers ({error}).") from None
    with np.errstate(over="ignore", invalid="ignore"):
        if values.ndim != 1 or not len(values) or not (np.isfinite(values).all() and np.isfinite(values.std())):
            raise VclError(
                f"The targets have shape {values.shape}, but must be finite numbers of a usual size, one for each "
                "example."
            )
    return values
