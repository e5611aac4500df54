"""GEM on samples: the gradient of each memory is estimated on a few examples of it, drawn anew in every step.

The constraints M z ≥ 0 of `vcl.methods.gem` hold for estimates of the gradients M only. A step costs less than with
whole memories, and the noise did not lower the accuracy in our searches.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Key

from vcl.memory import Memory
from vcl.methods.base.episodic import Episode
from vcl.methods.base.settings import Recipes, check_not_negative, family_settings
from vcl.methods.gem import GEM, task_gradients
from vcl.nets import Weights


@dataclass(frozen=True)
class GEMSampled(GEM):
    """GEM whose constraints are estimated on a few examples of each memory, drawn anew in every step.

    Examples
    --------
    >>> GEMSampled(reference=32).reference
    32
    """

    reference: Annotated[int, "examples drawn from each memory for each step (0: all of it, as published)"] = 16

    recipes: ClassVar[Recipes] = {
        "fast": family_settings(
            split={"learning_rate": 0.1, "epochs": 3, "batch_size": 64},
            permuted={"learning_rate": 0.03, "schedule": "plateau", "epochs": 1, "batch_size": 10},
            split_mnist={"learning_rate": 0.32, "schedule": "cosine", "margin": 0.2},
        )
    }

    def __post_init__(self) -> None:
        GEM.__post_init__(self)
        check_not_negative(self, "reference")

    def memory_gradients(self, key: Key[Array, ""], network: Weights, episode: Episode) -> Weights:
        others = sample(key, episode.others, self.reference) if self.reference else episode.others
        return task_gradients(network, others, episode.heads)


def sample(key: Key[Array, ""], memory: Memory, size: int) -> Memory:
    """`size` examples of each task that has any, drawn with replacement."""
    tasks = memory.filled.shape[0]
    keys, counts = jax.random.split(key, tasks), jnp.maximum(memory.filled, 1)
    rows = jax.vmap(lambda k, count: jax.random.randint(k, (size,), 0, count))(keys, counts)
    each = jnp.arange(tasks)[:, None]
    return Memory(memory.inputs[each, rows], memory.labels[each, rows], jnp.where(memory.filled > 0, size, 0))
