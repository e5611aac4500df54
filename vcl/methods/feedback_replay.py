"""Replay through feedback (van de Ven & Tolias, 2018): one network that answers and dreams.

A variational autoencoder whose encoder also classifies: the classifier's body is the encoder, and its top layer
gives the classes (for each head) and the code [μ, v] of q(z | x), from which a decoder makes the input again.
The t-th data that arrive minimise

    (1/t) · [cross-entropy + g · -ELBO / d] on the data + (1 - 1/t) · [distillation + g · -ELBO / d] on replay,

d being the size of an input. Replay is drawn anew in every step from the network as it was before, which also labels
it with its probabilities, softened by a temperature, over the classes it has seen. Where tasks have heads of their
own, nothing tells which task a replayed input belongs to, so it reminds every head that has seen a task of what that
head used to answer, in equal parts. No example is kept; the decoder is counted among the parameters.

What a step costs depends on how many inputs are replayed in it (`replayed`) and on how many of the data are made
again by the decoder (`decoded`): a part of each minibatch, which is another one in every epoch.
"""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from vcl.core import Fit, Footprint, StreamSpec, Task, size
from vcl.errors import VclError
from vcl.methods.point import PointLearner, check_hidden, check_positive, recipes
from vcl.networks import (
    MLP,
    cross_entropy,
    distillation,
    features,
    logits,
    logits_by_head,
    pixels,
    random,
    select_head,
)
from vcl.training import Adam, Batch, Data, classes_in, masked_mean
from vcl.vae import Decoder, dense, generate, negative_elbo, random_decoder


class FeedbackReplayState(eqx.Module):
    network: MLP
    coder: MLP
    """The layer on top of the network's body that gives the code; it has no body of its own."""
    decoder: Decoder
    seen: Bool[Array, "heads c"]
    """The classes that each head has seen."""
    observed: Int[Array, ""]
    """How many times data have arrived: t - 1 while the t-th are learnt."""


@dataclass(frozen=True)
class FeedbackReplay(PointLearner):
    """Replay through feedback: the network that answers has a decoder, and makes the past up itself."""

    decoder_hidden: Annotated[
        tuple[int, ...], "units in each hidden layer of the decoder, the first next to the inputs"
    ] = (100,)
    latent: Annotated[int, "numbers that the decoder makes an input from"] = 50
    generation: Annotated[float, "g, the weight of learning to make inputs"] = 1.0
    temperature: Annotated[float, "how much the old network's answers are softened (1: not at all)"] = 2.0
    replayed: Annotated[float, "inputs made up in a step for each one of the data"] = 0.25
    decoded: Annotated[float, "part of each minibatch of the data that the decoder learns from"] = 0.5

    recipes: ClassVar[dict[str, dict[str, dict[str, Any]]]] = recipes(
        split={"latent": 20, "generation": 10.0, "learning_rate": 0.002, "epochs": 20},
        permuted={
            "latent": 50,
            "generation": 10.0,
            "learning_rate": 0.002,
            "epochs": 4,
            "replayed": 0.375,
            "decoded": 0.25,
        },
    )

    def __post_init__(self) -> None:
        PointLearner.__post_init__(self)
        check_hidden(self.decoder_hidden, "decoder-hidden")
        check_positive(self, "latent", "temperature", "generation")
        for name, most in (("replayed", 10), ("decoded", 1)):
            if not 0 < getattr(self, name) <= most:
                raise VclError(f"--{name} must be above 0 and at most {most}, but it is {getattr(self, name)}.")

    def init(self, key: Key[Array, ""], spec: StreamSpec) -> FeedbackReplayState:
        coder_key, decoder_key = jax.random.split(jax.random.fold_in(key, 1))
        return FeedbackReplayState(
            random(key, self.hidden, spec),
            dense(coder_key, self.hidden[-1], 2 * self.latent),
            random_decoder(decoder_key, self.decoder_hidden, self.latent, spec),
            jnp.zeros((spec.num_heads, spec.num_classes), bool),
            jnp.zeros((), jnp.int32),
        )

    def observe(
        self, key: Key[Array, ""], state: FeedbackReplayState, task: Task, data: Data, fit: Fit
    ) -> FeedbackReplayState:
        start = (state.network, state.coder, state.decoder)
        step = Adam(self.loss, self.learning_rate, self.schedule)
        past = (state, jnp.int32(task.head))
        network, coder, decoder = fit(
            key, "train", step, start, past, data, epochs=self.epochs, batch_size=self.batch_size
        )
        seen = state.seen.at[task.head].max(classes_in(data, state.seen.shape[1]))
        return FeedbackReplayState(network, coder, decoder, seen, state.observed + 1)

    def readout(self, key: Key[Array, ""], state: FeedbackReplayState, task: Task, fit: Fit) -> MLP:
        return select_head(state.network, task.head)

    def footprint(self, state: FeedbackReplayState) -> Footprint:
        return Footprint(parameters=size((state.network, state.coder, state.decoder)))

    def loss(
        self,
        key: Key[Array, ""],
        params: tuple[MLP, MLP, Decoder],
        args: tuple[FeedbackReplayState, Int[Array, ""]],
        batch: Batch,
    ) -> Float[Array, ""]:
        """(1/t) · mean loss on the data + (1 - 1/t) · mean loss on replayed inputs."""
        network, coder, decoder = params
        past, head = args
        for_replay, for_code = jax.random.split(key)
        data = pixels(batch.inputs)
        replay = generate(for_replay, past.decoder, max(1, round(self.replayed * len(data))))
        # One pass over both, and one layer of features for classes and code.
        top = features(network.body, jnp.concatenate([data, replay]))
        answers = logits_by_head(MLP((), network.head), top)
        n, m = len(data), max(1, round(self.decoded * len(data)))
        code = logits(coder, jnp.concatenate([top[:m], top[n:]]))
        made_again = jnp.concatenate([data[:m], replay])
        generating = self.generation * negative_elbo(for_code, decoder, code, made_again) / data.shape[1]
        old_answers = logits_by_head(past.network, replay)
        # Rows that fill up a minibatch are its last: there is always one that is real among the first m.
        on_data = masked_mean(cross_entropy(answers[:n, head], batch.labels), batch.mask)
        on_data += masked_mean(generating[:m], batch.mask[:m])
        on_replay = distillation(answers[n:], old_answers, past.seen, self.temperature) + generating[m:]
        share = 1.0 / (past.observed + 1)
        return share * on_data + (1.0 - share) * jnp.mean(on_replay)
