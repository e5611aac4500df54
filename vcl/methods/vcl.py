"""Variational continual learning (Swaroop et al., 2019; Nguyen et al., 2018).

For every task t the posterior q_t maximises equation 1 of the paper,

    L_t(q_t) = Σ_n E_{θ ~ q_t} [log p(y_n | θ, x_n)] - KL(q_t(θ) ‖ q_{t-1}(θ)),

over mean-field Gaussians: yesterday's posterior is today's prior.

A new task starts its optimisation afresh: that pushes it onto unused units, and forgets less than a start at the old
posterior. A further batch of the same task starts at the posterior of the batch before, of which it is a part.
"""

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key, Shaped

from vcl import memory
from vcl.core import Fit, Footprint, StreamSpec, Task, size
from vcl.errors import VclError
from vcl.memory import Memory
from vcl.methods.base.settings import Recipes, Settings, check_fraction, check_not_negative, check_positive
from vcl.methods.base.zero_inputs import fit_used
from vcl.nets import (
    MLP,
    Activation,
    Categorical,
    Likelihood,
    Network,
    Weights,
    by_head,
    logits,
    pixels,
    replace_head,
    select_head,
    wide,
    zeros,
)
from vcl.noise import Generator
from vcl.posteriors import MeanField
from vcl.posteriors.mean_field import (
    Gaussian,
    NoisePer,
    Scalar,
    expected_loss,
    logits_local,
    logits_weight_sampled,
    partly_forgotten,
)
from vcl.training import Adam, Batch, Data, masked_mean

LOGITS = {"local": logits_local, "weights": logits_weight_sampled}

EQUAL_RATES = {"variance_rate": 1.0, "init_std": 0.1}
PAPER = {**EQUAL_RATES, "learning_rate": 0.005, "schedule": "constant", "train_samples": 10, "test_samples": 20}
PAPER_CODE = {**PAPER, "last_hidden": "linear", "noise_per": "class", "test_softmax": "all"}
PREVIOUS = {**PAPER, "learning_rate": 0.001, "test_samples": 100, "estimator": "weights", "start": "previous"}
ALL_EXAMPLES = 1_000_000
"""A minibatch larger than any task's data: all of them in one."""
FAST_SPLIT = {"learning_rate": 0.01, "schedule": "cosine", "variance_rate": 0.3, "init_std": 0.2}
PERMUTED = {**EQUAL_RATES, "hidden": (100, 100), "learning_rate": 0.005, "schedule": "plateau"}
FAST_PERMUTED = {**PERMUTED, "prior_std": 0.3}
# Tables: neighbouring tasks are alike, so that a start at the previous posterior is better than a fresh one.
REAL = {**EQUAL_RATES, "learning_rate": 0.005, "schedule": "cosine", "start": "previous", "prior_std": 0.3}
# Many more weights than examples: a narrow prior, and from the second task on a start at the previous posterior.
# Variances need a rate of their own, or a few epochs leave them where they began.
IMAGES = {
    "learning_rate": 0.003,
    "variance_rate": 3.0,
    "start": "previous",
    "prior_std": 0.1,
    "init_std": 0.05,
    "init_log_var": -8.0,
}
# Under a wide prior and from a wide start the first batch, however small, leaves variances that the data decided.
ONLINE_PERMUTED = {**PERMUTED, "further_schedule": "cosine", "prior_std": 1.0, "first_init_std": 1.0}

# Chosen on validation data: docs/recipes.md has the search and its outcome.
FAST = {
    "split": {**FAST_SPLIT, "hidden": (200,), "epochs": 40, "batch_size": 256},
    # Averages over samples are under-confident at T = 1.
    "permuted": {**FAST_PERMUTED, "epochs": 100, "batch_size": 1024, "test_temperature": 0.3},
    "split-cifar10": {**FAST_SPLIT, **IMAGES, "hidden": (200,), "epochs": 40, "batch_size": 64},
    "split-digits": {**FAST_SPLIT, "hidden": (50,), "epochs": 100, "batch_size": 64},
    "permuted-digits": {**FAST_PERMUTED, "epochs": 100, "batch_size": 64},
    # On Covertype by area: docs/practitioners.md.
    "real": {**REAL, "hidden": (100, 100), "epochs": 40, "batch_size": 256},
}
# The best of the equal search's trials: docs/methods.md.
SEARCHED_PERMUTED_MNIST = {"learning_rate": 0.0028, "prior_std": 0.24, "variance_rate": 0.31}

