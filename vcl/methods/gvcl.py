"""Generalised variational continual learning (Loo, Swaroop & Turner, 2020): VCL with two knobs, and FiLM layers.

Every task maximises

    Σ_n E_q [log p(y_n | θ, x_n)] - β KL_λ(q_t ‖ q_{t-1}),

where KL_λ is the divergence between Gaussians with the change of the means weighted by λ (Λ_{t-1} - Λ_0) + Λ_0
instead of the earlier precision Λ_{t-1}. β = λ = 1 is VCL. As β → 0 the posterior narrows onto a point, its
precision grows to the curvature over β, and what is left is online EWC with strength λ.

FiLM layers (Perez et al., 2018), a scale and a shift of each hidden unit's pre-activation for each task, let a task
switch units off and on without touching the shared posterior. They are point estimates, and need to know the task.
"""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Key, Shaped

from vcl import memory
from vcl.core import Fit, Footprint, StreamSpec, Task, size
from vcl.errors import VclError
from vcl.memory import Memory
from vcl.methods.base.settings import Recipes, check_not_negative, check_positive
from vcl.methods.base.zero_inputs import fit_used
from vcl.methods.vcl import FAST_PERMUTED, FAST_SPLIT, VCL, VCLState
from vcl.nets import cross_entropy, pixels, replace_head, select_head
from vcl.posteriors.mean_field import Gaussian, MeanField, kl, logits_local, total
from vcl.training import Adam, Batch, Data, masked_mean


class Film(eqx.Module):
    """A scale and a shift for each unit of one hidden layer; stacked over heads in a state."""

    scale: Float[Array, "*heads units"]
    shift: Float[Array, "*heads units"]


class Modulated(eqx.Module):
    """What answers for one task: the posterior, and the task's FiLM layers."""

    posterior: Gaussian
    film: tuple[Film, ...]


class GVCLState(eqx.Module):
    posterior: Gaussian
    trained: Bool[Array, "heads"]
    """Which heads have seen data."""
    coreset: Memory
    """The examples set aside."""
    film: tuple[Film, ...]
    """Of each hidden layer, for each head; none without FiLM layers, or where tasks share their head."""


GVCL_SPLIT = {**FAST_SPLIT, "start": "previous", "temperature": 0.1, "strength": 10.0, "film": True}
GVCL_PERMUTED = {**FAST_PERMUTED, "start": "previous", "temperature": 0.1, "strength": 5.0, "prior_std": 1.0}


