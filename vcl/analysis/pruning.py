"""Smaller networks that predict the same, and larger ones that do too.

`prune` removes the units that are not active. `widen` adds units that nothing is known of yet: their incoming
weights are at the first prior, and their outgoing weights are absent (mean 0, variance 0), so that the predictive
distribution stays as it is. When the next task trains, absent weights get the first prior too.

Both write a run folder of its own, which predicts, shows, resumes and is analysed like any other.
"""

import dataclasses
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Shaped

from vcl import evaluation
from vcl.analysis.stored import RESIZABLE, Watch, ask, check_method, check_tolerance, nobody, trained_heads
from vcl.analysis.units import TOLERANCE, Mask, active_units, removal_effects, total_variation, widths
from vcl.core import Learner, State, Stream
from vcl.errors import VclError
from vcl.learning import template
from vcl.methods.kronecker_vcl import KroneckerVCL
from vcl.nets import MLP, Affine, Weights, from_layers, map_weights, select_head
from vcl.posteriors.mean_field import Gaussian
from vcl.runs.derived import derive
from vcl.runs.execute import resume
from vcl.runs.folder import RunFolder
from vcl.runs.stored import StoredRun

SAMPLES, DRAWS = 100, 4
"""Two networks are compared by so many samples, so many times: their own noise must not hide the difference."""
TIMINGS = 5


@dataclass(frozen=True)
class Network:
    """What a network takes, and what it gives."""

    hidden: tuple[int, ...]
    parameters: int
    checkpoint_bytes: int
    predict_seconds: float
    """For one task's test data, once compiled."""
    accuracy: tuple[float, ...]
    """On each task's test data."""


@dataclass(frozen=True)
class Pruning:
    """A network before and after, on each task's test data."""

    run: Path
    before: Network
    after: Network
    total_variation: tuple[float, ...]
    """How far predictions moved."""
    noise: tuple[float, ...]
    """How far two predictions of the network before are apart, by their samples alone."""

    def as_json(self) -> dict[str, Any]:
        return {**dataclasses.asdict(self), "run": self.run.name}


def prune(
    folder: RunFolder,
    out: Path,
    *,
    after: int | None = None,
    tolerance: float = TOLERANCE,
    data_dir: Path | None = None,
    watch: Watch = nobody,
) -> Pruning:
    """Write to `out` the run with only its active units, as it was `after` a stage (from 1; the last by default)."""
    run = StoredRun(folder)
    check_resizable(run)
    check_tolerance(tolerance)
    stream = run.stream(data_dir)
    stage = run.stage(after)
    seen = stream.stages[stage - 1] + 1
    state = run.state(stage)
    watch(0.0, "measuring units")
    probes, key = ask(stream, seen), jax.random.key(0)
    effects = removal_effects(key, state.posterior, probes)
    trained = trained_heads(stream.spec.heads, seen)
    active = active_units(key, state.posterior, probes, trained, effects, tolerance)
    # Nothing would pass through an empty layer.
    keep = tuple(
        mask if mask.any() else effect == effect.max() for mask, effect in zip(active, effects, strict=True)
    )
    hidden = tuple(int(mask.sum()) for mask in keep)
    kept = {"kept": [np.flatnonzero(k).tolist() for k in keep]}
    smaller = resized(run, out, hidden, stage, lambda s: restricted(s, keep), kept)
    watch(0.4, "comparing predictions")
    return compare(run, smaller, stream, stage, seen, watch)


def widen(folder: RunFolder, out: Path, hidden: tuple[int, ...], *, after: int | None = None) -> RunFolder:
    """Write to `out` the run with fresh units added up to `hidden`, as it was `after` a stage (from 1)."""
    run = StoredRun(folder)
    check_resizable(run)
    learner: Any = run.learner
    units = widths_of(run)
    if len(hidden) != len(units) or any(new < old for new, old in zip(hidden, units, strict=True)):
        raise VclError(
            f"The run in {folder.path} has hidden layers of {_shown(units)} units, so --hidden "
            f"{_shown(hidden)} does not fit: name as many layers, none of them narrower. To narrow them: vcl prune."
        )
    template(dataclasses.replace(learner, hidden=hidden), run.spec)
    stage = run.stage(after)
    trained = trained_heads(run.spec.heads, run.record["stages"][stage - 1] + 1)

    def change(state: State) -> State:
        return eqx.tree_at(
            lambda s: s.posterior, state, widened(state.posterior, hidden, trained, learner.prior_std)
        )

    return resized(run, out, hidden, stage, change, {}).folder


def check_resizable(run: StoredRun) -> None:
    """Refuse runs in which units cannot be removed and added by themselves."""
    method = run.record["method"]
    if method not in RESIZABLE:
        correlated = ", whose weights are correlated, so that they cannot be removed or added unit by unit"
        reason = correlated if isinstance(run.learner, KroneckerVCL) else ""
        raise VclError(
            f"The run in {run.path} is one of {method}{reason}. "
            f"Networks can be made smaller or wider in runs of {', '.join(RESIZABLE)}."
        )
    check_method(run)
    learner: Any = run.learner
    if learner.architecture != MLP(widths_of(run), learner.last_hidden):
        raise VclError(
            f"The run in {run.path} has linear layers that its settings do not name (--last-hidden names the last "
            "one only), so that it cannot be made smaller or wider."
        )