RECIPES: Recipes = {
    "fast": {**FAST, "permuted-mnist": {**FAST["permuted"], **SEARCHED_PERMUTED_MNIST}},
    # For data that arrive in batches of the same task: docs/recipes.md.
    "online": {
        "split": {**FAST_SPLIT, "hidden": (200,), "epochs": 40, "batch_size": 256},
        "permuted": {**ONLINE_PERMUTED, "epochs": 100, "further_epochs": 30, "batch_size": 256},
        "split-digits": {**FAST_SPLIT, "hidden": (50,), "epochs": 100, "batch_size": 64},
        "permuted-digits": {
            **ONLINE_PERMUTED,
            "epochs": 400,
            "further_epochs": 100,
            "batch_size": 64,
            "train_samples": 8,
        },
    },
    # Section 3.1 of the paper, with the published code's rate, samples and batches.
    "paper": {
        "split": {**PAPER, "hidden": (200,), "epochs": 600, "batch_size": 256},
        "permuted": {**PAPER, "hidden": (100, 100), "epochs": 800, "batch_size": 1024},
    },
    # The code published with the paper, which departs from its text: docs/recipes.md has the differences.
    "paper-code": {
        "split": {**PAPER_CODE, "hidden": (200,), "epochs": 600, "batch_size": 256},
        "permuted": {**PAPER_CODE, "hidden": (100, 100), "epochs": 800, "batch_size": 1024},
    },
    # VCL as it was before the paper (Nguyen et al., 2018), with the networks and batches of its own code.
    "previous": {
        "split": {**PREVIOUS, "hidden": (256, 256), "epochs": 120, "batch_size": ALL_EXAMPLES},
        "permuted": {**PREVIOUS, "hidden": (100, 100), "epochs": 100, "batch_size": 256},
    },
}


class VCLState(eqx.Module):
    posterior: Gaussian
    trained: Bool[Array, "heads"]
    """Which heads have seen data."""
    coreset: Memory
    """The examples set aside."""


class AllHeads(eqx.Module):
    """A read-out whose heads compete with each other."""

    posterior: Gaussian
    head: Int[Array, ""]
    """The head of the task in question."""


