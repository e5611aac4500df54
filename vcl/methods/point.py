"""What learners of a single network, one number for each weight, have in common."""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import equinox as eqx
import jax
from jaxtyping import Array, Float, Key, Shaped

from vcl.core import Footprint, size
from vcl.errors import VclError
from vcl.networks import MLP, cross_entropy, logits, pixels
from vcl.training import Batch, masked_mean

SPLIT = {"hidden": (200,), "epochs": 10, "batch_size": 256}
PERMUTED = {"hidden": (100, 100), "epochs": 10, "batch_size": 256}
SPLIT_DIGITS = {"hidden": (50,), "epochs": 30, "batch_size": 32}
PERMUTED_DIGITS = {"hidden": (100, 100), "epochs": 30, "batch_size": 32}


def recipes(split: dict[str, Any], permuted: dict[str, Any]) -> dict[str, dict[str, dict[str, Any]]]:
    """The one recipe of a method: its settings for both families, on data sets large and small."""
    return {
        "fast": {
            "split": {**SPLIT, **split},
            "permuted": {**PERMUTED, **permuted},
            "split-digits": {**split, **SPLIT_DIGITS},
            "permuted-digits": {**permuted, **PERMUTED_DIGITS},
        }
    }


class PointState(eqx.Module):
    network: MLP


@dataclass(frozen=True)
class Settings:
    """What every learner that trains by minibatches can be told."""

    hidden: Annotated[tuple[int, ...], "units in each hidden layer"] = (200,)
    epochs: Annotated[int, "passes over each task's data"] = 10
    batch_size: Annotated[int, "examples in a minibatch"] = 256
    learning_rate: Annotated[float, "the optimiser's step size at the start of each task"] = 0.001
    schedule: Annotated[Literal["constant", "cosine", "plateau"], "how the learning rate goes on"] = "constant"

    told_the_task: ClassVar[bool] = False
    joint: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_hidden(self.hidden)
        check_positive(self, "epochs", "batch_size", "learning_rate")


@dataclass(frozen=True)
class PointLearner(Settings):
    """Settings and prediction of a learner whose `readout` is an MLP."""

    def predict(self, key: Key[Array, ""], params: MLP, inputs: Shaped[Array, "n d"]) -> Float[Array, "1 n c"]:
        """log p(y | x, θ): one draw, since one θ is all that is believed."""
        return jax.nn.log_softmax(logits(params, pixels(inputs)))[None]

    def footprint(self, state: Any) -> Footprint:
        return Footprint(parameters=size(state.network))


def negative_log_likelihood(network: MLP, batch: Batch) -> Float[Array, ""]:
    """-Σ_n log p(y_n | x_n, θ) / N, estimated on a minibatch."""
    outputs = logits(network, pixels(batch.inputs))
    return masked_mean(cross_entropy(outputs, batch.labels), batch.mask)


def check_positive(learner: object, *names: str) -> None:
    for name in names:
        if not getattr(learner, name) > 0:
            raise VclError(f"--{name.replace('_', '-')} must be above 0, but it is {getattr(learner, name)}.")


def check_not_negative(learner: object, *names: str) -> None:
    for name in names:
        if not getattr(learner, name) >= 0:
            raise VclError(f"--{name.replace('_', '-')} must not be negative, but it is {getattr(learner, name)}.")


def check_hidden(hidden: tuple[int, ...], flag: str = "hidden") -> None:
    if not hidden or min(hidden) < 1:
        raise VclError(f"--{flag} needs at least one layer of at least one unit, but it is {hidden}.")
