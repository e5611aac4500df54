"""What a stored run can tell of its units: measured after each task, from its checkpoints."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Shaped

from vcl.analysis.units import (
    TOLERANCE,
    Probe,
    active_units,
    change_without,
    information,
    predictive,
    removal_effects,
    signal_to_noise,
    without,
)
from vcl.core import Learner, State, Stream
from vcl.errors import VclError
from vcl.methods.gvcl import GVCL
from vcl.methods.kronecker_vcl import KroneckerVCL
from vcl.nets import Weights, from_layers, logits, pixels, select_head
from vcl.posteriors.mean_field import Gaussian
from vcl.runs.folder import RunFolder
from vcl.runs.stored import StoredRun

RESIZABLE = ("vcl", "joint-vcl")
"""The methods whose networks can be made smaller and wider."""
METHODS = (*RESIZABLE, "gvcl", "kronecker-vcl", "kronecker-vcl-recall")
"""The methods with a posterior over the weights of one network, looked at through the marginals of its weights."""
INPUTS_PER_TASK = 500

Watch = Callable[[float, str], None]
"""Is told how far the work is, from 0 to 1, and what is being done."""


def nobody(fraction: float, text: str) -> None:
    """Nobody watches."""


@dataclass(frozen=True)
class Layer:
    """The units of one hidden layer, after each of `t` tasks."""

    information: Float[np.ndarray, "t u"]
    """KL of the incoming weights and bias to the first prior, in nats."""
    information_gain: Float[np.ndarray, "t u"]
    """KL of the incoming weights and bias to what they were before the task, in nats."""
    signal_to_noise: Float[np.ndarray, "t u"]
    """The largest |μ|/σ of the outgoing weights, into trained heads."""
    removal_effect: Float[np.ndarray, "t u"]
    """Mean total-variation distance of predictions without this unit, on the task that it matters most to."""
    active: Bool[np.ndarray, "t u"]
    """Whether it is among those that cannot be removed."""

    @property
    def first_active(self) -> Int[np.ndarray, "u"]:
        """The task that first activated each unit, from 1; 0 for those that none did."""
        return np.where(self.active.any(axis=0), self.active.argmax(axis=0) + 1, 0)


@dataclass(frozen=True)
class Analysis:
    """What the checkpoints of a run tell, after each task."""

    prior: Gaussian
    """Before any data; heads stacked."""
    posteriors: tuple[Gaussian, ...]
    """After each task; heads stacked."""
    heads: tuple[int, ...]
    """The head of each task."""
    layers: tuple[Layer, ...]
    change_without_pruned: Float[np.ndarray, "t"]
    """How far predictions move when all pruned units are removed, on the task that suffers most."""
    probes: tuple[Probe, ...]
    """Training inputs of each task, on which the above was measured."""

    @property
    def num_tasks(self) -> int:
        return len(self.posteriors)

    @property
    def counts(self) -> Int[np.ndarray, "layers t"]:
        """How many units of each layer are active after each task."""
        return np.array([layer.active.sum(axis=1) for layer in self.layers])


def analyse(
    folder: RunFolder, *, tolerance: float = TOLERANCE, data_dir: Path | None = None, watch: Watch = nobody
) -> Analysis:
    """Measure every hidden unit of a stored run, after each task that it has learnt."""
    check_tolerance(tolerance)
    prior, posteriors, heads = beliefs(folder)
    probes = ask(StoredRun(folder).stream(data_dir), len(posteriors))
    key = jax.random.key(0)
    rows = []
    changes = []
    for number, q in enumerate(posteriors):
        watch(number / len(posteriors), f"units after task {number + 1}/{len(posteriors)}")
        seen = probes[: number + 1]
        trained = trained_heads(heads, number + 1)
        effects = removal_effects(key, q, seen)
        active = active_units(key, q, seen, trained, effects, tolerance)
        changes.append(max(change_without(key, q, active, seen)))
        before = posteriors[number - 1] if number else prior
        measures = (information(q, prior), information(q, before), signal_to_noise(q, trained), effects, active)
        rows.append([*zip(*measures, strict=True)])
    layers = tuple(
        Layer(*(np.stack(column) for column in zip(*layer, strict=True))) for layer in zip(*rows, strict=True)
    )
    watch(1.0, "units measured")
    return Analysis(prior, posteriors, heads, layers, np.array(changes), probes)


def accuracy_without_pruned(analysis: Analysis, stream: Stream, watch: Watch = nobody) -> Float[np.ndarray, "t 2"]:
    """Average test accuracy on the tasks seen so far, after each: of the whole network, and of its active units."""
    key = jax.random.key(0)
    rows = []
    for number, q in enumerate(analysis.posteriors):
        watch(number / analysis.num_tasks, f"accuracy after task {number + 1}/{analysis.num_tasks}")
        active = tuple(layer.active[number] for layer in analysis.layers)
        accuracies = []
        for task in range(number + 1):
            inputs, labels, _ = stream.test(task)
            answers = [
                predictive(key, select_head(network, analysis.heads[task]), inputs)
                for network in (q, without(q, active))
            ]
            accuracies.append([float(np.mean(np.argmax(answer, axis=1) == labels)) for answer in answers])
        rows.append(np.mean(accuracies, axis=0))
    return np.array(rows)


def beliefs(folder: RunFolder) -> tuple[Gaussian, tuple[Gaussian, ...], tuple[int, ...]]:
    """The prior, the posterior after each task learnt, and the head of each task."""
    run = StoredRun(folder)
    check_method(run)
    prior = marginals(run.learner, run.learner.init(jax.random.key(0), run.spec))
    posteriors = tuple(marginals(run.learner, run.state(stage)) for stage in run.task_ends())
    return prior, posteriors, run.spec.heads


def marginals(learner: Learner, state: State) -> Gaussian:
    """The mean and the variance of every weight by itself, heads stacked."""
    return learner.marginals(state) if isinstance(learner, KroneckerVCL) else state.posterior


def trained_heads(heads: tuple[int, ...], num_tasks: int) -> Bool[np.ndarray, "heads"]:
    """Which heads have seen data after so many tasks."""
    return np.isin(np.arange(max(heads) + 1), heads[:num_tasks])


def check_method(run: StoredRun) -> None:
    """Refuse runs that do not hold a posterior over the weights of one network of dense layers."""
    method = run.record["method"]
    if method not in METHODS:
        raise VclError(
            f"The run in {run.path} is one of {method}. Units can be looked into in runs of {', '.join(METHODS)}, "
            "which hold a posterior over the weights of one network."
        )
    learner: Any = run.learner
    if not learner.architecture.is_dense:
        raise VclError(f"The run in {run.path} has convolutions; units can be looked into in dense layers only.")
    if isinstance(learner, GVCL) and learner.film and run.spec.scenario == "task":
        raise VclError(
            f"The run in {run.path} has FiLM layers, which scale and shift its units for each task, so that its "
            "weights alone do not tell what a unit does. Units can be looked into in runs of gvcl with --film=false."
        )
    if isinstance(learner, KroneckerVCL) and not learner.temperature:
        raise VclError(
            f"The run in {run.path} has --temperature 0, so that its weights have no variance, by which units are "
            "measured. Units can be looked into with a temperature above 0."
        )


def check_tolerance(tolerance: float) -> None:
    """Refuse what is no distance between predictions."""
    if not 0 < tolerance < 1:
        raise VclError(f"--tolerance must be above 0 and below 1, but it is {tolerance}.")


def ask(stream: Stream, num_tasks: int) -> tuple[Probe, ...]:
    """Some training inputs of each of the first tasks; test data is left for judging what is concluded."""
    last = {task: stage for stage, task in enumerate(stream.stages)}
    return tuple(
        Probe(stream.spec.heads[task], stream.train(last[task]).inputs[:INPUTS_PER_TASK])
        for task in range(num_tasks)
    )


def exciting_patterns(q: Gaussian, layer: int, inputs: Shaped[np.ndarray, "n d"]) -> Float[np.ndarray, "u d"]:
    """How each unit's activation grows with every input: its gradient at the mean weights, averaged over `inputs`.

    For the first layer these are the mean weights; further up, the weights that the layers below amount to.
    """
    # A unit's pre-activation is the output of the network that ends with its layer.
    return np.asarray(_mean_gradient(from_layers(q.mean.body[: layer + 1]), jnp.asarray(inputs)))


@jax.jit
def _mean_gradient(network: Weights, inputs: Shaped[Array, "n d"]) -> Float[Array, "u d"]:
    def outputs(shift: Float[Array, "d"]) -> Float[Array, "u"]:
        return jnp.mean(logits(network, pixels(inputs) + shift), axis=0)

    return jax.jacrev(outputs)(jnp.zeros(inputs.shape[1]))