@dataclass(frozen=True)
class VCL(Settings):
    """Variational continual learning, with or without a coreset.

    Its defaults are what `vcl run` uses on the split benchmarks, the recipe `fast`; `VCL.recipes` has the others.

    Examples
    --------
    >>> import vcl
    >>> stream = vcl.build("split-digits", vcl.StreamOptions(num_tasks=2), seed=0)
    >>> result = vcl.learn(vcl.VCL(hidden=(20,), batch_size=32), stream)
    >>> result["average_accuracy"] > 0.9
    True
    """

    epochs: Annotated[int, "passes over each task's data"] = 40
    batch_size: Annotated[int, "examples in a minibatch"] = 256
    learning_rate: Annotated[float, "Adam's step size at the start of each task"] = 0.01
    schedule: Annotated[Literal["constant", "cosine", "plateau"], "learning-rate schedule within a task"] = "cosine"
    variance_rate: Annotated[float, "how fast the log-variances learn, relative to the means"] = 0.3
    train_samples: Annotated[int, "Monte-Carlo samples of the likelihood term while training"] = 1
    test_samples: Annotated[int, "Monte-Carlo samples of the predictive distribution"] = 20
    estimator: Annotated[
        Literal["local", "weights"],
        "sample pre-activations, for each example (local reparameterisation), or weights, for each minibatch",
    ] = "local"
    noise: Annotated[
        Generator, "generator of the noise: a hash of places, or JAX's threefry, five times as expensive"
    ] = "hash"
    antithetic: Annotated[
        bool, "the noise of half the samples (or of half the examples) is the negative of the other half's"
    ] = False
    noise_per: Annotated[
        NoisePer,
        "which sampled pre-activations have noise of their own: every example's, every minibatch's, or every "
        "minibatch's for each class",
    ] = "example"
    zero_inputs: Annotated[
        Literal["skip", "train"],
        "inputs that are zero in all examples: leave their weights at the prior, which is optimal, or train them "
        "as the others",
    ] = "train"
    test_softmax: Annotated[
        Literal["head", "all"], "at test time, softmax over the task's head, or over all heads and then restricted"
    ] = "head"
    test_temperature: Annotated[
        float, "T, variances are T σ² at test time: below 1 for surer answers; what is learnt stays the same"
    ] = 1.0
    last_hidden: Annotated[
        Activation, "activation of the last hidden layer: a ReLU, or none, as in the code published with the paper"
    ] = "relu"
    start: Annotated[
        Literal["fresh", "previous"],
        "begin each task at small random means and variances, or at the previous posterior "
        "(the first task then at a maximum-likelihood solution)",
    ] = "fresh"
    prior_std: Annotated[float, "standard deviation of the initial prior N(0, std²)"] = 1.0
    init_std: Annotated[float, "spread of the random means before every task"] = 0.2
    first_init_std: Annotated[
        float | None, "spread of the random means before the first task (default: --init-std)"
    ] = None
    init_log_var: Annotated[float, "log-variances before every task"] = -6.0
    further_epochs: Annotated[
        int | None, "passes over a further batch of a task already begun (default: --epochs)"
    ] = None
    further_schedule: Annotated[
        Literal["constant", "cosine", "plateau"] | None,
        "learning-rate schedule within a further batch (default: --schedule)",
    ] = None
    forgetting: Annotated[float, "ε, how much of the earlier posterior is given up before each batch of data"] = 0.0
    coreset: Annotated[int, "examples of each task set aside, and trained on just before testing"] = 0
    coreset_selection: Annotated[Literal["random", "k-center"], "how the coreset is chosen"] = "random"
    coreset_epochs: Annotated[int, "passes over the coreset before testing (0: as many as epochs)"] = 0

    recipes: ClassVar[Recipes] = RECIPES
    likelihood: ClassVar[Likelihood] = Categorical()
    """p(y | outputs of the network)."""

    def __post_init__(self) -> None:
        Settings.__post_init__(self)
        check_positive(self, "train_samples", "test_samples", "test_temperature", "prior_std", "variance_rate")
        check_not_negative(self, "init_std", "coreset", "coreset_epochs")
        check_fraction(self, "forgetting")
        for name in ("first_init_std", "further_epochs"):
            if getattr(self, name) is not None:
                check_positive(self, name)
        if self.estimator == "weights" and (self.noise_per != "example" or self.antithetic):
            raise VclError(
                "--noise-per and --antithetic are about sampled pre-activations, and --estimator weights samples "
                "weights: leave --noise-per at example and --antithetic out, or use --estimator local."
            )
        if self.last_hidden == "linear" and self.network != "mlp":
            raise VclError(
                "--last-hidden linear is for --network mlp. In Python, say it in the network: "
                'Dense(100, activation="linear").'
            )
        if self.zero_inputs == "skip" and not self.architecture.is_dense:
            raise VclError(
                "--zero-inputs skip leaves inputs of a dense layer out, and a convolution uses the same weights for "
                "all inputs. Use --zero-inputs train, or --network mlp."
            )

    @property
    def architecture(self) -> Network:
        """The network without its weights."""
        return super().architecture if self.last_hidden == "relu" else MLP(self.hidden, self.last_hidden)

    @property
    def family(self) -> MeanField:
        """The posterior family, with its noise."""
        return MeanField(self.noise, self.antithetic, self.noise_per)

    @property
    def skips_zero_inputs(self) -> bool:
        return self.zero_inputs == "skip"

    def init(self, key: Key[Array, ""], spec: StreamSpec) -> VCLState:
        """q_0: the prior N(0, prior_std²) on every weight and bias."""
        memory.check_size(self.coreset, spec)
        posterior = self.family.prior(zeros(self.architecture, spec), self.prior_std)
        return VCLState(posterior, jnp.zeros(spec.num_heads, bool), memory.empty(spec, self.coreset))

    def observe(self, key: Key[Array, ""], state: VCLState, task: Task, data: Data, fit: Fit) -> VCLState:
        """Equation 1: maximise L_t from a start of our choice; q_{t-1} is the prior."""
        coreset_key, start_key, fit_key = jax.random.split(key, 3)
        coreset, data = memory.set_aside(coreset_key, state.coreset, task.index, data, self.coreset_selection)
        prior = self.prior(state, task)
        start = self.starting_point(start_key, state, task, data, fit)
        epochs, schedule = self.lengths(task)
        posterior = self.minimise(fit_key, "train", start, prior, data, fit, epochs, schedule)
        return VCLState(
            replace_head(state.posterior, task.head, posterior), state.trained.at[task.head].set(True), coreset
        )

    def lengths(self, task: Task) -> tuple[int, str]:
        """The epochs and the learning-rate schedule of a task's first batch, or of a further one."""
        if task.batch:
            return self.further_epochs or self.epochs, self.further_schedule or self.schedule
        return self.epochs, self.schedule

    def prior(self, state: VCLState, task: Task) -> Gaussian:
        """q_{t-1}; for data that drift q_{t-1}^(1-ε) q_0^ε, whose precision fades towards the first prior's."""
        q = completed(select_head(state.posterior, task.head), 2.0 * math.log(self.prior_std))
        return (
            partly_forgotten(q, self.family.prior(q.mean, self.prior_std), self.forgetting) if self.forgetting else q
        )

    def readout(self, key: Key[Array, ""], state: VCLState, task: Task, fit: Fit) -> Gaussian | AllHeads:
        """The posterior, refined on the coreset: per task where each has its head, merged where all share one."""
        posterior = self.refined(key, state, task, fit)
        if self.test_softmax == "head" or len(state.trained) == 1:
            return self.tempered(posterior)
        return AllHeads(self.tempered(replace_head(state.posterior, task.head, posterior)), jnp.int32(task.head))

    def tempered(self, q: Gaussian) -> Gaussian:
        """q with variances T σ²."""
        if self.test_temperature == 1.0:
            return q
        return Gaussian(q.mean, jax.tree.map(lambda v: v + math.log(self.test_temperature), q.log_var))

    def refined(self, key: Key[Array, ""], state: VCLState, task: Task, fit: Fit) -> Gaussian:
        """The posterior of a task, after training on its coreset."""
        posterior = select_head(state.posterior, task.head)
        data = memory.for_readout(state.coreset, state.trained.shape[0], task.index)
        if int(data.size) == 0:
            return posterior
        epochs = self.coreset_epochs or self.epochs
        key = jax.random.fold_in(key, task.head)
        start = completed(posterior, self.init_log_var)
        prior = completed(posterior, 2.0 * math.log(self.prior_std))
        return self.minimise(key, f"coreset-{task.head + 1}", start, prior, data, fit, epochs, self.schedule)

    def predict(
        self, key: Key[Array, ""], params: Gaussian | AllHeads, inputs: Shaped[Array, "n d"]
    ) -> Float[Array, "s n c"]:
        """log p(y | x, θ_s) for θ_s ~ q; their average over s is the predictive distribution."""
        if isinstance(params, AllHeads):
            return self.predict_among_all(key, params, inputs)
        return self.likelihood.parameters(self.logits(key, params, inputs, self.test_samples))

    def predict_among_all(
        self, key: Key[Array, ""], params: AllHeads, inputs: Shaped[Array, "n d"]
    ) -> Float[Array, "1 n c"]:
        """Probabilities over all heads, averaged over samples, then restricted to the task's head.

        Restricted before the average they would be those of the head alone: so there is one row, for all samples.
        """
        q = completed(params.posterior, self.init_log_var)
        log_probs = jax.nn.log_softmax(self.logits(key, wide(q), inputs, self.test_samples))
        average = jax.nn.logsumexp(log_probs, axis=0) - math.log(self.test_samples)
        return jax.nn.log_softmax(by_head(q.mean, average)[:, params.head])[None]

    def logits(
        self, key: Key[Array, ""], q: Gaussian, inputs: Shaped[Array, "n d"], num_samples: int
    ) -> Float[Array, "s n c"]:
        """Draws of the network's outputs, by the chosen estimator."""
        return LOGITS[self.estimator](key, q, pixels(inputs), num_samples, self.family)

    def footprint(self, state: VCLState) -> Footprint:
        """Every weight has a mean and a variance."""
        return Footprint(size(state.posterior), int(state.coreset.filled.sum()))

    def minimise(
        self,
        key: Key[Array, ""],
        name: str,
        start: Gaussian,
        prior: Gaussian,
        data: Data,
        fit: Fit,
        epochs: int,
        schedule: str,
    ) -> Gaussian:
        step = Adam(self.nelbo, self.learning_rate, schedule, self.slow_variances)
        sizes = {"epochs": epochs, "batch_size": self.batch_size}
        if self.skips_zero_inputs:
            return fit_used(fit, key, name, step, start, prior, prior, data, **sizes)
        return fit(key, name, step, start, prior, data, **sizes)

    def slow_variances(self, q: Gaussian, direction: Gaussian) -> Gaussian:
        return Gaussian(direction.mean, jax.tree.map(lambda d: self.variance_rate * d, direction.log_var))

    def nelbo(self, key: Key[Array, ""], q: Gaussian, prior: Gaussian, batch: Batch) -> Float[Array, ""]:
        """-L_t / N_t, estimated on a minibatch."""
        loss = self.expected(
            key, q, batch, lambda outputs: masked_mean(self.likelihood.loss(outputs, batch.labels), batch.mask)
        )
        return loss + self.divergence(q, prior) / batch.size

    def expected(
        self,
        key: Key[Array, ""],
        q: Gaussian,
        batch: Batch,
        loss: Callable[[Float[Array, "s n c"]], Float[Array, ""]],
    ) -> Float[Array, ""]:
        """The mean of a loss over the training samples."""
        samples = self.train_samples
        # All at once, where that is as fast; and with threefry, so that runs of earlier versions stay the same.
        if samples == 1 or self.estimator == "weights" or self.noise == "threefry" or not self.architecture.is_dense:
            return loss(self.logits(key, q, batch.inputs, samples))
        return expected_loss(key, q, pixels(batch.inputs), samples, self.family, loss)

    def divergence(self, q: Gaussian, prior: Gaussian) -> Float[Array, ""]:
        """KL(q_t ‖ q_{t-1})."""
        return self.family.kl(q, prior)

    def starting_point(self, key: Key[Array, ""], state: VCLState, task: Task, data: Data, fit: Fit) -> Gaussian:
        """Where the optimisation of a task begins."""
        previous = completed(select_head(state.posterior, task.head), self.init_log_var)
        if task.batch:
            return previous
        first = not bool(state.trained.any())
        fresh = self.fresh(key, previous.mean, first=first)
        if self.start == "fresh":
            return fresh
        if first:
            step = Adam(self.maximum_likelihood_loss, self.learning_rate, self.schedule)
            mean = fit(
                key,
                "maximum-likelihood",
                step,
                fresh.mean,
                None,
                data,
                epochs=self.epochs,
                batch_size=self.batch_size,
            )
            return Gaussian(mean, fresh.log_var)
        if not bool(state.trained[task.head]):
            return jax.tree.map(
                lambda old, new: dataclasses.replace(old, head=new.head),
                previous,
                fresh,
                is_leaf=lambda node: isinstance(node, Weights),
            )
        return previous

    def fresh(self, key: Key[Array, ""], like: Weights, *, first: bool = False) -> Gaussian:
        """Random means, small variances."""
        std = self.first_init_std if first and self.first_init_std is not None else self.init_std
        return self.family.fresh(key, like, std, self.init_log_var)

    def maximum_likelihood_loss(
        self, key: Key[Array, ""], network: Weights, args: None, batch: Batch
    ) -> Float[Array, ""]:
        return masked_mean(self.likelihood.loss(logits(network, pixels(batch.inputs)), batch.labels), batch.mask)


@jax.jit
def completed(q: Gaussian, log_var: Scalar) -> Gaussian:
    """q with a variance for the weights that have none: those out of units that vcl.analysis.widen added."""
    return Gaussian(q.mean, jax.tree.map(lambda v: jnp.where(jnp.isneginf(v), log_var, v), q.log_var))
