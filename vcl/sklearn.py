"""Estimators for scikit-learn: continual learning by `partial_fit`, in pipelines and searches like any other."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from numbers import Integral
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np
from jaxtyping import Float
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from vcl.errors import VclError
from vcl.evaluation import Uncertainty
from vcl.inputs import spread
from vcl.methods import default_method
from vcl.model import Model
from vcl.regression import RegressionModel

Same = TypeVar("Same", bound="ContinualEstimator")


class ContinualEstimator(BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """What both estimators share: settings, scaling of the inputs, and keeping the model."""

    model_class: ClassVar[type[Model]]

    @staticmethod
    def _default_method(features: int) -> str:
        return default_method(features)

    def __init__(
        self,
        method: Any = None,
        *,
        hidden: Any = (100,),
        epochs: Any = 100,
        batch_size: Any = 64,
        learning_rate: Any = 0.01,
        scale: Any = True,
        shared_head: Any = True,
        settings: Any = None,
        random_state: Any = 0,
    ) -> None:
        # By scikit-learn's convention anything may be set; `fit` refuses what makes no sense.
        self.method = method
        self.hidden = hidden
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.scale = scale
        self.shared_head = shared_head
        self.settings = settings
        self.random_state = random_state

    def _begin(self, inputs: int) -> Model:
        """A model that has not learnt anything yet."""
        seed = self.random_state
        if not isinstance(seed, Integral):
            seed = check_random_state(seed).randint(2**31 - 1)
        named = {"hidden", "epochs", "batch_size", "learning_rate"}
        given = plain(self.get_params(deep=False))
        settings = {} if given["settings"] is None else given["settings"]
        if not isinstance(settings, Mapping) or not all(isinstance(name, str) for name in settings):
            raise VclError(f"settings is {settings!r:.80}, but must be a dict such as {{'prior_std': 0.3}}.")
        if twice := named & settings.keys():
            raise VclError(f"Give {' and '.join(sorted(twice))} as a parameter of its own, not in settings.")
        return self.model_class(
            self._default_method(inputs) if self.method is None else self.method,
            seed=int(seed),
            shared_head=given["shared_head"],
            hidden=tuple(given["hidden"]) if isinstance(given["hidden"], Iterable) else given["hidden"],
            epochs=given["epochs"],
            batch_size=given["batch_size"],
            learning_rate=given["learning_rate"],
            **settings,
        )

    @contextmanager
    def _all_or_nothing(self) -> Iterator[None]:
        """After an error, or Ctrl-C, all attributes are as they were before."""
        before = dict(vars(self))
        try:
            yield
        except BaseException:
            self.__dict__ = before
            raise

    def _learn(self, x: np.ndarray, y: Any, task: Any, *, afresh: bool) -> None:
        if afresh:
            self.model_ = self._begin(x.shape[1])
            self.model_.notes_["inputs"] = {
                "mean": (x.mean(axis=0) if self.scale else np.zeros(x.shape[1])).tolist(),
                "std": (spread(x) if self.scale else np.ones(x.shape[1])).tolist(),
            }
        self.model_.learn(self._scaled(x), y, task)

    def _scaled(self, x: np.ndarray) -> np.ndarray:
        """Inputs by the mean and the standard deviation of the first batch."""
        known = self.model_.notes_["inputs"]
        return (x - np.array(known["mean"])) / np.array(known["std"])

    def _inputs(self, X: Any) -> np.ndarray:
        check_is_fitted(self)
        return self._scaled(validate_data(self, X, reset=False, dtype=np.float64))

    @property
    def n_iter_(self) -> int:
        """Passes over the data of the last batch."""
        return int(self.epochs)

    def save(self, path: str | Path) -> None:
        """Write the estimator to one file, without pickle. Loading it runs no code."""
        check_is_fitted(self)
        model = self.model_
        model.notes_["estimator"] = {
            "parameters": {
                name: plain(value) for name, value in self.get_params().items() if name != "random_state"
            },
            "n_features_in_": self.n_features_in_,
            "feature_names_in_": getattr(self, "feature_names_in_", np.array([])).tolist(),
            **self._labels_to_keep(),
        }
        model.save(path)

    @classmethod
    def load(cls: type[Same], path: str | Path) -> Same:
        """Read an estimator that `save` wrote; `partial_fit` continues exactly where it was."""
        model = cls.model_class.load(path)
        kept = model.notes_.get("estimator")
        if kept is None:
            raise VclError(f"{path} holds a model, but not one that {cls.__name__}.save wrote. Use vcl.Model.load.")
        parameters = {**kept["parameters"], "hidden": tuple(kept["parameters"]["hidden"])}
        estimator = cls(**parameters, random_state=model.seed)
        estimator.model_ = model
        estimator.n_features_in_ = kept["n_features_in_"]
        if kept["feature_names_in_"]:
            estimator.feature_names_in_ = np.array(kept["feature_names_in_"], object)
        estimator._restore_labels(kept)
        return estimator

    def _labels_to_keep(self) -> dict[str, Any]:
        return {}

    def _restore_labels(self, kept: dict[str, Any]) -> None: ...


def plain(value: Any) -> Any:
    """Parameters with NumPy's numbers and arrays as Python's, which JSON can hold.

    >>> plain({"hidden": np.array([4]), "epochs": np.int64(2)})
    {'hidden': [4], 'epochs': 2}
    """
    if isinstance(value, Mapping):
        return {name: plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return tuple(plain(part) for part in value)
    return value.tolist() if isinstance(value, np.generic | np.ndarray) else value


class VCLClassifier(ClassifierMixin, ContinualEstimator):  # type: ignore[misc]
    """A Bayesian neural network that learns batch after batch without keeping old data.

    Parameters
    ----------
    method : str, default=None
        Any method that `vcl methods` lists; by default `kronecker-vcl-recall`, which did best on Covertype, or
        `vcl` for more than 2,000 features.
    hidden : tuple of int, default=(100,)
        Units in each hidden layer.
    epochs, batch_size, learning_rate
        How each batch of data is learnt.
    scale : bool, default=True
        Whether to standardise features by the mean and standard deviation of the first batch.
    shared_head : bool, default=True
        Whether one output layer answers for all tasks. If not, tasks must be named to predict.
    settings : dict, default=None
        Further settings of the method, such as `{"prior_std": 0.3}`.
    random_state : int, RandomState or None, default=0
        The one source of randomness.

    Attributes
    ----------
    classes_ : array
        The classes, sorted; more may come with a later `partial_fit`.
    model_ : vcl.Model
        The model, which numbers classes in the order in which they came.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from vcl import VCLClassifier
    >>> x, y = load_iris(return_X_y=True)
    >>> first, later = slice(0, None, 2), slice(1, None, 2)
    >>> model = VCLClassifier(hidden=(20,)).partial_fit(x[first], y[first])
    >>> model.partial_fit(x[later], y[later]).score(x, y) > 0.9
    True
    """

    model_class: ClassVar[type[Model]] = Model
    classes_: np.ndarray

    def fit(self, X: Any, y: Any) -> "VCLClassifier":
        """Learn from these examples alone, whatever was learnt before."""
        with self._all_or_nothing():
            return self._observe(X, y, None, None, afresh=True)

    def partial_fit(self, X: Any, y: Any, classes: Any = None, task: Any = None) -> "VCLClassifier":
        """Learn from one more batch.

        Parameters
        ----------
        X : array of shape (examples, features)
        y : array of shape (examples,)
            New classes are welcome in any batch.
        classes : array, default=None
            Classes to announce before they come: columns of `predict_proba`, 0 until they do.
        task : hashable, default=None
            The task's name; needed where each task has an output layer of its own.
        """
        with self._all_or_nothing():
            return self._observe(X, y, classes, task, afresh=not hasattr(self, "model_"))

    def _observe(self, X: Any, y: Any, classes: Any, task: Any, *, afresh: bool) -> "VCLClassifier":
        X, y = validate_data(self, X, y, reset=afresh, dtype=np.float64)
        check_classification_targets(y)
        announced = [np.asarray(classes)] if classes is not None else []
        known = [] if afresh else [self.classes_]
        if len({isinstance(label, str) for part in (*known, *announced, y) for label in part.tolist()}) > 1:
            raise ValueError(
                f"Some classes are text, others numbers: {[part[:3].tolist() for part in (*known, *announced, y)]}. "
                "They cannot be sorted together. Give all of them as text, or all as numbers, in every batch."
            )
        wanted = np.unique(np.concatenate([*known, *announced, y]))
        if announced and (unknown := set(y.tolist()) - set(np.concatenate([*known, *announced]).tolist())):
            raise ValueError(f"y has classes that `classes` does not: {sorted(unknown)}. Announce them too.")
        self._learn(X, y, task, afresh=afresh)
        self.classes_ = wanted
        return self

    def predict_proba(self, X: Any, task: Any = None) -> Float[np.ndarray, "n c"]:
        """Probabilities of the classes, in the order of `classes_`."""
        inputs = self._inputs(X)
        prediction = self.model_.prediction(inputs, task, common_noise=True)
        probabilities = np.zeros((len(prediction.log_probs), len(self.classes_)))
        probabilities[:, np.searchsorted(self.classes_, np.array(self.model_.classes_))] = prediction.probabilities
        return probabilities

    def predict(self, X: Any, task: Any = None) -> np.ndarray:
        """The most probable class of each example."""
        best = self.predict_proba(X, task).argmax(axis=1)
        return self.classes_[best]

    def predict_uncertainty(self, X: Any, task: Any = None) -> Uncertainty:
        """Total, aleatoric and epistemic entropy of each example, in nats."""
        inputs = self._inputs(X)
        found = self.model_.prediction(inputs, task, common_noise=True)
        return Uncertainty(found.total_entropy, found.aleatoric_entropy, found.epistemic_entropy)

    def _labels_to_keep(self) -> dict[str, Any]:
        return {"classes_": self.classes_.tolist()}

    def _restore_labels(self, kept: dict[str, Any]) -> None:
        self.classes_ = np.array(kept["classes_"])


class VCLRegressor(RegressorMixin, ContinualEstimator):  # type: ignore[misc]
    """A Bayesian neural network for numbers, with Gaussian noise that is learnt, batch after batch.

    Parameters are those of `VCLClassifier`; of the methods only `vcl`, the default here, has a regression form.

    Examples
    --------
    >>> import numpy as np
    >>> from vcl import VCLRegressor
    >>> x = np.linspace(-2, 2, 200)[:, None]
    >>> model = VCLRegressor(hidden=(30,)).fit(x, np.sin(x[:, 0]))
    >>> model.score(x, np.sin(x[:, 0])) > 0.9
    True
    >>> mean, std = model.predict(x, return_std=True)
    """

    model_class: ClassVar[type[Model]] = RegressionModel

    @staticmethod
    def _default_method(features: int) -> str:
        return "vcl"

    def fit(self, X: Any, y: Any) -> "VCLRegressor":
        """Learn from these examples alone, whatever was learnt before."""
        with self._all_or_nothing():
            return self._observe(X, y, None, afresh=True)

    def partial_fit(self, X: Any, y: Any, task: Any = None) -> "VCLRegressor":
        """Learn from one more batch."""
        with self._all_or_nothing():
            return self._observe(X, y, task, afresh=not hasattr(self, "model_"))

    def _observe(self, X: Any, y: Any, task: Any, *, afresh: bool) -> "VCLRegressor":
        X, y = validate_data(self, X, y, reset=afresh, dtype=np.float64, y_numeric=True)
        self._learn(X, y, task, afresh=afresh)
        return self

    def predict(
        self, X: Any, task: Any = None, return_std: bool = False
    ) -> np.ndarray | tuple[np.ndarray, np.ndarray]:
        """The mean of each example's predictive distribution; with `return_std` its standard deviation too."""
        inputs = self._inputs(X)
        mean = self.model_.predict(inputs, task)
        return (mean, self.model_.uncertainty(inputs, task).total) if return_std else mean

    def predict_uncertainty(self, X: Any, task: Any = None) -> Uncertainty:
        """Total, aleatoric and epistemic standard deviation of each example, in the unit of the target."""
        inputs = self._inputs(X)
        return self.model_.uncertainty(inputs, task)
