"""Replay through feedback (van de Ven & Tolias, 2018): one network that classifies and generates.

A variational autoencoder whose encoder also classifies: the classifier's body is the encoder, and its top layer
gives the classes (for each head) and the code [μ, v] of q(z | x), from which a decoder reconstructs the input.
The t-th data set that arrives is learnt by minimising

    (1/t) · [cross-entropy + g · -ELBO / d] on the data + (1 - 1/t) · [distillation + g · -ELBO / d] on replay,

d being the size of an input and g = 1 in the paper. As many inputs are replayed as there are data: drawn anew in
every step from the previous network, which also labels them with its probabilities, softened by a temperature, over
the classes it has seen. Where each task has a head, the task of a replayed input is unknown, so it is distilled
into every head that has been trained, in equal parts. No example is kept; the decoder is counted among the
parameters.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from vcl.core import Fit, Footprint, StreamSpec, Task, check_index, size
from vcl.methods.base.point import PointLearner
from vcl.methods.base.settings import Recipes, check_positive, check_widths, family_settings
from vcl.nets import (
    Weights,
    by_head,
    cross_entropy,
    distillation,
    features,
    from_layers,
    logits,
    logits_by_head,
    pixels,
    random,
    select_head,
    wide,
)
from vcl.training import Adam, Batch, Data, classes_in, masked_mean
from vcl.vae import Decoder, dense, generate, negative_elbo, random_decoder


class FeedbackReplayState(eqx.Module):
    network: Weights
    coder: Weights
    """The layer on top of the network's body that gives the code; it has no body of its own."""
    decoder: Decoder
    seen: Bool[Array, "heads c"]
    """The classes that each head has seen."""
    observed: Int[Array, ""]
    """How many times data have arrived: t - 1 while the t-th are learnt."""


@dataclass(frozen=True)
class FeedbackReplay(PointLearner):
    """Replay through feedback: the classifier has a decoder and generates earlier inputs itself.

    Examples
    --------
    >>> FeedbackReplay(latent=20).generation
    1.0
    """

    decoder_hidden: Annotated[
        tuple[int, ...], "units in each hidden layer of the decoder, the first next to the inputs"
    ] = (100,)
    latent: Annotated[int, "dimension of the latent space"] = 50
    generation: Annotated[float, "g, the weight of the generative loss (published: 1)"] = 1.0
    temperature: Annotated[float, "temperature that softens the old network's answers (1: none)"] = 2.0

    recipes: ClassVar[Recipes] = {
        "fast": family_settings(
            split={"latent": 20, "generation": 10.0, "learning_rate": 0.002, "epochs": 10},
            permuted={"latent": 50, "generation": 10.0, "learning_rate": 0.002, "epochs": 4},
        ),
        # 2000 steps of 128 and 5000 of 256 are 21 epochs; the decoder mirrors the classifier.
        "published": family_settings(
            split={"decoder_hidden": (200,), "latent": 100, "epochs": 21, "batch_size": 128, "learning_rate": 0.001},
            permuted={
                "decoder_hidden": (100, 100),
                "latent": 100,
                "epochs": 21,
                "batch_size": 256,
                "learning_rate": 0.0001,
            },
        ),
    }

    def __post_init__(self) -> None:
        PointLearner.__post_init__(self)
        check_widths(self, "decoder_hidden")
        check_positive(self, "latent", "temperature", "generation")

    def init(self, key: Key[Array, ""], spec: StreamSpec) -> FeedbackReplayState:
        coder_key, decoder_key = jax.random.split(jax.random.fold_in(key, 1))
        return FeedbackReplayState(
            random(key, self.architecture, spec),
            dense(coder_key, self.architecture.num_features(spec.input_shape), 2 * self.latent),
            random_decoder(decoder_key, self.decoder_hidden, self.latent, spec),
            jnp.zeros((spec.num_heads, spec.num_classes), bool),
            jnp.zeros((), jnp.int32),
        )

    def observe(
        self, key: Key[Array, ""], state: FeedbackReplayState, task: Task, data: Data, fit: Fit
    ) -> FeedbackReplayState:
        check_index("head", task.head, len(state.seen))
        start = (state.network, state.coder, state.decoder)
        step = Adam(self.loss, self.learning_rate, self.schedule)
        past = (state, jnp.int32(task.head))
        network, coder, decoder = fit(
            key, "train", step, start, past, data, epochs=self.epochs, batch_size=self.batch_size
        )
        seen = state.seen.at[task.head].max(classes_in(data, state.seen.shape[1]))
        return FeedbackReplayState(network, coder, decoder, seen, state.observed + 1)

    def readout(self, key: Key[Array, ""], state: FeedbackReplayState, task: Task, fit: Fit) -> Weights:
        return select_head(state.network, task.head)

    def footprint(self, state: FeedbackReplayState) -> Footprint:
        return Footprint(parameters=size((state.network, state.coder, state.decoder)))

    def loss(
        self,
        key: Key[Array, ""],
        params: tuple[Weights, Weights, Decoder],
        args: tuple[FeedbackReplayState, Int[Array, ""]],
        batch: Batch,
    ) -> Float[Array, ""]:
        """(1/t) · mean loss on the data + (1 - 1/t) · mean loss on replayed inputs."""
        network, coder, decoder = params
        past, head = args
        for_replay, for_code = jax.random.split(key)
        data = pixels(batch.inputs)
        n = len(data)
        replay = generate(for_replay, past.decoder, n)
        # One pass over both, and the same features for classes and code.
        both = jnp.concatenate([data, replay])
        top = features(network, both)
        answers = by_head(network, logits(from_layers([wide(network).head]), top))
        generating = self.generation * negative_elbo(for_code, decoder, logits(coder, top), both) / data.shape[1]
        on_data = cross_entropy(answers[:n, head], batch.labels) + generating[:n]
        old_answers = logits_by_head(past.network, replay)
        on_replay = distillation(answers[n:], old_answers, past.seen, self.temperature) + generating[n:]
        share = 1.0 / (past.observed + 1)
        return share * masked_mean(on_data, batch.mask) + (1.0 - share) * jnp.mean(on_replay)
