"""Progress & Compress (Schwarz et al., 2018): learn in an active column, then distil it into a knowledge base.

The knowledge base predicts for all tasks; an active column of the same widths learns each new one. *Progress* fits
the column to the task, -(1/N) Σ_n log p(y_n | x_n), with lateral connections from the frozen base,

    h_i = relu(W_i h_{i-1} + U_i h^base_{i-1} + b_i),    logits = W h_L + U h^base_L + b,

(linear laterals, where the paper has adapters of one hidden layer; the first layer sees the input alone, and during
the first task the base's layers count as zero). *Compress* then minimises over the base's weights θ, on the same
inputs,

    (1/N) Σ_n KL(p_active(y | x_n) ‖ p_θ(y | x_n)) + (λ/2) Σ_i γ F*_i (θ_i - θ*_i)²,

from θ*, where the last task left them. Then F* = γ F* + F_t: online EWC, with the Fisher information F_t of the new
base; the paper also normalises F_t, which is left out here. The column is initialised again or kept for the next
task; it never predicts, so it is not counted among the parameters.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Key

from vcl.core import Fit, StreamSpec, Task
from vcl.curvature import diagonal_fisher, inputs_of_layers
from vcl.errors import VclError
from vcl.methods.base.penalty import quadratic
from vcl.methods.base.point import PointLearner
from vcl.methods.base.settings import Recipes, check_not_negative, family_settings
from vcl.nets import (
    Affine,
    Weights,
    cross_entropy,
    forward,
    logits,
    pixels,
    point,
    random,
    random_like,
    replace_head,
    select_head,
)
from vcl.training import Adam, Batch, Data, masked_mean


class ProgressCompressState(eqx.Module):
    network: Weights
    """θ: the knowledge base."""
    active: Weights
    """The active column; [W; U] is one weight matrix, which takes [h, h^base]."""
    precision: Weights
    """F*: the importance of each weight of the base for the tasks so far."""
    learnt: Bool[Array, ""]
    """Whether the base has learnt anything yet."""


SEARCHED = family_settings(
    split={"strength": 1000.0, "schedule": "cosine"},
    permuted={"strength": 30.0, "epochs": 5, "learning_rate": 0.003, "schedule": "cosine"},
    split_mnist={"strength": 1300.0, "learning_rate": 0.0087},
    permuted_mnist={"strength": 8.1, "learning_rate": 0.0046},
)


@dataclass(frozen=True)
class ProgressCompress(PointLearner):
    """Progress & Compress: a column learns beside a knowledge base and is distilled into it under online EWC.

    Examples
    --------
    >>> ProgressCompress(strength=30.0).column
    'fresh'
    """

    strength: Annotated[float, "λ, the weight of the penalty while compressing (0: plain distillation)"] = 1000.0
    decay: Annotated[float, "γ, the factor on the old Fisher information after each task"] = 1.0
    column: Annotated[
        Literal["fresh", "continued"], "start the active column at random for each task, or where the last ended"
    ] = "fresh"
    compress_epochs: Annotated[int, "passes over the data while compressing (0: as many as epochs)"] = 0

    recipes: ClassVar[Recipes] = {
        "fast": SEARCHED,
        # The paper has no experiment with such networks, so these are from our search too.
        "published": SEARCHED,
    }

    dense_only: ClassVar[str] = (
        "The lateral connections of Progress & Compress are defined here for dense layers only."
    )

    def __post_init__(self) -> None:
        PointLearner.__post_init__(self)
        check_not_negative(self, "strength", "compress_epochs")
        if not 0 <= self.decay <= 1:
            raise VclError(f"--decay must be between 0 and 1, but it is {self.decay}.")

    def init(self, key: Key[Array, ""], spec: StreamSpec) -> ProgressCompressState:
        network = random(key, self.architecture, spec)
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

    def readout(self, key: Key[Array, ""], state: ProgressCompressState, task: Task, fit: Fit) -> Weights:
        return select_head(state.network, task.head)

    def progress_loss(
        self, key: Key[Array, ""], active: Weights, args: tuple[Weights, Bool[Array, ""]], batch: Batch
    ) -> Float[Array, ""]:
        outputs = active_logits(active, *args, pixels(batch.inputs))
        return masked_mean(cross_entropy(outputs, batch.labels), batch.mask)

    def compress_loss(
        self,
        key: Key[Array, ""],
        network: Weights,
        args: tuple[Weights, Bool[Array, ""], Weights, Weights],
        batch: Batch,
    ) -> Float[Array, ""]:
        """KL(active ‖ base) / N + (λ/2) Σ_i γ F*_i (θ_i - θ*_i)²."""
        active, learnt, precision, anchor = args
        inputs = pixels(batch.inputs)
        divergence = kl_of_classes(active_logits(active, anchor, learnt, inputs), logits(network, inputs))
        penalty = 0.5 * self.strength * self.decay * quadratic(network, precision, anchor)
        return masked_mean(divergence, batch.mask) + penalty


def beside(base: Weights) -> Weights:
    """The shapes of an active column: each layer but the first takes what the base's layer takes as well."""

    def twice(layer: Affine) -> Affine:
        return Affine(jnp.concatenate([layer.weight, layer.weight], axis=-2), layer.bias)

    first, *others = base.body
    return base.with_layers([first, *map(twice, others), twice(base.head)])


def active_logits(
    active: Weights, base: Weights, learnt: Bool[Array, ""], inputs: Float[Array, "n d"]
) -> Float[Array, "n c"]:
    """The active column, fed by the hidden layers of the base once that has learnt something."""
    inputs_of_base, _ = inputs_of_layers(base, inputs)

    def affine(number: int, layer: Affine, h: Float[Array, "n i"]) -> Float[Array, "n o"]:
        if number:
            h = jnp.concatenate([h, learnt * inputs_of_base[number]], axis=1)
        return point(number, layer, h)

    return forward(active, active.layers, inputs, affine)


def kl_of_classes(teacher: Float[Array, "n c"], student: Float[Array, "n c"]) -> Float[Array, "n"]:
    """KL(p ‖ q) = Σ_y p(y) [log p(y) - log q(y)] for each example, from logits."""
    log_p, log_q = jax.nn.log_softmax(teacher), jax.nn.log_softmax(student)
    return jnp.sum(jnp.exp(log_p) * (log_p - log_q), axis=-1)
