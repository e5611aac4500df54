"""What continual learning is measured against: a network for each task, and one that sees all tasks at once.

*Separate*: each task has a learner of its own, which knows of no other: no forgetting and no transfer.

*Joint*: at every stage a new network learns all that came so far, of all tasks together: the upper bound. Its stream
is `vcl.benchmarks.joint(stream)`, where an example's label also tells its head, head · classes + label, and the
loss is the cross entropy within that head: -(1/N) Σ_n log p(y_n | x_n, θ, head_n), N counting all tasks' examples.
"""

import dataclasses
from dataclasses import dataclass
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key, PyTree

from vcl.core import Fit, Footprint, Params, State, StreamSpec, Task, size
from vcl.errors import VclError
from vcl.gaussian import Gaussian, isotropic, kl
from vcl.methods.finetune import Finetune
from vcl.methods.point import PointLearner, recipes
from vcl.methods.vcl import LOGITS, VCL
from vcl.networks import (
    MLP,
    by_head,
    cross_entropy,
    logits_by_head,
    pixels,
    random,
    random_like,
    select_head,
    wide,
    zeros,
)
from vcl.training import Adam, Batch, Data, masked_mean

ALONE = Task(0, 0)


def with_epochs(recipe: dict[str, dict[str, Any]], **epochs: int) -> dict[str, dict[str, Any]]:
    """A recipe with other numbers of epochs for some families of benchmarks."""
    return {**recipe, **{family: {**recipe[family], "epochs": number} for family, number in epochs.items()}}


def separate(base: type[Any], doc: str, recipe: dict[str, dict[str, Any]]) -> type[Any]:
    """A learner of kind `base` for each task by itself; its state stacks one whole state of theirs per task.

    It must be bound to its name, Separate and that of `base`, in this module: processes find it there.
    """

    @dataclass(frozen=True)
    class Separate(base):  # type: ignore[misc]
        __doc__ = doc
        recipes: ClassVar[dict[str, dict[str, dict[str, Any]]]] = {"fast": recipe}
        told_the_task: ClassVar[bool] = True

        def init(self, key: Key[Array, ""], spec: StreamSpec) -> State:
            if spec.scenario == "class":
                raise VclError(
                    "In the class scenario nothing tells which of the separate networks to ask: the task is to be "
                    "found out. Use --scenario task or domain, or compare with --method joint."
                )
            alone = dataclasses.replace(spec, heads=(0,))
            slots = [base.init(self, slot_key(key, t), alone) for t in range(spec.num_tasks)]
            return jax.tree.map(lambda *leaves: jnp.stack(leaves), *slots)

        def observe(self, key: Key[Array, ""], state: State, task: Task, data: Data, fit: Fit) -> State:
            learnt = base.observe(self, key, slot(state, task), ALONE, data, fit)
            return jax.tree.map(lambda whole, one: whole.at[task.index].set(one), state, learnt)

        def readout(self, key: Key[Array, ""], state: State, task: Task, fit: Fit) -> Params:
            def own_fit(key: Key[Array, ""], name: str, *args: Any, **settings: Any) -> PyTree:
                # One fitter serves the read-outs of all tasks, which would otherwise share the name.
                return fit(key, f"{name}-{task.index + 1}", *args, **settings)

            return base.readout(self, key, slot(state, task), ALONE, own_fit)

    Separate.__name__ = Separate.__qualname__ = f"Separate{base.__name__}"
    return Separate


def slot_key(key: Key[Array, ""], task: int) -> Key[Array, ""]:
    """With what a task's own learner begins."""
    return jax.random.fold_in(key, task)


def slot(state: State, task: Task) -> State:
    """The state of a task's own learner."""
    return jax.tree.map(lambda leaf: leaf[task.index], state)


SeparateFinetune = separate(
    Finetune,
    "A network for each task by itself (a reference: no forgetting, no transfer).",
    Finetune.recipes["fast"],
)
SeparateVCL = separate(
    VCL,
    "A Bayesian network for each task by itself (a reference: no forgetting, no transfer).",
    # Nothing has to be remembered, so a posterior that predicts well is enough.
    with_epochs(VCL.recipes["fast"], permuted=20),
)


