"""Progress & Compress (Schwarz et al., 2018): learn a task beside what is known, then distil it into what is known.

A knowledge base answers for all tasks; an active column of the same sizes learns each new one. *Progress* fits the
column to the task, -(1/N) Σ_n log p(y_n | x_n), beside the frozen base, whose hidden layers feed it,

    h_i = relu(W_i h_{i-1} + U_i h^base_{i-1} + b_i),    logits = W h_L + U h^base_L + b,

(plain linear laterals; the first layer sees the input alone, and during the first task the base has nothing to give:
its layers count as zero). *Compress* then minimises over the base's weights θ, on the same inputs,

    (1/N) Σ_n KL(p_active(y | x_n) ‖ p_θ(y | x_n)) + (λ/2) Σ_i γ F*_i (θ_i - θ*_i)²,

from θ*, where the last task left them. Then F* = γ F* + F_t: online EWC, with the Fisher information F_t of the new
base. The column is thrown away or goes on to the next task; it never answers, so it counts as no parameter.
"""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Key

from vcl.core import Fit, StreamSpec, Task
from vcl.curvature import diagonal_fisher, inputs_of_layers
from vcl.errors import VclError
from vcl.methods.penalty import quadratic
from vcl.methods.point import PointLearner, check_not_negative, recipes
from vcl.networks import MLP, Dense, cross_entropy, logits, pixels, random, random_like, replace_head, select_head
from vcl.training import Adam, Batch, Data, masked_mean


class ProgressCompressState(eqx.Module):
    network: MLP
    """θ: the knowledge base."""
    active: MLP
    """The active column; [W; U] is one weight matrix, which takes [h, h^base]."""
    precision: MLP
    """F*: how much each weight of the base matters to the tasks so far."""
    learnt: Bool[Array, ""]
    """Whether the base has learnt anything yet."""


@dataclass(frozen=True)
class ProgressCompress(PointLearner):
    """Progress & Compress: a column learns beside a knowledge base and is distilled into it under online EWC."""

    strength: Annotated[float, "λ, the weight of the penalty while compressing (0: plain distillation)"] = 1000.0
    decay: Annotated[float, "γ, what is kept of the old Fisher information"] = 1.0
    column: Annotated[
        Literal["fresh", "continued"], "start the active column at random for each task, or where the last ended"
    ] = "fresh"
    compress_epochs: Annotated[int, "passes over the data while compressing (0: as many as epochs)"] = 0

    recipes: ClassVar[dict[str, dict[str, dict[str, Any]]]] = recipes(
        split={"strength": 1000.0, "schedule": "cosine"},
        permuted={"strength": 30.0, "epochs": 5, "learning_rate": 0.003, "schedule": "cosine"},
    )

    def __post_init__(self) -> None:
        PointLearner.__post_init__(self)
        check_not_negative(self, "strength", "compress_epochs")
        if not 0 <= self.decay <= 1:
            raise VclError(f"--decay must be between 0 and 1, but it is {self.decay}.")

    def init(self, key: Key[Array, ""], spec: StreamSpec) -> ProgressCompressState:
        network = random(key, self.hidden, spec)
        active = random_like(jax.random.fold_in(key, 1), beside(network))
        return ProgressCompressState(network, active, jax.tree.map(jnp.zeros_like, network), jnp.array(False))

    def observe(
        self, key: Key[Array, ""], state: ProgressCompressState, task: Task, data: Data, fit: Fit
    ) -> ProgressCompressState:
        base, column, precision = select_head((state.network, state.active, state.precision), task.head)
        if self.column == "fresh":
            column = random_like(jax.random.fold_in(key, 1), column)
        active = fit(
            key,
            "progress",
            Adam(self.progress_loss, self.learning_rate, self.schedule),
            column,
            (base, state.learnt),
            data,
            epochs=self.epochs,
            batch_size=self.batch_size,
        )
        network = fit(
            jax.random.fold_in(key, 2),
            "compress",
            Adam(self.compress_loss, self.learning_rate, self.schedule),
            base,
            (active, state.learnt, precision, base),
            data,
            epochs=self.compress_epochs or self.epochs,
            batch_size=self.batch_size,
        )
        fisher = diagonal_fisher(jax.random.fold_in(key, 3), network, data)
        precision = jax.tree.map(lambda p, f: self.decay * p + f, precision, fisher)
        return ProgressCompressState(
            replace_head(state.network, task.head, network),
            replace_head(state.active, task.head, active),
            replace_head(state.precision, task.head, precision),
            jnp.array(True),
        )

    def readout(self, key: Key[Array, ""], state: ProgressCompressState, task: Task, fit: Fit) -> MLP:
        return select_head(state.network, task.head)

    def progress_loss(
        self, key: Key[Array, ""], active: MLP, args: tuple[MLP, Bool[Array, ""]], batch: Batch
    ) -> Float[Array, ""]:
        outputs = active_logits(active, *args, pixels(batch.inputs))
        return masked_mean(cross_entropy(outputs, batch.labels), batch.mask)

    def compress_loss(
        self, key: Key[Array, ""], network: MLP, args: tuple[MLP, Bool[Array, ""], MLP, MLP], batch: Batch
    ) -> Float[Array, ""]:
        """KL(active ‖ base) / N + (λ/2) Σ_i γ F*_i (θ_i - θ*_i)²."""
        active, learnt, precision, anchor = args
        inputs = pixels(batch.inputs)
        divergence = kl_of_classes(active_logits(active, anchor, learnt, inputs), logits(network, inputs))
        penalty = 0.5 * self.strength * self.decay * quadratic(network, precision, anchor)
        return masked_mean(divergence, batch.mask) + penalty


def beside(base: MLP) -> MLP:
    """The shapes of an active column: each layer but the first takes what the base's layer takes as well."""

    def twice(layer: Dense) -> Dense:
        return Dense(jnp.concatenate([layer.weight, layer.weight], axis=-2), layer.bias)

    first, *others = base.body
    return MLP((first, *map(twice, others)), twice(base.head))


def active_logits(
    active: MLP, base: MLP, learnt: Bool[Array, ""], inputs: Float[Array, "n d"]
) -> Float[Array, "n c"]:
    """The active column, fed by the hidden layers of the base once that has learnt something."""
    (_, *hidden_of_base), _ = inputs_of_layers(base, inputs)
    h = inputs
    for layer, lateral in zip(active.body, hidden_of_base, strict=True):
        h = jax.nn.relu(h @ layer.weight + layer.bias)
        h = jnp.concatenate([h, learnt * lateral], axis=1)
    return h @ active.head.weight + active.head.bias


def kl_of_classes(teacher: Float[Array, "n c"], student: Float[Array, "n c"]) -> Float[Array, "n"]:
    """KL(p ‖ q) = Σ_y p(y) [log p(y) - log q(y)] for each example, from logits."""
    log_p, log_q = jax.nn.log_softmax(teacher), jax.nn.log_softmax(student)
    return jnp.sum(jnp.exp(log_p) * (log_p - log_q), axis=-1)
