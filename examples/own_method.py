"""A method of one's own in thirty lines: fine-tuning that is pulled back to the weights of the previous task.

    .venv/bin/python examples/own_method.py

It learns with the compiled loop, the checkpoints and the evaluation of all other methods. docs/adding-a-method.md
explains each line.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import jax
import jax.numpy as jnp

import vcl
from vcl.methods.base.point import PointLearner, PointState, negative_log_likelihood
from vcl.methods.base.settings import Recipes
from vcl.nets import random, replace_head, select_head
from vcl.training import Adam


@dataclass(frozen=True)
class PulledBack(PointLearner):
    """L2 towards the weights of the previous task."""

    strength: Annotated[float, "how strongly weights are pulled back"] = 0.1

    recipes: ClassVar[Recipes] = {}  # named settings; needed only for `vcl run --method`

    def init(self, key, spec):
        return PointState(random(key, self.architecture, spec))

    def observe(self, key, state, task, data, fit):
        start = select_head(state.network, task.head)
        first = jnp.float32(task.index == 0)  # nothing to be pulled back to yet
        step = Adam(self.loss, self.learning_rate, self.schedule)
        network = fit(
            key, "train", step, start, (start, first), data, epochs=self.epochs, batch_size=self.batch_size
        )
        return PointState(replace_head(state.network, task.head, network))

    def readout(self, key, state, task, fit):
        return select_head(state.network, task.head)

    def loss(self, key, network, held, batch):
        centre, first = held
        # Only the shared layers: each task's head is its own.
        squares = jax.tree.map(lambda a, b: jnp.sum((a - b) ** 2), network.body, centre.body)
        pull = self.strength * (1.0 - first) * sum(jax.tree.leaves(squares))
        return negative_log_likelihood(network, batch) + pull


stream = vcl.build("split-digits", vcl.StreamOptions(), seed=0)
for strength in (0.0, 0.1):
    learner = PulledBack(hidden=(50,), epochs=30, batch_size=32, learning_rate=0.01, strength=strength)
    result = vcl.learn(learner, stream)
    print(f"strength {strength}: accuracy {result['average_accuracy']:.3f}, forgetting {result['forgetting']:.3f}")