class JointState(eqx.Module):
    network: MLP
    examples: Int[Array, ""]
    """How many there are so far, of all tasks."""


@dataclass(frozen=True)
class Joint(PointLearner):
    """Joint training: all tasks so far together, from a new start at every stage (the upper reference)."""

    recipes: ClassVar[dict[str, dict[str, dict[str, Any]]]] = recipes(
        split={"schedule": "cosine"},
        permuted={"epochs": 15, "batch_size": 512, "learning_rate": 0.003, "schedule": "cosine"},
    )
    joint: ClassVar[bool] = True

    def init(self, key: Key[Array, ""], spec: StreamSpec) -> JointState:
        return JointState(random(key, self.hidden, spec), jnp.int32(0))

    def observe(self, key: Key[Array, ""], state: JointState, task: Task, data: Data, fit: Fit) -> JointState:
        start = random_like(jax.random.fold_in(key, 1), state.network)
        step = Adam(self.loss, self.learning_rate, self.schedule)
        network = fit(key, "train", step, start, None, data, epochs=self.epochs, batch_size=self.batch_size)
        return JointState(network, data.size)

    def readout(self, key: Key[Array, ""], state: JointState, task: Task, fit: Fit) -> MLP:
        return select_head(state.network, task.head)

    def footprint(self, state: JointState) -> Footprint:
        return Footprint(size(state.network), int(state.examples))

    def loss(self, key: Key[Array, ""], network: MLP, args: None, batch: Batch) -> Float[Array, ""]:
        outputs = logits_by_head(network, pixels(batch.inputs))
        return masked_mean(cross_entropy_in_head(outputs, batch.labels), batch.mask)


class JointVCLState(eqx.Module):
    posterior: Gaussian
    examples: Int[Array, ""]
    """How many there are so far, of all tasks."""


@dataclass(frozen=True)
class JointVCL(VCL):
    """Joint variational inference: one posterior from all tasks so far (the upper reference of VCL)."""

    recipes: ClassVar[dict[str, dict[str, dict[str, Any]]]] = {
        # A stage brings all tasks, so that a pass over the data is worth as many of VCL's as there are tasks.
        "fast": with_epochs(VCL.recipes["fast"], split=10, permuted=6)
    }
    joint: ClassVar[bool] = True

    def __post_init__(self) -> None:
        VCL.__post_init__(self)
        if self.coreset or self.start != "fresh":
            raise VclError(
                "Joint training sees all examples at every stage and begins anew: leave --coreset at 0 and --start "
                "at fresh, or use --method vcl."
            )

    def init(self, key: Key[Array, ""], spec: StreamSpec) -> State:
        return JointVCLState(isotropic(zeros(self.hidden, spec), 0.0, self.prior_std), jnp.int32(0))

    def observe(self, key: Key[Array, ""], state: State, task: Task, data: Data, fit: Fit) -> State:
        prior = isotropic(state.posterior.mean, 0.0, self.prior_std)
        start = self.fresh(jax.random.fold_in(key, 1), prior.mean)
        return JointVCLState(self.minimise(key, "train", start, prior, data, fit, self.epochs), data.size)

    def readout(self, key: Key[Array, ""], state: State, task: Task, fit: Fit) -> Gaussian:
        return select_head(state.posterior, task.head)

    def footprint(self, state: State) -> Footprint:
        return Footprint(size(state.posterior), int(state.examples))

    def nelbo(self, key: Key[Array, ""], q: Gaussian, prior: Gaussian, batch: Batch) -> Float[Array, ""]:
        """-L / N, with the likelihood of each example under its own head."""
        outputs = by_head(q.mean, LOGITS[self.estimator](key, wide(q), pixels(batch.inputs), self.train_samples))
        return masked_mean(cross_entropy_in_head(outputs, batch.labels), batch.mask) + kl(q, prior) / batch.size


def cross_entropy_in_head(outputs: Float[Array, "*s n heads c"], labels: Int[Array, "n"]) -> Float[Array, "*s n"]:
    """-log p(y | x, head) for labels head · classes + y: only the example's own head has to answer."""
    heads, within = jnp.divmod(labels, outputs.shape[-1])
    return cross_entropy(outputs[..., jnp.arange(len(labels)), heads, :], within)
