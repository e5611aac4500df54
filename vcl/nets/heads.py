"""One head for each task, or one for all: choosing among stacked heads."""

import dataclasses
from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree

from vcl.core import check_index
from vcl.nets.network import Affine, Weights, logits

Tree = TypeVar("Tree", bound=PyTree)


def select_head(tree: Tree, head: int | Int[Array, ""]) -> Tree:
    """Every network's weights in `tree` with the one head that is in use."""

    def select(weights: Weights) -> Weights:
        check_index("head", head, len(weights.head.bias))
        return dataclasses.replace(weights, head=chosen(weights.head, head))

    return map_weights(select, tree)


def replace_head(tree: Tree, head: int | Int[Array, ""], new: Tree) -> Tree:
    """Every network's weights in `tree` with the body of `new`, and with its head in place of number `head`."""

    def replace(weights: Weights, one: Weights) -> Weights:
        check_index("head", head, len(weights.head.bias))
        return dataclasses.replace(one, head=exchanged(weights.head, head, one.head))

    return map_weights(replace, tree, new)


@jax.jit
def chosen(heads: Affine, head: int | Int[Array, ""]) -> Affine:
    return jax.tree.map(lambda a: a[head], heads)


@jax.jit
def exchanged(heads: Affine, head: int | Int[Array, ""], one: Affine) -> Affine:
    return jax.tree.map(lambda a, b: a.at[head].set(b), heads, one)


def map_weights(function: Callable[..., Weights], tree: Tree, *others: Tree) -> Tree:
    """`function` of corresponding `Weights` in the trees."""
    return jax.tree.map(function, tree, *others, is_leaf=lambda node: isinstance(node, Weights))


def wide(tree: Tree) -> Tree:
    """Every network's weights in `tree` with its stacked heads side by side, as one output layer."""

    def widen(weights: Weights) -> Weights:
        head = weights.head
        side_by_side = Affine(jnp.concatenate([*head.weight], axis=1), jnp.concatenate([*head.bias]))
        return dataclasses.replace(weights, head=side_by_side)

    return map_weights(widen, tree)


def logits_by_head(weights: Weights, inputs: Float[Array, "n d"]) -> Float[Array, "n heads c"]:
    """The answers of all heads of a network whose heads are stacked."""
    return by_head(weights, logits(wide(weights), inputs))


def by_head(weights: Weights, outputs: Float[Array, "*s n wide"]) -> Float[Array, "*s n heads c"]:
    """The outputs of the `wide` network, head by head."""
    return outputs.reshape(*outputs.shape[:-1], *weights.head.bias.shape)
