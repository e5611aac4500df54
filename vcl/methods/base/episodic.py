"""Common to learners that correct each gradient by the memories of the other tasks."""

import abc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key, PyTree

from vcl import memory
from vcl.core import Fit, Footprint, StreamSpec, Task, size
from vcl.memory import Memory
from vcl.methods.base.point import PointLearner, negative_log_likelihood
from vcl.methods.base.settings import check_not_negative
from vcl.nets import Weights, random, select_head
from vcl.training import Batch, Data, by_value, descend, first_moments, learning_rate


class EpisodicState(eqx.Module):
    network: Weights
    memory: Memory
    heads: Int[Array, "tasks"]
    """The head of each task."""


class Episode(eqx.Module):
    """What the correction of a task's gradients depends on."""

    head: Int[Array, ""]
    others: Memory
    """The memories of the other tasks; that of the current task is empty."""
    heads: Int[Array, "tasks"]


def unchanged(key: Key[Array, ""], network: Weights, gradient: Weights, episode: Episode) -> Weights:
    return gradient


@dataclass(frozen=True)
class Corrected:
    """Descent on `loss(network, args, batch)` along `correct(key, network, gradient, args)`."""

    loss: Callable[[Weights, PyTree, Batch], Float[Array, ""]]
    correct: Callable[[Key[Array, ""], Weights, Weights, PyTree], Weights]
    optimizer: str
    rate: float
    schedule: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "loss", by_value(self.loss))
        object.__setattr__(self, "correct", by_value(self.correct))

    def init(self, params: PyTree) -> PyTree:
        return params, first_moments(self.optimizer, params)

    def params(self, carry: PyTree) -> PyTree:
        return carry[0]

    def __call__(
        self, key: Key[Array, ""], carry: PyTree, args: PyTree, batch: Batch, progress: Float[Array, ""]
    ) -> tuple[PyTree, Float[Array, ""]]:
        params, moments = carry
        objective, gradient = jax.value_and_grad(self.loss)(params, args, batch)
        gradient = self.correct(key, params, gradient, args)
        rate = self.rate * learning_rate(self.schedule, progress)
        return descend(self.optimizer, params, moments, gradient, rate), objective


@dataclass(frozen=True)
class EpisodicLearner(PointLearner, abc.ABC):
    """Settings, memory and training; a method defines `correct`."""

    learning_rate: Annotated[float, "the optimiser's step size at the start of each task"] = 0.1
    memory: Annotated[int, "examples kept of each task (0: fine-tuning)"] = 256
    optimizer: Annotated[Literal["sgd", "adam"], "the optimiser that follows the corrected gradient"] = "sgd"

    def __post_init__(self) -> None:
        PointLearner.__post_init__(self)
        check_not_negative(self, "memory")

    def init(self, key: Key[Array, ""], spec: StreamSpec) -> EpisodicState:
        network = random(key, self.architecture, spec)
        return EpisodicState(network, memory.empty(spec, self.memory), jnp.asarray(spec.heads, jnp.int32))

    def observe(self, key: Key[Array, ""], state: EpisodicState, task: Task, data: Data, fit: Fit) -> EpisodicState:
        episode = Episode(jnp.int32(task.head), memory.without(state.memory, task.index), state.heads)
        correct = self.correct if self.memory else unchanged
        step = Corrected(self.loss, correct, self.optimizer, self.learning_rate, self.schedule)
        # All heads are parameters: the memory of another task is classified by its own.
        network = fit(
            key, "train", step, state.network, episode, data, epochs=self.epochs, batch_size=self.batch_size
        )
        wanted = min(memory.room(state.memory, task.index), int(data.size))
        rows = memory.random(jax.random.fold_in(key, 1), data, wanted)
        return EpisodicState(network, memory.add(state.memory, task.index, data, rows), state.heads)

    def readout(self, key: Key[Array, ""], state: EpisodicState, task: Task, fit: Fit) -> Weights:
        return select_head(state.network, task.head)

    def footprint(self, state: Any) -> Footprint:
        return Footprint(size(state.network), int(state.memory.filled.sum()))

    def loss(self, network: Weights, episode: Episode, batch: Batch) -> Float[Array, ""]:
        return negative_log_likelihood(select_head(network, episode.head), batch)

    @abc.abstractmethod
    def correct(self, key: Key[Array, ""], network: Weights, gradient: Weights, episode: Episode) -> Weights:
        """The direction that replaces `gradient`."""