@dataclass(frozen=True)
class GVCL(VCL):
    """Generalised VCL: mean field with a temperature β, a strength λ, and FiLM layers.

    Examples
    --------
    >>> GVCL(temperature=0.1, strength=10.0, film=True).strength
    10.0
    """

    temperature: Annotated[float, "β, the weight of the KL divergence (1: VCL, towards 0: online EWC)"] = 0.1
    strength: Annotated[float, "λ, the weight of the earlier posterior's pull on the means (1: VCL)"] = 10.0
    film: Annotated[
        bool, "a scale and a shift of every hidden unit for each task, where tasks have their own heads"
    ] = False

    recipes: ClassVar[Recipes] = {
        "fast": {
            "split": {**GVCL_SPLIT, "hidden": (200,), "epochs": 40, "batch_size": 256},
            "permuted": {**GVCL_PERMUTED, "epochs": 50, "batch_size": 1024},
            # The best of the equal search's trials: docs/methods.md.
            "permuted-mnist": {
                **GVCL_PERMUTED,
                "epochs": 50,
                "batch_size": 1024,
                "learning_rate": 0.007,
                "strength": 7.0,
                "temperature": 0.2,
            },
            "split-digits": {**GVCL_SPLIT, "hidden": (50,), "epochs": 100, "batch_size": 64},
            "permuted-digits": {**GVCL_PERMUTED, "epochs": 50, "batch_size": 64},
        },
    }

    def __post_init__(self) -> None:
        VCL.__post_init__(self)
        check_positive(self, "temperature")
        check_not_negative(self, "strength")
        if self.estimator != "local":
            raise VclError("gvcl samples pre-activations: --estimator weights is for vcl. Use --estimator local.")
        if self.test_softmax != "head":
            raise VclError("gvcl predicts with one head: --test-softmax all is for vcl. Use --test-softmax head.")

    def init(self, key: Key[Array, ""], spec: StreamSpec) -> GVCLState:  # type: ignore[override]
        base = VCL.init(self, key, spec)
        units = (
            [layer.bias.shape[-1] for layer in base.posterior.mean.body]
            if self.film and spec.scenario == "task"
            else []
        )
        film = tuple(Film(jnp.ones((spec.num_heads, u)), jnp.zeros((spec.num_heads, u))) for u in units)
        return GVCLState(base.posterior, base.trained, base.coreset, film)

    def observe(  # type: ignore[override]
        self, key: Key[Array, ""], state: GVCLState, task: Task, data: Data, fit: Fit
    ) -> GVCLState:
        coreset_key, start_key, fit_key = jax.random.split(key, 3)
        coreset, data = memory.set_aside(coreset_key, state.coreset, task.index, data, self.coreset_selection)
        base = VCLState(state.posterior, state.trained, state.coreset)
        start = Modulated(self.starting_point(start_key, base, task, data, fit), film_of(state, task.head))
        epochs, schedule = self.lengths(task)
        found = self.modulate(fit_key, "train", start, self.prior(base, task), data, fit, epochs, schedule)
        return GVCLState(
            replace_head(state.posterior, task.head, found.posterior),
            state.trained.at[task.head].set(True),
            coreset,
            jax.tree.map(lambda a, b: a.at[task.head].set(b), state.film, found.film),
        )

    def readout(  # type: ignore[override]
        self, key: Key[Array, ""], state: GVCLState, task: Task, fit: Fit
    ) -> Modulated:
        """The posterior with the task's FiLM layers, refined on the coreset as in VCL."""
        params = Modulated(select_head(state.posterior, task.head), film_of(state, task.head))
        data = memory.for_readout(state.coreset, state.trained.shape[0], task.index)
        if int(data.size):
            key, name = jax.random.fold_in(key, task.head), f"coreset-{task.head + 1}"
            epochs = self.coreset_epochs or self.epochs
            params = self.modulate(key, name, params, params.posterior, data, fit, epochs, self.schedule)
        return Modulated(self.tempered(params.posterior), params.film)

    def predict(  # type: ignore[override]
        self, key: Key[Array, ""], params: Modulated, inputs: Shaped[Array, "n d"]
    ) -> Float[Array, "s n c"]:
        return jax.nn.log_softmax(modulated_logits(self.family, key, params, pixels(inputs), self.test_samples))

    def footprint(self, state: Any) -> Footprint:
        return Footprint(size((state.posterior, state.film)), int(state.coreset.filled.sum()))

    def modulate(
        self,
        key: Key[Array, ""],
        name: str,
        start: Modulated,
        prior: Gaussian,
        data: Data,
        fit: Fit,
        epochs: int,
        schedule: str,
    ) -> Modulated:
        step = Adam(self.objective, self.learning_rate, schedule, self.slow)
        sizes = {"epochs": epochs, "batch_size": self.batch_size}
        if self.skips_zero_inputs:
            rest = Modulated(prior, start.film)
            return fit_used(fit, key, name, step, start, prior, rest, data, **sizes)
        return fit(key, name, step, start, prior, data, **sizes)

    def slow(self, params: Modulated, direction: Modulated) -> Modulated:
        return Modulated(self.slow_variances(params.posterior, direction.posterior), direction.film)

    def objective(self, key: Key[Array, ""], params: Modulated, prior: Gaussian, batch: Batch) -> Float[Array, ""]:
        """The negative objective over N, estimated on a minibatch."""
        outputs = modulated_logits(self.family, key, params, pixels(batch.inputs), self.train_samples)
        nll = masked_mean(cross_entropy(outputs, batch.labels), batch.mask)
        return nll + self.divergence(params.posterior, prior) / batch.size

    def divergence(self, q: Gaussian, prior: Gaussian) -> Float[Array, ""]:
        """β KL_λ(q_t ‖ q_{t-1})."""
        return self.temperature * (kl(q, prior) + extra_pull(q, prior, self.strength, self.prior_std**-2.0))


def extra_pull(q: Gaussian, prior: Gaussian, strength: float, first_precision: float) -> Float[Array, ""]:
    """What KL_λ has beyond the KL divergence: ½ (λ - 1) Σ (Λ_{t-1} - Λ_0) (μ_t - μ_{t-1})².

    A weight whose precision is below the first prior's is not pushed away from its mean: its term is zero.
    """
    return total(
        lambda m, n, v: 0.5 * (strength - 1.0) * jnp.maximum(jnp.exp(-v) - first_precision, 0.0) * (m - n) ** 2,
        q.mean,
        prior.mean,
        prior.log_var,
    )


def film_of(state: GVCLState, head: int) -> tuple[Film, ...]:
    """The FiLM layers of one task."""
    return jax.tree.map(lambda a: a[head], state.film)


def modulated_logits(
    family: MeanField, key: Key[Array, ""], params: Modulated, inputs: Float[Array, "n d"], num_samples: int
) -> Float[Array, "s n c"]:
    """Local reparameterisation, with each hidden unit's pre-activation scaled and shifted."""

    def after(number: int, a: Float[Array, "..."]) -> Float[Array, "..."]:
        return a * params.film[number].scale + params.film[number].shift if number < len(params.film) else a

    return logits_local(key, params.posterior, inputs, num_samples, family, after)
