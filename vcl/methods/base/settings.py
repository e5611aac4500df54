"""Settings that every learner has, and checks of what users ask for."""

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import UnionType
from typing import Annotated, Any, ClassVar, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np
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


def family_settings(
    split: dict[str, Any],
    permuted: dict[str, Any],
    split_mnist: dict[str, Any] | None = None,
    permuted_mnist: dict[str, Any] | None = None,
) -> dict[str, dict[str, Any]]:
    """One recipe: settings for both families, on data sets large and small, and others where they were searched."""
    return {
        "split": {**SPLIT, **split},
        "permuted": {**PERMUTED, **permuted},
        "split-digits": {**split, **SPLIT_DIGITS},
        "permuted-digits": {**permuted, **PERMUTED_DIGITS},
        **({"split-mnist": {**SPLIT, **split, **split_mnist}} if split_mnist else {}),
        **({"permuted-mnist": {**PERMUTED, **permuted, **permuted_mnist}} if permuted_mnist else {}),
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
        kinds: dict[str, Any] = annotated(type(self))  # type: ignore[arg-type]
        for name, kind in kinds.items():
            object.__setattr__(self, name, of_kind(name, getattr(self, name), kind))
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


@functools.cache
def annotated(learner: type) -> dict[str, Any]:
    """The types of a learner's settings, by name."""
    hints = get_type_hints(learner, include_extras=True)
    return {name: get_args(hint)[0] for name, hint in hints.items() if get_origin(hint) is Annotated}


def of_kind(name: str, value: Any, kind: Any) -> Any:
    """A setting, if it is of its type: half an epoch would be rounded in silence."""
    kinds = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, int) and abs(value) >= 2**63:
        raise VclError(f"--{name.replace('_', '-')} must fit into 64 bits, but it has {value.bit_length()}.")
    for one in kinds:
        if get_origin(one) is tuple and isinstance(value, list | tuple | np.ndarray):
            return tuple(of_kind(name, part, get_args(one)[0]) for part in value)
        if get_origin(one) is Literal and isinstance(value, str) and value in get_args(one):
            return value
        wanted = (int, float) if one is float else one
        # A truth value is a number for Python, but hardly meant as one.
        if isinstance(one, type) and isinstance(value, wanted) and (one is bool or not isinstance(value, bool)):
            return value
    choices = [repr(choice) for one in kinds if get_origin(one) is Literal for choice in get_args(one)]
    named = " or ".join(choices) or {int: "a whole number", float: "a number"}.get(kind, f"of type {kind}")
    raise VclError(f"--{name.replace('_', '-')} must be {named}, but it is {value!r}.")


def check_positive(learner: object, *names: str) -> None:
    check_numbers(learner, names, lambda value: value > 0, "must be above 0 and finite")


def check_not_negative(learner: object, *names: str) -> None:
    check_numbers(learner, names, lambda value: value >= 0, "must not be negative, and must be finite")


def check_fraction(learner: object, *names: str) -> None:
    check_numbers(learner, names, lambda value: 0 <= value <= 1, "must be between 0 and 1")


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
