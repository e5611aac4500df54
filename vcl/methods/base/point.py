"""Common to learners with a point estimate of the weights."""

from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
from jaxtyping import Array, Float, Key, Shaped

from vcl.core import Footprint, size
from vcl.methods.base.settings import Settings
from vcl.nets import Weights, cross_entropy, logits, pixels
from vcl.training import Batch, masked_mean


class PointState(eqx.Module):
    network: Weights


@dataclass(frozen=True)
class PointLearner(Settings):
    """Settings and prediction of a learner whose `readout` is a `Weights`."""

    def predict(self, key: Key[Array, ""], params: Weights, inputs: Shaped[Array, "n d"]) -> Float[Array, "1 n c"]:
        """log p(y | x, θ), as a single draw."""
        return jax.nn.log_softmax(logits(params, pixels(inputs)))[None]

    def footprint(self, state: Any) -> Footprint:
        return Footprint(parameters=size(state.network))


def negative_log_likelihood(network: Weights, batch: Batch) -> Float[Array, ""]:
    """-Σ_n log p(y_n | x_n, θ) / N, estimated on a minibatch."""
    outputs = logits(network, pixels(batch.inputs))
    return masked_mean(cross_entropy(outputs, batch.labels), batch.mask)
