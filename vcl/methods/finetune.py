"""Fine-tuning: each task starts at the weights of the last one, without protection against forgetting.

The lower reference. Each task minimises its own -Σ_n log p(y_n | x_n, θ).
"""

from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Array, Float, Key

from vcl.core import Fit, StreamSpec, Task
from vcl.methods.base.point import PointLearner, PointState, negative_log_likelihood
from vcl.methods.base.settings import Recipes, family_settings
from vcl.nets import Weights, random, replace_head, select_head
from vcl.training import Adam, Batch, Data


@dataclass(frozen=True)
class Finetune(PointLearner):
    """Fine-tuning: no protection against forgetting (the lower reference).

    Examples
    --------
    >>> Finetune(hidden=(100, 100)).epochs
    10
    """

    recipes: ClassVar[Recipes] = {
        "fast": family_settings(
            split={},
            permuted={},
            split_mnist={"learning_rate": 0.00017},
            permuted_mnist={"learning_rate": 0.00075, "schedule": "cosine"},
        )
    }

    def init(self, key: Key[Array, ""], spec: StreamSpec) -> PointState:
        return PointState(random(key, self.architecture, spec))

    def observe(self, key: Key[Array, ""], state: PointState, task: Task, data: Data, fit: Fit) -> PointState:
        start = select_head(state.network, task.head)
        step = Adam(self.loss, self.learning_rate, self.schedule)
        network = fit(key, "train", step, start, None, data, epochs=self.epochs, batch_size=self.batch_size)
        return PointState(replace_head(state.network, task.head, network))

    def readout(self, key: Key[Array, ""], state: PointState, task: Task, fit: Fit) -> Weights:
        return select_head(state.network, task.head)

    def loss(self, key: Key[Array, ""], network: Weights, args: None, batch: Batch) -> Float[Array, ""]:
        return negative_log_likelihood(network, batch)