def widths_of(run: StoredRun) -> tuple[int, ...]:
    """The units in each hidden layer."""
    learner: Any = run.learner
    return tuple(units for _, units in learner.architecture.widths(run.spec.input_shape))


def resized(
    run: StoredRun,
    out: Path,
    hidden: tuple[int, ...],
    stage: int,
    change: Callable[[State], State],
    facts: dict[str, Any],
) -> StoredRun:
    """The run derived with other hidden layers; complete if `run` was."""
    config = run.record["config"]
    settings = {**config, "learner": {**config["learner"], "hidden": list(hidden), "network": "mlp"}}
    copy = derive(run, out, stage, change, changes={"config": settings}, facts=facts)
    if stage == len(run.record["stages"]):
        resume(copy.folder)
    return copy


def _shown(hidden: tuple[int, ...]) -> str:
    return ",".join(map(str, hidden))


def restricted(state: State, keep: Mask) -> State:
    """Every Weights in `state` with only the units in `keep`."""

    def narrow(network: Weights) -> Weights:
        body, below = [], np.ones(network.body[0].weight.shape[0], bool)
        for layer, kept in zip(network.body, keep, strict=True):
            body.append(Affine(layer.weight[below][:, kept], layer.bias[kept]))
            below = kept
        return from_layers([*body, Affine(network.head.weight[:, below], network.head.bias)], network.network)

    return map_weights(lambda n: narrow(n) if isinstance(n, Weights) else n, state)


def widened(q: Gaussian, hidden: tuple[int, ...], trained: np.ndarray, prior_std: float) -> Gaussian:
    """q with units added up to `hidden`; of the heads, those not yet trained may use them like any other unit."""
    added = [new - old for new, old in zip(hidden, widths(q), strict=True)]
    prior = 2.0 * np.log(prior_std)

    def grow(network: Weights, unknown: float, absent: float) -> Weights:
        body, below = [], 0
        for layer, more in zip(network.body, added, strict=True):
            weight = jnp.pad(layer.weight, ((0, below), (0, 0)), constant_values=absent)
            weight = jnp.pad(weight, ((0, 0), (0, more)), constant_values=unknown)
            body.append(Affine(weight, jnp.pad(layer.bias, (0, more), constant_values=unknown)))
            below = more
        heads = [
            jnp.pad(weight, ((0, below), (0, 0)), constant_values=absent if known else unknown)
            for weight, known in zip(network.head.weight, trained, strict=True)
        ]
        return from_layers([*body, Affine(jnp.stack(heads), network.head.bias)], network.network)

    return Gaussian(grow(q.mean, 0.0, 0.0), grow(q.log_var, prior, -np.inf))


def compare(run: StoredRun, smaller: StoredRun, stream: Stream, stage: int, seen: int, watch: Watch) -> Pruning:
    """Two networks on the test data of every task seen."""
    pair = [(place.learner, place.state(stage)) for place in (run, smaller)]
    accuracies: list[list[float]] = [[], []]
    moved, noise = [], []
    for task in range(seen):
        watch(0.4 + 0.5 * task / seen, f"comparing predictions for task {task + 1}/{seen}")
        inputs, labels, _ = stream.test(task)

        def answer(number: int, draw: int, task: int = task, inputs: np.ndarray = inputs) -> np.ndarray:
            learner, state = pair[number]
            params = select_head(state.posterior, stream.spec.heads[task])
            many = dataclasses.replace(learner, test_samples=SAMPLES)  # type: ignore[type-var]
            key = jax.random.fold_in(jax.random.key(task), draw)
            keys = jax.random.split(key, DRAWS)
            return np.mean([evaluation.predict(many, k, params, inputs).probabilities for k in keys], axis=0)

        whole, again, small = answer(0, 0), answer(0, 1), answer(1, 2)
        for accuracy, probabilities in zip(accuracies, (whole, small), strict=True):
            accuracy.append(float(np.mean(probabilities.argmax(axis=1) == labels)))
        moved.append(float(total_variation(jnp.asarray(whole), jnp.asarray(small))))
        noise.append(float(total_variation(jnp.asarray(whole), jnp.asarray(again))))
    watch(0.9, "measuring the time to predict")
    params = [select_head(state.posterior, stream.spec.heads[seen - 1]) for _, state in pair]
    seconds = predict_seconds([learner for learner, _ in pair], params, stream.test(seen - 1).inputs)
    before, after = (
        Network(
            widths(state.posterior),
            learner.footprint(state).parameters,
            place.folder.path_after(stage).stat().st_size,
            time_taken,
            tuple(accuracy),
        )
        for (learner, state), place, time_taken, accuracy in zip(
            pair, (run, smaller), seconds, accuracies, strict=True
        )
    )
    watch(1.0, "compared")
    return Pruning(smaller.path, before, after, tuple(moved), tuple(noise))


def predict_seconds(
    learners: list[Learner], params: list[Gaussian], inputs: Shaped[np.ndarray, "n d"]
) -> list[float]:
    """The least of several times, taken in turn so that a busy machine slows both."""
    times: list[list[float]] = [[] for _ in learners]
    for turn in range(TIMINGS + 1):
        for number, (learner, q) in enumerate(zip(learners, params, strict=True)):
            began = time.perf_counter()
            evaluation.predict(learner, jax.random.key(0), q, inputs)
            if turn:  # The first one compiles.
                times[number].append(time.perf_counter() - began)
    return [min(column) for column in times]
