"""What learners have in common that correct each gradient by examples kept of the other tasks."""

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
from vcl.methods.point import PointLearner, check_not_negative, negative_log_likelihood
from vcl.networks import MLP, random, select_head
from vcl.training import OPTIMIZERS, Batch, Data, descend, learning_rate


class EpisodicState(eqx.Module):
    network: MLP
    memory: Memory
    heads: Int[Array, "tasks"]
    """The head of each task."""


class Episode(eqx.Module):
    """What a task's gradients are made of, besides its data."""

    head: Int[Array, ""]
    others: Memory
    """What is kept of the other tasks: nothing is filled for the one that is being learnt."""
    heads: Int[Array, "tasks"]


def unchanged(key: Key[Array, ""], network: MLP, gradient: MLP, episode: Episode) -> MLP:
    return gradient


@dataclass(frozen=True)
class Corrected:
    """Descent on `loss(network, args, batch)` along `correct(key, network, gradient, args)`."""

    loss: Callable[[MLP, PyTree, Batch], Float[Array, ""]]
    correct: Callable[[Key[Array, ""], MLP, MLP, PyTree], MLP]
    optimizer: str
    rate: float
    schedule: str

    def init(self, params: PyTree) -> PyTree:
        return params, OPTIMIZERS[self.optimizer].init(params)

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
    """Settings, memory and training; `correct` is what a method adds."""

    learning_rate: Annotated[float, "the optimiser's step size at the start of each task"] = 0.1
    memory: Annotated[int, "examples kept of each task (0: fine-tuning)"] = 256
    optimizer: Annotated[Literal["sgd", "adam"], "what makes a step of the corrected gradient"] = "sgd"

    def __post_init__(self) -> None:
        PointLearner.__post_init__(self)
        check_not_negative(self, "memory")

    def init(self, key: Key[Array, ""], spec: StreamSpec) -> EpisodicState:
        network = random(key, self.hidden, spec)
        return EpisodicState(network, memory.empty(spec, self.memory), jnp.asarray(spec.heads, jnp.int32))

    def observe(self, key: Key[Array, ""], state: EpisodicState, task: Task, data: Data, fit: Fit) -> EpisodicState:
        episode = Episode(jnp.int32(task.head), memory.without(state.memory, task.index), state.heads)
        correct = self.correct if self.memory else unchanged
        step = Corrected(self.loss, correct, self.optimizer, self.learning_rate, self.schedule)
        # All heads take part: the memories of other tasks are answered by theirs.
        network = fit(
            key, "train", step, state.network, episode, data, epochs=self.epochs, batch_size=self.batch_size
        )
        wanted = min(memory.room(state.memory, task.index), int(data.size))
        rows = memory.random(jax.random.fold_in(key, 1), data, wanted)
        return EpisodicState(network, memory.add(state.memory, task.index, data, rows), state.heads)

    def readout(self, key: Key[Array, ""], state: EpisodicState, task: Task, fit: Fit) -> MLP:
        return select_head(state.network, task.head)

    def footprint(self, state: Any) -> Footprint:
        return Footprint(size(state.network), int(state.memory.filled.sum()))

    def loss(self, network: MLP, episode: Episode, batch: Batch) -> Float[Array, ""]:
        return negative_log_likelihood(select_head(network, episode.head), batch)

    @abc.abstractmethod
    def correct(self, key: Key[Array, ""], network: MLP, gradient: MLP, episode: Episode) -> MLP:
        """The direction to go in place of `gradient`."""
