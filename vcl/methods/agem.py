"""Averaged gradient episodic memory (Chaudhry et al., 2019).

A step must not increase the average loss over the memories of all other tasks: with the gradient r on a batch drawn
from them, a gradient g of the data for which g·r < 0 is replaced by its projection orthogonal to r,

    g - (g·r / r·r) r.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key, PyTree

from vcl.memory import draw
from vcl.methods.base.episodic import Episode, EpisodicLearner
from vcl.methods.base.settings import Recipes, check_positive, family_settings
from vcl.nets import Weights, cross_entropy, logits_by_head, pixels


@dataclass(frozen=True)
class AGEM(EpisodicLearner):
    """Averaged gradient episodic memory: steps that do not increase the loss on examples of all other tasks.

    Examples
    --------
    >>> AGEM(memory=100).reference
    256
    """

    reference: Annotated[int, "examples drawn from the memories for each step"] = 256

    recipes: ClassVar[Recipes] = {
        "fast": family_settings(
            split={"optimizer": "adam", "learning_rate": 0.001, "epochs": 3, "batch_size": 128, "reference": 192},
            permuted={"learning_rate": 0.03, "schedule": "cosine", "epochs": 1, "batch_size": 5, "reference": 44},
            split_mnist={"learning_rate": 0.0017, "reference": 154},
            permuted_mnist={"learning_rate": 0.024, "schedule": "constant", "reference": 230},
        ),
        "published": family_settings(
            split={"learning_rate": 0.1, "epochs": 1, "batch_size": 10, "memory": 250, "reference": 256},
            permuted={"learning_rate": 0.1, "epochs": 1, "batch_size": 10, "memory": 250, "reference": 256},
        ),
    }

    def __post_init__(self) -> None:
        EpisodicLearner.__post_init__(self)
        check_positive(self, "reference")

    def correct(self, key: Key[Array, ""], network: Weights, gradient: Weights, episode: Episode) -> Weights:
        return project(gradient, self.reference_gradient(key, network, episode))

    def reference_gradient(self, key: Key[Array, ""], network: Weights, episode: Episode) -> Weights:
        """The gradient on examples drawn from the other tasks' memories, each answered by its own head."""
        inputs, labels, tasks = draw(key, episode.others, self.reference)
        rows = jnp.arange(self.reference)

        def loss(network: Weights) -> Float[Array, ""]:
            outputs = logits_by_head(network, pixels(inputs))[rows, episode.heads[tasks]]
            return jnp.mean(cross_entropy(outputs, labels))

        return jax.lax.cond(
            jnp.any(episode.others.filled > 0),
            jax.grad(loss),
            lambda network: jax.tree.map(jnp.zeros_like, network),
            network,
        )


def project(gradient: PyTree, reference: PyTree) -> PyTree:
    """g - min(0, g·r / r·r) r."""
    length = dot(reference, reference)
    along = dot(gradient, reference) / jnp.where(length > 0, length, 1.0)
    return jax.tree.map(lambda g, r: g - jnp.minimum(along, 0.0) * r, gradient, reference)


def dot(a: PyTree, b: PyTree) -> Float[Array, ""]:
    return jax.tree.reduce(jnp.add, jax.tree.map(lambda x, y: jnp.sum(x * y), a, b))
