"""Fits that leave out the inputs that are zero in all examples.

Weights of such inputs have no likelihood gradient, so equation 1 is largest where they equal the prior, exactly. A
fit without them has fewer weights to train, and puts them there.
"""

from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from vcl.core import Fit
from vcl.nets import Affine, Weights
from vcl.training import Data, Step

MULTIPLE = 32
"""The number of inputs that are kept is rounded up to a multiple of this, so that tasks share compiled programs."""
Tree = TypeVar("Tree", bound=PyTree)


def fit_used(
    fit: Fit,
    key: Key[Array, ""],
    name: str,
    step: Step,
    start: Tree,
    prior: PyTree,
    rest: Tree,
    data: Data,
    **sizes: int,
) -> Tree:
    """`fit` with the inputs that some example has; the weights of the others become those of `rest`."""
    used = used_inputs(data)
    if used.all():
        return fit(key, name, step, start, prior, data, **sizes)
    kept = filled_up(used)
    some = Data(data.inputs[:, kept], data.labels, data.size, data.groups)
    found = fit(key, name, step, narrowed(start, kept), narrowed(prior, kept), some, **sizes)
    return widened(found, rest, kept, used)


def used_inputs(data: Data) -> Bool[np.ndarray, "i"]:
    """Which inputs some example has."""
    real = (jnp.arange(data.capacity) < data.size)[:, None]
    return np.asarray(jnp.any((data.inputs != 0) & real, axis=0))


def filled_up(used: Bool[np.ndarray, "i"]) -> Int[np.ndarray, "kept"]:
    """The inputs that are used, and a few others up to a multiple of MULTIPLE."""
    count = max(MULTIPLE, -(-int(used.sum()) // MULTIPLE) * MULTIPLE)
    return np.sort(np.argsort(~used, stable=True)[:count])


def narrowed(tree: Tree, kept: Int[np.ndarray, "kept"]) -> Tree:
    """All weights in `tree`, for these inputs only."""
    return map_weights(lambda weights: with_rows(weights, weights.layers[0].weight[kept]), tree)


def widened(tree: Tree, rest: Tree, kept: Int[np.ndarray, "kept"], used: Bool[np.ndarray, "i"]) -> Tree:
    """All weights in `tree`, with those of `rest` for the inputs that are not used."""
    learnt = used[kept]

    def widen(weights: Weights, others: Weights) -> Weights:
        return with_rows(weights, others.layers[0].weight.at[kept[learnt]].set(weights.layers[0].weight[learnt]))

    return map_weights(widen, tree, rest)


def map_weights(function: Any, *trees: Any) -> Any:
    """`function` of corresponding weights; anything else stays as it is in the first tree."""
    return jax.tree.map(
        lambda node, *others: function(node, *others) if isinstance(node, Weights) else node,
        *trees,
        is_leaf=lambda node: isinstance(node, Weights),
    )


def with_rows(weights: Weights, rows: Float[Array, "i o"]) -> Weights:
    """The same weights with another matrix in the first layer."""
    first, *others = weights.layers
    return weights.with_layers([Affine(rows, first.bias), *others])
