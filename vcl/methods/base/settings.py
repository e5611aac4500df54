"""Settings that every learner has, and checks of what users ask for."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from jaxtyping import Array, Key

from vcl.core import State, StreamSpec, check_growth, overlay
from vcl.errors import VclError
from vcl.nets import MLP, ConvNet, Network

SPLIT = {"hidden": (200,), "epochs": 10, "batch_size": 256}
PERMUTED = {"hidden": (100, 100), "epochs": 10, "batch_size": 256}
SPLIT_DIGITS = {"hidden": (50,), "epochs": 30, "batch_size": 32}
PERMUTED_DIGITS = {"hidden": (100, 100), "epochs": 30, "batch_size": 32}

Recipes = dict[str, dict[str, dict[str, Any]]]
"""Settings by recipe and by family of benchmarks (or single benchmark): `recipes["fast"]["split"]`."""


def family_settings(split: dict[str, Any], permuted: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """One recipe: settings for both families, on data sets large and small."""
    return {
        "split": {**SPLIT, **split},
        "permuted": {**PERMUTED, **permuted},
        "split-digits": {**split, **SPLIT_DIGITS},
        "permuted-digits": {**permuted, **PERMUTED_DIGITS},
    }


@dataclass(frozen=True)
class Settings:
    """Settings of every learner that trains by minibatches, and how its state grows."""

    hidden: Annotated[tuple[int, ...], "units in each dense hidden layer"] = (200,)
    network: Annotated[
        Literal["mlp", "conv"] | Network,
        "dense layers, or convolutions of --channels below them (in Python, any Network)",
    ] = "mlp"
    channels: Annotated[tuple[int, ...], "channels of each convolution of --network conv"] = (16, 32)
    epochs: Annotated[int, "passes over each task's data"] = 10
    batch_size: Annotated[int, "examples in a minibatch"] = 256
    learning_rate: Annotated[float, "the optimiser's step size at the start of each task"] = 0.001
    schedule: Annotated[Literal["constant", "cosine", "plateau"], "learning-rate schedule within a task"] = (
        "constant"
    )

    needs_task_id: ClassVar[bool] = False
    joint: ClassVar[bool] = False
    dense_only: ClassVar[str] = ""
    """Why the method is defined for dense layers only; empty where it is defined for all networks."""

    def __post_init__(self) -> None:
        for name in ("hidden", "channels"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        check_widths(self, "hidden")
        check_widths(self, "channels")
        check_positive(self, "epochs", "batch_size", "learning_rate")
        if self.dense_only and not self.architecture.is_dense:
            raise VclError(f"{self.dense_only} Use --network mlp.")

    @property
    def architecture(self) -> Network:
        """The network without its weights."""
        if isinstance(self.network, Network):
            return self.network
        return MLP(self.hidden) if self.network == "mlp" else ConvNet(self.channels, self.hidden)

    def init(self, key: Key[Array, ""], spec: StreamSpec) -> State:
        raise NotImplementedError(f"{type(self).__name__} has no init.")

    def grow(self, key: Key[Array, ""], state: State, old: StreamSpec, new: StreamSpec) -> State:
        """What was learnt, in the leading corner of a new state."""
        check_growth(old, new)
        return overlay(state, self.init(key, new))


def check_positive(learner: object, *names: str) -> None:
    check_numbers(learner, names, lambda value: value > 0, "must be above 0 and finite")


def check_not_negative(learner: object, *names: str) -> None:
    check_numbers(learner, names, lambda value: value >= 0, "must not be negative, and must be finite")


def check_numbers(learner: object, names: Sequence[str], good: Callable[[float], bool], wanted: str) -> None:
    for name in names:
        value = getattr(learner, name)
        if not (math.isfinite(value) and good(value)):
            raise VclError(f"--{name.replace('_', '-')} {wanted}, but it is {value}.")


def check_widths(learner: object, name: str) -> None:
    widths = getattr(learner, name)
    if not widths or min(widths) < 1:
        flag = name.replace("_", "-")
        raise VclError(f"--{flag} needs at least one layer of at least one unit, but it is {widths}.")
