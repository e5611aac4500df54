"""Deep generative replay (Shin et al., 2017), the generator a variational autoencoder.

A solver answers, a generator dreams. The t-th data that arrive train both on

    (1/t) · loss on the data + (1 - 1/t) · loss on replay,

cross-entropy for the solver, -ELBO for the generator. Replay is drawn anew in every step from the generator as it
was before. The solver as it was before labels it with its probabilities, softened by a temperature (van de Ven &
Tolias, 2018), over the classes it has seen. Where tasks have heads of their own, nothing tells which task a replayed
input belongs to, so it reminds every head that has seen a task of what that head used to answer, in equal parts.
No example is kept; the generator is counted among the parameters.

The generator is larger than the solver and is trained along with it: with the recipes' settings a step costs
seven to nine times as much as one of fine-tuning (`bench/methods.py`).
"""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from vcl.core import Fit, Footprint, StreamSpec, Task, size
from vcl.methods.point import PointLearner, check_hidden, check_positive, negative_log_likelihood, recipes
from vcl.networks import MLP, distillation, logits, logits_by_head, pixels, random, select_head
from vcl.training import Adam, Batch, Data, classes_in, masked_mean
from vcl.vae import Decoder, generate, negative_elbo, random_decoder, random_encoder


class GenerativeReplayState(eqx.Module):
    network: MLP
    """The solver."""
    encoder: MLP
    decoder: Decoder
    seen: Bool[Array, "heads c"]
    """The classes that each head has seen."""
    observed: Int[Array, ""]
    """How many times data have arrived: t - 1 while the t-th are learnt."""


@dataclass(frozen=True)
class GenerativeReplay(PointLearner):
    """Deep generative replay: a variational autoencoder makes the past up, the old network labels it."""

    generator_hidden: Annotated[tuple[int, ...], "units in each hidden layer of the generator's encoder"] = (200,)
    latent: Annotated[int, "numbers that the generator makes an input from"] = 50
    temperature: Annotated[float, "how much the old network's answers are softened (1: not at all)"] = 2.0

    recipes: ClassVar[dict[str, dict[str, dict[str, Any]]]] = recipes(
        split={"latent": 20, "learning_rate": 0.002}, permuted={"latent": 50, "learning_rate": 0.002, "epochs": 4}
    )

    def __post_init__(self) -> None:
        PointLearner.__post_init__(self)
        check_positive(self, "latent", "temperature")
        check_hidden(self.generator_hidden, "generator-hidden")

    def init(self, key: Key[Array, ""], spec: StreamSpec) -> GenerativeReplayState:
        encoder_key, decoder_key = jax.random.split(jax.random.fold_in(key, 1))
        return GenerativeReplayState(
            random(key, self.hidden, spec),
            random_encoder(encoder_key, self.generator_hidden, self.latent, spec),
            random_decoder(decoder_key, self.generator_hidden, self.latent, spec),
            jnp.zeros((spec.num_heads, spec.num_classes), bool),
            jnp.zeros((), jnp.int32),
        )

    def observe(
        self, key: Key[Array, ""], state: GenerativeReplayState, task: Task, data: Data, fit: Fit
    ) -> GenerativeReplayState:
        start = (state.network, state.encoder, state.decoder)
        step = Adam(self.loss, self.learning_rate, self.schedule)
        past = (state, jnp.int32(task.head))
        network, encoder, decoder = fit(
            key, "train", step, start, past, data, epochs=self.epochs, batch_size=self.batch_size
        )
        seen = state.seen.at[task.head].max(classes_in(data, state.seen.shape[1]))
        return GenerativeReplayState(network, encoder, decoder, seen, state.observed + 1)

    def readout(self, key: Key[Array, ""], state: GenerativeReplayState, task: Task, fit: Fit) -> MLP:
        return select_head(state.network, task.head)

    def footprint(self, state: GenerativeReplayState) -> Footprint:
        return Footprint(parameters=size((state.network, state.encoder, state.decoder)))

    def loss(
        self,
        key: Key[Array, ""],
        params: tuple[MLP, MLP, Decoder],
        args: tuple[GenerativeReplayState, Int[Array, ""]],
        batch: Batch,
    ) -> Float[Array, ""]:
        """(1/t) · loss on the data + (1 - 1/t) · loss on as many replayed inputs."""
        network, encoder, decoder = params
        past, head = args
        for_replay, for_now, for_then = jax.random.split(key, 3)
        inputs = pixels(batch.inputs)
        replay = generate(for_replay, past.decoder, len(inputs))
        now = negative_log_likelihood(select_head(network, head), batch) + masked_mean(
            negative_elbo(for_now, decoder, logits(encoder, inputs), inputs), batch.mask
        )
        then = jnp.mean(
            distillation(
                logits_by_head(network, replay), logits_by_head(past.network, replay), past.seen, self.temperature
            )
            + negative_elbo(for_then, decoder, logits(encoder, replay), replay)
        )
        share = 1.0 / (past.observed + 1)
        return share * now + (1.0 - share) * then
