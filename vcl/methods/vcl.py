"""Variational continual learning (Swaroop et al., 2019; Nguyen et al., 2018).

For every task t the posterior q_t maximises equation 1 of the paper,

    L_t(q_t) = Σ_n E_{θ ~ q_t} [log p(y_n | θ, x_n)] - KL(q_t(θ) ‖ q_{t-1}(θ)),

over mean-field Gaussians: yesterday's posterior is today's prior.

A new task starts its optimisation afresh: that pushes it onto unused units, and forgets less than a start at the old
posterior. A further batch of the same task starts at the posterior of the batch before, of which it is a part.
"""

import dataclasses
import math
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Key, Shaped

from vcl import memory
from vcl.core import Fit, Footprint, StreamSpec, Task, size
from vcl.errors import VclError
from vcl.memory import Memory
from vcl.methods.base.point import negative_log_likelihood
from vcl.methods.base.settings import Recipes, Settings, check_not_negative, check_positive
from vcl.nets import Weights, cross_entropy, pixels, replace_head, select_head, zeros
from vcl.posteriors import MeanField
from vcl.posteriors.mean_field import Gaussian, logits_local, logits_weight_sampled
from vcl.training import Adam, Batch, Data, masked_mean

FAMILY = MeanField()
LOGITS = {"local": logits_local, "weights": logits_weight_sampled}

EQUAL_RATES = {"variance_rate": 1.0, "init_std": 0.1}
PAPER = {**EQUAL_RATES, "learning_rate": 0.005, "schedule": "constant", "train_samples": 10, "test_samples": 20}
PREVIOUS = {**PAPER, "learning_rate": 0.001, "batch_size": 256, "estimator": "weights", "start": "previous"}
FAST_SPLIT = {"learning_rate": 0.01, "schedule": "cosine", "variance_rate": 0.3, "init_std": 0.2}
PERMUTED = {**EQUAL_RATES, "hidden": (100, 100), "learning_rate": 0.005, "schedule": "plateau"}
FAST_PERMUTED = {**PERMUTED, "prior_std": 0.3}
# Under a wide prior and from a wide start the first batch, however small, leaves variances that the data decided.
ONLINE_PERMUTED = {**PERMUTED, "further_schedule": "cosine", "prior_std": 1.0, "first_init_std": 1.0}

RECIPES: Recipes = {
    # Chosen on validation data: docs/recipes.md has the search and its outcome.
    "fast": {
        "split": {**FAST_SPLIT, "hidden": (200,), "epochs": 40, "batch_size": 256},
        "permuted": {**FAST_PERMUTED, "epochs": 100, "batch_size": 1024},
        "split-digits": {**FAST_SPLIT, "hidden": (50,), "epochs": 100, "batch_size": 64},
        "permuted-digits": {**FAST_PERMUTED, "epochs": 100, "batch_size": 64},
    },
    # For data that arrive in batches of the same task: docs/recipes.md.
    "online": {
        "split": {**FAST_SPLIT, "hidden": (200,), "epochs": 40, "batch_size": 256},
        "permuted": {**ONLINE_PERMUTED, "epochs": 100, "further_epochs": 30, "batch_size": 256},
        "split-digits": {**FAST_SPLIT, "hidden": (50,), "epochs": 100, "batch_size": 64},
        "permuted-digits": {**ONLINE_PERMUTED, "epochs": 400, "further_epochs": 100, "batch_size": 64},
    },
    # Section 3.1 of the paper, with the published code's rate, samples and batches.
    "paper": {
        "split": {**PAPER, "hidden": (200,), "epochs": 600, "batch_size": 256},
        "permuted": {**PAPER, "hidden": (100, 100), "epochs": 800, "batch_size": 1024},
    },
    # VCL as it was before the paper (Nguyen et al., 2018), at the paper's capacity.
    "previous": {
        "split": {**PREVIOUS, "hidden": (200,), "epochs": 120},
        "permuted": {**PREVIOUS, "hidden": (100, 100), "epochs": 100},
    },
}


