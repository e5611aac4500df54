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

from vcl.core import Fit, Footprint, Params, State, StreamSpec, Task, check_index, size
from vcl.errors import VclError
from vcl.methods.base.point import PointLearner
from vcl.methods.base.settings import Recipes, family_settings
from vcl.methods.finetune import Finetune
from vcl.methods.vcl import FAST, VCL
from vcl.nets import (
    Weights,
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
from vcl.posteriors import Gaussian
from vcl.training import Adam, Batch, Data, masked_mean

ALONE = Task(0, 0)


def changed(recipe: dict[str, dict[str, Any]], **families: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """A recipe with other settings for some families of benchmarks."""
    return {**recipe, **{family: {**recipe[family], **settings} for family, settings in families.items()}}


def separate(base: type[Any], doc: str, recipe: dict[str, dict[str, Any]]) -> type[Any]:
    """A learner of kind `base` for each task by itself; its state stacks one whole state of theirs per task.

    It must be bound to its name, Separate and that of `base`, in this module: processes find it there.
    """

    @dataclass(frozen=True)
    class Separate(base):  # type: ignore[misc]
        __doc__ = doc
        recipes: ClassVar[Recipes] = {"fast": recipe}
        needs_task_id: ClassVar[bool] = True

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
            alone = dataclasses.replace(ALONE, batch=task.batch)
            learnt = base.observe(self, key, slot(state, task), alone, data, fit)
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
    check_index("task", task.index, len(jax.tree.leaves(state)[0]))
    return jax.tree.map(lambda leaf: leaf[task.index], state)


SeparateFinetune = separate(
    Finetune,
    "A network for each task by itself (a reference: no forgetting, no transfer).",
    family_settings(
        split={},
        permuted={},
        split_mnist={"learning_rate": 0.0053},
        permuted_mnist={"learning_rate": 0.0068, "schedule": "cosine"},
    ),
)
# Nothing has to be remembered, so a posterior that predicts well is enough.
SHORT_ALONE = changed(FAST, permuted={"epochs": 20, "test_temperature": 1.0})
SeparateVCL = separate(
    VCL,
    "A Bayesian network for each task by itself (a reference: no forgetting, no transfer).",
    {
        **SHORT_ALONE,
        "permuted-mnist": {
            **SHORT_ALONE["permuted"],
            "learning_rate": 0.0089,
            "prior_std": 0.92,
            "variance_rate": 0.32,
        },
    },
)


class JointState(eqx.Module):
    network: Weights
    examples: Int[Array, ""]
    """How many there are so far, of all tasks."""


@dataclass(frozen=True)
class Joint(PointLearner):
    """Joint training: all tasks so far together, from a new start at every stage (the upper reference)."""

    recipes: ClassVar[Recipes] = {
        "fast": family_settings(
            split={"schedule": "cosine"},
            permuted={"epochs": 15, "batch_size": 512, "learning_rate": 0.003, "schedule": "cosine"},
            split_mnist={"learning_rate": 0.0036},
            permuted_mnist={"learning_rate": 0.0055},
        )
    }
    joint: ClassVar[bool] = True

    def init(self, key: Key[Array, ""], spec: StreamSpec) -> JointState:
        return JointState(random(key, self.architecture, spec), jnp.int32(0))

    def observe(self, key: Key[Array, ""], state: JointState, task: Task, data: Data, fit: Fit) -> JointState:
        check_index("head", task.head, len(state.network.head.bias))
        start = random_like(jax.random.fold_in(key, 1), state.network)
        step = Adam(self.loss, self.learning_rate, self.schedule)
        network = fit(key, "train", step, start, None, data, epochs=self.epochs, batch_size=self.batch_size)
        return JointState(network, data.size)

    def readout(self, key: Key[Array, ""], state: JointState, task: Task, fit: Fit) -> Weights:
        return select_head(state.network, task.head)

    def footprint(self, state: JointState) -> Footprint:
        return Footprint(size(state.network), int(state.examples))

    def loss(self, key: Key[Array, ""], network: Weights, args: None, batch: Batch) -> Float[Array, ""]:
        outputs = logits_by_head(network, pixels(batch.inputs))
        return masked_mean(cross_entropy_in_head(outputs, batch), batch.mask)


class JointVCLState(eqx.Module):
    posterior: Gaussian
    examples: Int[Array, ""]
    """How many there are so far, of all tasks."""


# A stage brings all tasks, so that a pass over the data is worth as many of VCL's as there are tasks.
SHORT = changed(
    FAST,
    split={"epochs": 10},
    permuted={"epochs": 6, "test_temperature": 1.0},
    real={"epochs": 20, "start": "fresh"},
)


@dataclass(frozen=True)
class JointVCL(VCL):
    """Joint variational inference: one posterior from all tasks so far (the upper reference of VCL)."""

    recipes: ClassVar[Recipes] = {
        "fast": {
            **SHORT,
            "split-mnist": {**SHORT["split"], "learning_rate": 0.0049, "variance_rate": 0.26, "init_std": 0.11},
            "permuted-mnist": {
                **SHORT["permuted"],
                "learning_rate": 0.0074,
                "prior_std": 0.84,
                "variance_rate": 0.35,
            },
        }
    }
    joint: ClassVar[bool] = True

    def __post_init__(self) -> None:
        VCL.__post_init__(self)
        if self.coreset or self.forgetting or self.start != "fresh" or self.test_softmax != "head":
            raise VclError(
                "Joint training sees all examples at every stage, begins anew and predicts with the task's head: "
                "leave --coreset and --forgetting at 0, --start at fresh and --test-softmax at head, or use "
                "--method vcl."
            )
        if (self.first_init_std, self.further_epochs, self.further_schedule) != (None, None, None):
            raise VclError(
                "Joint training begins every stage alike: leave --first-init-std, --further-epochs and "
                "--further-schedule out, or use --method vcl."
            )

    def init(self, key: Key[Array, ""], spec: StreamSpec) -> State:
        return JointVCLState(self.family.prior(zeros(self.architecture, spec), self.prior_std), jnp.int32(0))

    def observe(self, key: Key[Array, ""], state: State, task: Task, data: Data, fit: Fit) -> State:
        check_index("head", task.head, len(state.posterior.mean.head.bias))
        prior = self.family.prior(state.posterior.mean, self.prior_std)
        start = self.fresh(jax.random.fold_in(key, 1), prior.mean)
        return JointVCLState(
            self.minimise(key, "train", start, prior, data, fit, self.epochs, self.schedule), data.size
        )

    def readout(self, key: Key[Array, ""], state: State, task: Task, fit: Fit) -> Gaussian:
        return self.tempered(select_head(state.posterior, task.head))

    def footprint(self, state: State) -> Footprint:
        return Footprint(size(state.posterior), int(state.examples))

    def nelbo(self, key: Key[Array, ""], q: Gaussian, prior: Gaussian, batch: Batch) -> Float[Array, ""]:
        """-L / N, with the likelihood of each example under its own head."""

        def loss(outputs: Float[Array, "s n wide"]) -> Float[Array, ""]:
            return masked_mean(cross_entropy_in_head(by_head(q.mean, outputs), batch), batch.mask)

        return self.expected(key, wide(q), batch, loss) + self.family.kl(q, prior) / batch.size


def cross_entropy_in_head(outputs: Float[Array, "*s n heads c"], batch: Batch) -> Float[Array, "*s n"]:
    """-log p(y | x, head): only the example's own head has to answer."""
    return cross_entropy(outputs[..., jnp.arange(len(batch.labels)), batch.groups, :], batch.labels)
