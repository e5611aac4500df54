"""Fine-tuning: every task is learnt from where the last one left off, with no defence against forgetting.

The reference that shows how much there is to forget. Each task minimises its own -Σ_n log p(y_n | x_n, θ).
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from jaxtyping import Array, Float, Key

from vcl.core import Fit, StreamSpec, Task
from vcl.methods.point import PointLearner, PointState, negative_log_likelihood, recipes
from vcl.networks import MLP, random, replace_head, select_head
from vcl.training import Adam, Batch, Data


@dataclass(frozen=True)
class Finetune(PointLearner):
    """Fine-tuning: no defence against forgetting (the lower reference)."""

    recipes: ClassVar[dict[str, dict[str, dict[str, Any]]]] = recipes(split={}, permuted={})

    def init(self, key: Key[Array, ""], spec: StreamSpec) -> PointState:
        return PointState(random(key, self.hidden, spec))

    def observe(self, key: Key[Array, ""], state: PointState, task: Task, data: Data, fit: Fit) -> PointState:
        start = select_head(state.network, task.head)
        step = Adam(self.loss, self.learning_rate, self.schedule)
        network = fit(key, "train", step, start, None, data, epochs=self.epochs, batch_size=self.batch_size)
        return PointState(replace_head(state.network, task.head, network))

    def readout(self, key: Key[Array, ""], state: PointState, task: Task, fit: Fit) -> MLP:
        return select_head(state.network, task.head)

    def loss(self, key: Key[Array, ""], network: MLP, args: None, batch: Batch) -> Float[Array, ""]:
        return negative_log_likelihood(network, batch)