class VCLState(eqx.Module):
    posterior: Gaussian
    trained: Bool[Array, "heads"]
    """Which heads have seen data."""
    coreset: Memory
    """The examples set aside."""


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
    coreset: Annotated[int, "examples of each task set aside, and trained on just before testing"] = 0
    coreset_selection: Annotated[Literal["random", "k-center"], "how the coreset is chosen"] = "random"
    coreset_epochs: Annotated[int, "passes over the coreset before testing (0: as many as epochs)"] = 0

    recipes: ClassVar[Recipes] = RECIPES

    def __post_init__(self) -> None:
        Settings.__post_init__(self)
        check_positive(self, "train_samples", "test_samples", "prior_std", "variance_rate")
        check_not_negative(self, "init_std", "coreset", "coreset_epochs")
        for name in ("first_init_std", "further_epochs"):
            if getattr(self, name) is not None:
                check_positive(self, name)

    def init(self, key: Key[Array, ""], spec: StreamSpec) -> VCLState:
        """q_0: the prior N(0, prior_std²) on every weight and bias."""
        if self.coreset >= spec.capacity:
            raise VclError(
                f"A coreset of {self.coreset} examples cannot be taken from tasks of at most {spec.capacity}. "
                "Choose a smaller --coreset."
            )
        posterior = FAMILY.prior(zeros(self.architecture, spec), self.prior_std)
        return VCLState(posterior, jnp.zeros(spec.num_heads, bool), memory.empty(spec, self.coreset))

    def observe(self, key: Key[Array, ""], state: VCLState, task: Task, data: Data, fit: Fit) -> VCLState:
        """Equation 1: maximise L_t from a start of our choice; q_{t-1} is the prior."""
        coreset_key, start_key, fit_key = jax.random.split(key, 3)
        coreset, data = self.set_aside(coreset_key, state.coreset, task, data)
        prior = completed(select_head(state.posterior, task.head), 2.0 * math.log(self.prior_std))
        start = self.starting_point(start_key, state, task, data, fit)
        epochs, schedule = self.epochs, self.schedule
        if task.batch:
            epochs, schedule = self.further_epochs or epochs, self.further_schedule or schedule
        posterior = self.minimise(fit_key, "train", start, prior, data, fit, epochs, schedule)
        return VCLState(
            replace_head(state.posterior, task.head, posterior), state.trained.at[task.head].set(True), coreset
        )

    def readout(self, key: Key[Array, ""], state: VCLState, task: Task, fit: Fit) -> Gaussian:
        """The posterior, refined on the coreset: per task where each has its head, merged where all share one."""
        posterior = select_head(state.posterior, task.head)
        data = merged(state.coreset, state.trained.shape[0], task)
        if int(data.size) == 0:
            return posterior
        epochs = self.coreset_epochs or self.epochs
        key = jax.random.fold_in(key, task.head)
        start = completed(posterior, self.init_log_var)
        prior = completed(posterior, 2.0 * math.log(self.prior_std))
        return self.minimise(key, f"coreset-{task.head + 1}", start, prior, data, fit, epochs, self.schedule)

    def predict(self, key: Key[Array, ""], params: Gaussian, inputs: Shaped[Array, "n d"]) -> Float[Array, "s n c"]:
        """log p(y | x, θ_s) for θ_s ~ q; their average over s is the predictive distribution."""
        return jax.nn.log_softmax(LOGITS[self.estimator](key, params, pixels(inputs), self.test_samples))

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
        return fit(key, name, step, start, prior, data, epochs=epochs, batch_size=self.batch_size)

    def slow_variances(self, q: Gaussian, direction: Gaussian) -> Gaussian:
        return Gaussian(direction.mean, jax.tree.map(lambda d: self.variance_rate * d, direction.log_var))

    def nelbo(self, key: Key[Array, ""], q: Gaussian, prior: Gaussian, batch: Batch) -> Float[Array, ""]:
        """-L_t / N_t, estimated on a minibatch."""
        outputs = LOGITS[self.estimator](key, q, pixels(batch.inputs), self.train_samples)
        return masked_mean(cross_entropy(outputs, batch.labels), batch.mask) + FAMILY.kl(q, prior) / batch.size

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
        return FAMILY.fresh(key, like, std, self.init_log_var)

    def maximum_likelihood_loss(
        self, key: Key[Array, ""], network: Weights, args: None, batch: Batch
    ) -> Float[Array, ""]:
        return negative_log_likelihood(network, batch)

    def set_aside(self, key: Key[Array, ""], coreset: Memory, task: Task, data: Data) -> tuple[Memory, Data]:
        """Move a few examples out of the data, into the coreset, until it holds its share for this task."""
        wanted = min(memory.room(coreset, task.index), int(data.size) - 1)
        if wanted <= 0:
            return coreset, data
        rows = memory.SELECTIONS[self.coreset_selection](key, data, wanted)
        return memory.add(coreset, task.index, data, rows), memory.remove(data, rows)


def completed(q: Gaussian, log_var: float) -> Gaussian:
    """q with a variance for the weights that have none: those out of units that vcl.analysis.widen added."""
    return Gaussian(q.mean, jax.tree.map(lambda v: jnp.where(jnp.isneginf(v), log_var, v), q.log_var))


def merged(coreset: Memory, num_heads: int, task: Task) -> Data:
    """The part of the coreset that a task's read-out may learn from: its own, or all where there is one head."""
    if num_heads > 1:
        return memory.of_task(coreset, task.index)
    return memory.of_all_tasks(coreset)
