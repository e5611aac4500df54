"""When and why a unit dies: what it costs and what it is worth, during training.

Section 4.1 of the paper explains pruning by the objective (equation 1). Of it, a unit's own part is

    benefit(u) - KL(q(w_in) ‖ p(w_in)) - KL(q(w_out) ‖ p(w_out)),

    benefit(u) = Σ_n E_q [log p(y_n | θ, x_n)] - Σ_n E_q [log p(y_n | θ without u, x_n)],

where p is the prior in force, the posterior of the task before. With its outgoing weights near a delta at zero, a
unit has no effect, and its incoming weights, of which there are many more, can return to p at no loss of likelihood:

    KL(q(w_in) ‖ p(w_in)) → 0   at the price of   KL(q(w_out) ‖ p(w_out)) > 0   for small variances.

So a unit whose benefit is below what its weights cost is worth more dead than alive. All of it is in nats.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from vcl.analysis.units import incoming, ratio, without_each
from vcl.core import Learner
from vcl.errors import VclError
from vcl.nets import Affine, Weights, cross_entropy
from vcl.posteriors.mean_field import Gaussian, kl_terms
from vcl.runs.folder import RunFolder
from vcl.runs.stored import StoredRun
from vcl.training import Batch, Data, masked_mean

METHOD = "vcl"
"""The method whose fit of a task has one posterior, one prior and one head."""
PHASE = "train"
SNAPSHOTS = 40
EXAMPLES = 500
SAMPLES = 4


class LayerTrace(eqx.Module):
    """The units of one hidden layer, at each of `p` points in training; all but the last measure in nats."""

    incoming_kl: Float[np.ndarray, "*p u"]
    """KL of the incoming weights and bias to the prior in force."""
    outgoing_kl: Float[np.ndarray, "*p u"]
    """KL of the outgoing weights to the prior in force; from the last layer, into the head in use."""
    benefit: Float[np.ndarray, "*p u"]
    """By how much the expected log likelihood of the task's data falls when the unit is removed."""
    signal_to_noise: Float[np.ndarray, "*p u"]
    """The largest |μ|/σ of the outgoing weights."""


@dataclass(frozen=True)
class Trace:
    """How the units fared while one task was learnt."""

    stage: int
    """From 1."""
    epochs: Int[np.ndarray, "p"]
    """How many were done at each point; 0 is the start."""
    layers: tuple[LayerTrace, ...]


@dataclass(frozen=True)
class UnitTracer:
    """Looks at the units during one stage of a run, and keeps what it sees in the run's folder."""

    folder: RunFolder
    stage: int

    def epochs(self, phase: str, total: int) -> Sequence[int]:
        """The start, and points at equal ratios from the first epoch to the last: units die early."""
        if phase != PHASE:
            return ()
        return (0, *np.unique(np.rint(np.geomspace(1, total, SNAPSHOTS)).astype(int)).tolist())

    def snapshot(self, phase: str, epoch: int, params: Gaussian, args: Gaussian, data: Data) -> None:
        self.folder.save_snapshot(self.stage, epoch, measure(params, args, some_of(data)))


def tracer(method: str, learner: Learner) -> type[UnitTracer]:
    """What traces runs of a learner, if it can be traced."""
    if method != METHOD:
        raise VclError(
            f"--trace follows the units of a network that learns a task from one prior, with one head: runs of "
            f"--method {METHOD}. A run of {method} has no such units. Leave --trace out."
        )
    if not learner.architecture.is_dense:  # type: ignore[attr-defined]
        raise VclError(
            "--trace follows the units of dense layers; this network has convolutions. Leave --trace out."
        )
    return UnitTracer


def read(folder: RunFolder) -> list[Trace]:
    """What was recorded of a run, for each task in order; empty if nothing was."""
    snapshots = folder.snapshots()
    if not snapshots:
        return []
    run = StoredRun(folder)
    hidden = [units for _, units in run.learner.architecture.widths(run.spec.input_shape)]  # type: ignore[attr-defined]
    like = tuple(LayerTrace(*[np.zeros(width, np.float32)] * 4) for width in hidden)
    traces = []
    for stage, points in groupby(snapshots, key=lambda place: place[0]):
        epochs = [epoch for _, epoch in points]
        seen = [folder.snapshot(stage, epoch, like) for epoch in epochs]
        traces.append(Trace(stage, np.array(epochs), jax.tree.map(lambda *units: np.stack(units), *seen)))
    return traces


def some_of(data: Data) -> Batch:
    """A fixed part of the data, at equal distances: data may come ordered by class."""
    count = min(EXAMPLES, data.capacity)
    size = int(data.size)
    rows = np.arange(count) * max(size, count) // count
    return Batch(data.inputs[rows], data.labels[rows], jnp.asarray(rows < size), data.size)


def measure(q: Gaussian, prior: Gaussian, batch: Batch) -> tuple[LayerTrace, ...]:
    """Every unit of a network with one head: what it costs, and what it is worth to the `batch.size` examples."""
    return tuple(LayerTrace(*map(np.asarray, layer)) for layer in _measure(q, prior, batch))


@jax.jit
def _measure(q: Gaussian, prior: Gaussian, batch: Batch) -> tuple[tuple[Float[Array, "_"], ...], ...]:
    divergences = jax.tree.map(kl_terms, q.mean, q.log_var, prior.mean, prior.log_var)
    ratios = jax.tree.map(ratio, q.mean, q.log_var)
    return tuple(
        (incoming(below), jnp.sum(above.weight, axis=1), benefit, jnp.max(certainty.weight, axis=1))
        for below, above, benefit, certainty in zip(
            divergences.body, above_each(divergences), benefits(q, batch), above_each(ratios), strict=True
        )
    )


def above_each(network: Weights) -> tuple[Affine, ...]:
    """The layer that each hidden layer feeds."""
    return (*network.body[1:], network.head)


def benefits(q: Gaussian, batch: Batch) -> tuple[Float[Array, "u"], ...]:
    """N times the mean fall in log likelihood, over the samples and the batch, without each unit.

    The noise is the same for all units and at all times, so that they can be compared.
    """

    def log_likelihoods(outputs: Float[Array, "s n c"]) -> Float[Array, "n"]:
        return -jnp.mean(cross_entropy(outputs, batch.labels), axis=0)

    def fall(whole: Float[Array, "n"], cut: Float[Array, "n"]) -> Float[Array, ""]:
        return batch.size * masked_mean(whole - cut, batch.mask)

    return without_each(jax.random.key(0), q, batch.inputs, SAMPLES, log_likelihoods, fall)
