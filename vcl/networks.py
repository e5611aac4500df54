"""Multi-layer perceptrons with ReLUs, a shared body and one or several heads.

The same `MLP` holds the weights of a point network, the means of a Bayesian one, and its log-variances.
"""

import itertools
from typing import TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key, PyTree, Shaped

from vcl.core import StreamSpec
from vcl.gaussian import Gaussian, sample

Tree = TypeVar("Tree", bound=PyTree)


class Dense(eqx.Module):
    """x ↦ x · weight + bias."""

    weight: Float[Array, "*heads i o"]
    bias: Float[Array, "*heads o"]


class MLP(eqx.Module):
    """Hidden layers shared by all tasks, and the head: stacked over tasks in a state, single when in use."""

    body: tuple[Dense, ...]
    head: Dense


def zeros(hidden: tuple[int, ...], spec: StreamSpec) -> MLP:
    """An MLP of the right shapes, all heads stacked."""
    widths = (spec.input_size, *hidden)
    body = tuple(Dense(jnp.zeros((i, o)), jnp.zeros(o)) for i, o in itertools.pairwise(widths))
    heads, classes = spec.num_heads, spec.num_classes
    return MLP(body, Dense(jnp.zeros((heads, widths[-1], classes)), jnp.zeros((heads, classes))))


def random(key: Key[Array, ""], hidden: tuple[int, ...], spec: StreamSpec) -> MLP:
    """Where point networks begin: weights N(0, 2 / inputs) (He et al., 2015), biases zero."""
    return random_like(key, zeros(hidden, spec))


def random_like(key: Key[Array, ""], network: MLP) -> MLP:
    """New weights N(0, 2 / inputs) and biases zero, of the shapes of `network`."""
    layers = [*network.body, network.head]
    keys = jax.random.split(key, len(layers))
    drawn = [
        Dense(
            jax.random.normal(k, layer.weight.shape) * jnp.sqrt(2.0 / layer.weight.shape[-2]),
            jnp.zeros_like(layer.bias),
        )
        for k, layer in zip(keys, layers, strict=True)
    ]
    return MLP(tuple(drawn[:-1]), drawn[-1])


def select_head(tree: Tree, head: int | Int[Array, ""]) -> Tree:
    """Every MLP in `tree` with the one head that is in use."""
    return jax.tree.map(lambda net: MLP(net.body, jax.tree.map(lambda a: a[head], net.head)), tree, is_leaf=_is_mlp)


def replace_head(tree: Tree, head: int | Int[Array, ""], new: Tree) -> Tree:
    """Every MLP in `tree` with the body of `new`, and with its head in place of number `head`."""
    return jax.tree.map(
        lambda net, one: MLP(one.body, jax.tree.map(lambda a, b: a.at[head].set(b), net.head, one.head)),
        tree,
        new,
        is_leaf=_is_mlp,
    )


def _is_mlp(node: PyTree) -> bool:
    return isinstance(node, MLP)


def pixels(inputs: Shaped[Array, "n d"]) -> Float[Array, "n d"]:
    """Bytes become numbers in [0, 1]; floats stay as they are."""
    if inputs.dtype == jnp.uint8:
        return inputs.astype(jnp.float32) / 255.0
    return inputs


def features(body: tuple[Dense, ...], inputs: Float[Array, "n d"]) -> Float[Array, "n f"]:
    """The top hidden layer."""
    h = inputs
    for layer in body:
        h = jax.nn.relu(h @ layer.weight + layer.bias)
    return h


def logits(network: MLP, inputs: Float[Array, "n d"]) -> Float[Array, "n c"]:
    """The network at one setting of its weights."""
    return features(network.body, inputs) @ network.head.weight + network.head.bias


def wide(tree: Tree) -> Tree:
    """Every MLP in `tree` with its stacked heads side by side, as one output layer."""
    return jax.tree.map(
        lambda net: MLP(
            net.body, Dense(jnp.concatenate([*net.head.weight], axis=1), jnp.concatenate([*net.head.bias]))
        ),
        tree,
        is_leaf=_is_mlp,
    )


def logits_by_head(network: MLP, inputs: Float[Array, "n d"]) -> Float[Array, "n heads c"]:
    """The answers of all heads of a network whose heads are stacked."""
    return by_head(network, logits(wide(network), inputs))


def by_head(network: MLP, outputs: Float[Array, "*s n wide"]) -> Float[Array, "*s n heads c"]:
    """The outputs of the `wide` network, head by head."""
    return outputs.reshape(*outputs.shape[:-1], *network.head.bias.shape)


def logits_weight_sampled(
    key: Key[Array, ""], q: Gaussian, inputs: Float[Array, "n d"], num_samples: int
) -> Float[Array, "s n c"]:
    """Weights drawn from q, once for the whole batch and each sample."""
    return jax.vmap(lambda k: logits(sample(k, q), inputs))(jax.random.split(key, num_samples))


def logits_local(
    key: Key[Array, ""], q: Gaussian, inputs: Float[Array, "n d"], num_samples: int
) -> Float[Array, "s n c"]:
    """Local reparameterisation (Kingma et al., 2015): sample pre-activations, independently for each example.

    a ~ N(h·M + m, h²·S + s) where M, m are the means and S, s the variances of a layer's weights and biases.
    """
    means, log_vars = q.mean, q.log_var
    layers = [*zip(means.body, log_vars.body, strict=True), (means.head, log_vars.head)]
    keys = jax.random.split(key, len(layers))
    h = inputs
    for number, ((mean, log_var), k) in enumerate(zip(layers, keys, strict=True)):
        centre = h @ mean.weight + mean.bias
        variance = (h * h) @ jnp.exp(log_var.weight) + jnp.exp(log_var.bias)
        # The first layer's products do not depend on the sample: they are computed once, then broadcast.
        shape = (num_samples, *centre.shape[-2:])
        a = centre + jnp.sqrt(variance) * jax.random.normal(k, shape, centre.dtype)
        h = jax.nn.relu(a) if number < len(layers) - 1 else a
    return h


def cross_entropy(outputs: Float[Array, "*s n c"], labels: Int[Array, "n"]) -> Float[Array, "*s n"]:
    """-log p(y | x), for each sample and example."""
    log_probs = jax.nn.log_softmax(outputs)
    return -jnp.take_along_axis(log_probs, jnp.broadcast_to(labels, log_probs.shape[:-1])[..., None], axis=-1)[
        ..., 0
    ]


def distillation(
    outputs: Float[Array, "n heads c"],
    targets: Float[Array, "n heads c"],
    seen: Bool[Array, "heads c"],
    temperature: float,
) -> Float[Array, "n"]:
    """T² · cross-entropy between the softened answers of an old network and a new one (Hinton et al., 2015).

    The old network's probability is spread over the classes that it has seen; the new one must keep it from all
    others. The mean is taken over the heads that have seen any.
    """
    believed = jax.nn.softmax(jnp.where(seen, targets, -1e9) / temperature)
    losses = -jnp.sum(believed * jax.nn.log_softmax(outputs / temperature), axis=-1)
    heads = jnp.any(seen, axis=1)
    return temperature**2 * (losses @ heads) / jnp.maximum(jnp.sum(heads), 1)
