"""Deep generative replay (Shin et al., 2017), in the form of van de Ven & Tolias (2018, "DGR + distill").

A solver classifies, a generator imitates the inputs of earlier tasks. The t-th data set that arrives trains both on

    (1/t) · loss on the data + (1 - 1/t) · loss on replay,

cross-entropy for the solver, -ELBO for the generator, as many inputs being replayed as there are data. Replay is
drawn anew in every step from the previous generator and labelled by the previous solver, with its probabilities,
softened by a temperature, over the classes it has seen. As in van de Ven & Tolias, the generator is a variational
autoencoder and labels are soft; Shin et al. have a generative adversarial network and hard labels. Where each task
has a head, the task of a replayed input is unknown, so it is distilled into every head that has been trained, in
equal parts. No example is kept; the generator is counted among the parameters.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from vcl.core import Fit, Footprint, StreamSpec, Task, check_index, size
from vcl.methods.base.point import PointLearner, negative_log_likelihood
from vcl.methods.base.settings import Recipes, check_positive, check_widths, family_settings
from vcl.nets import Weights, distillation, logits, logits_by_head, pixels, random, select_head
from vcl.training import Adam, Batch, Data, classes_in, masked_mean
from vcl.vae import Decoder, generate, negative_elbo, random_decoder, random_encoder


class GenerativeReplayState(eqx.Module):
    network: Weights
    """The solver."""
    encoder: Weights
    decoder: Decoder
    seen: Bool[Array, "heads c"]
    """The classes that each head has seen."""
    observed: Int[Array, ""]
    """How many times data have arrived: t - 1 while the t-th are learnt."""


@dataclass(frozen=True)
class GenerativeReplay(PointLearner):
    """Deep generative replay: a variational autoencoder generates earlier inputs, the old network labels them.

    Examples
    --------
    >>> GenerativeReplay(latent=20).temperature
    2.0
    """

    generator_hidden: Annotated[tuple[int, ...], "units in each hidden layer of the generator's encoder"] = (200,)
    latent: Annotated[int, "dimension of the generator's latent space"] = 50
    temperature: Annotated[float, "temperature that softens the old network's answers (1: none)"] = 2.0

    recipes: ClassVar[Recipes] = {
        "fast": family_settings(
            split={"latent": 20, "learning_rate": 0.002},
            permuted={"latent": 50, "learning_rate": 0.002, "epochs": 4},
            permuted_mnist={"latent": 16, "learning_rate": 0.0071, "schedule": "cosine"},
        ),
        # van de Ven & Tolias: 2000 steps of 128 and 5000 of 256 are 21 epochs; generator as large as the solver.
        "published": family_settings(
            split={
                "generator_hidden": (200,),
                "latent": 100,
                "epochs": 21,
                "batch_size": 128,
                "learning_rate": 0.001,
            },
            permuted={
                "generator_hidden": (100, 100),
                "latent": 100,
                "epochs": 21,
                "batch_size": 256,
                "learning_rate": 0.0001,
            },
        ),
    }

    def __post_init__(self) -> None:
        PointLearner.__post_init__(self)
        check_positive(self, "latent", "temperature")
        check_widths(self, "generator_hidden")

    def init(self, key: Key[Array, ""], spec: StreamSpec) -> GenerativeReplayState:
        encoder_key, decoder_key = jax.random.split(jax.random.fold_in(key, 1))
        return GenerativeReplayState(
            random(key, self.architecture, spec),
            random_encoder(encoder_key, self.generator_hidden, self.latent, spec),
            random_decoder(decoder_key, self.generator_hidden, self.latent, spec),
            jnp.zeros((spec.num_heads, spec.num_classes), bool),
            jnp.zeros((), jnp.int32),
        )

    def observe(
        self, key: Key[Array, ""], state: GenerativeReplayState, task: Task, data: Data, fit: Fit
    ) -> GenerativeReplayState:
        check_index("head", task.head, len(state.seen))
        start = (state.network, state.encoder, state.decoder)
        step = Adam(self.loss, self.learning_rate, self.schedule)
        past = (state, jnp.int32(task.head))
        network, encoder, decoder = fit(
            key, "train", step, start, past, data, epochs=self.epochs, batch_size=self.batch_size
        )
        seen = state.seen.at[task.head].max(classes_in(data, state.seen.shape[1]))
        return GenerativeReplayState(network, encoder, decoder, seen, state.observed + 1)

    def readout(self, key: Key[Array, ""], state: GenerativeReplayState, task: Task, fit: Fit) -> Weights:
        return select_head(state.network, task.head)

    def footprint(self, state: GenerativeReplayState) -> Footprint:
        return Footprint(parameters=size((state.network, state.encoder, state.decoder)))

    def loss(
        self,
        key: Key[Array, ""],
        params: tuple[Weights, Weights, Decoder],
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
