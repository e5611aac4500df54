"""Averaged gradient episodic memory (Chaudhry et al., 2019).

Of all the other tasks' memories together the loss may not rise: with the gradient r on a few examples drawn from
them, a gradient g of the data for which g·r < 0 is replaced by the nearest that is at a right angle to r,

    g - (g·r / r·r) r.
"""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key, PyTree

from vcl.memory import draw
from vcl.methods.episodic import Episode, EpisodicLearner
from vcl.methods.point import check_positive, recipes
from vcl.networks import MLP, cross_entropy, logits_by_head, pixels


@dataclass(frozen=True)
class AGEM(EpisodicLearner):
    """Averaged gradient episodic memory: steps that do not raise the loss on examples of all other tasks."""

    reference: Annotated[int, "examples drawn from the memories for each step"] = 256

    recipes: ClassVar[dict[str, dict[str, dict[str, Any]]]] = recipes(
        split={"optimizer": "adam", "learning_rate": 0.001, "epochs": 3, "batch_size": 128, "reference": 192},
        permuted={"learning_rate": 0.03, "schedule": "cosine", "epochs": 1, "batch_size": 5, "reference": 44},
    )

    def __post_init__(self) -> None:
        EpisodicLearner.__post_init__(self)
        check_positive(self, "reference")

    def correct(self, key: Key[Array, ""], network: MLP, gradient: MLP, episode: Episode) -> MLP:
        return project(gradient, self.reference_gradient(key, network, episode))

    def reference_gradient(self, key: Key[Array, ""], network: MLP, episode: Episode) -> MLP:
        """The gradient on examples drawn from the other tasks' memories, each answered by its own head."""
        inputs, labels, tasks = draw(key, episode.others, self.reference)
        rows = jnp.arange(self.reference)

        def loss(network: MLP) -> Float[Array, ""]:
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
