"""A learner and all that it has learnt, as one value: what runs and models stand on.

Keys are functions of the seed and the place, so that continuing needs no hidden random state.
"""

import math
import os
from dataclasses import dataclass, replace

import jax
import numpy as np
from jaxtyping import Array, Key, Shaped

from vcl import evaluation
from vcl.core import Examples, Fit, Learner, Params, State, StreamSpec, Task
from vcl.errors import VclError
from vcl.evaluation import Prediction, Scores
from vcl.training import Fitter, to_device

INIT = 2**31 - 1
"""The place of the initial state's key: no stage is numbered so high."""
MOST_STEPS = 2**31
SECONDS_PER_STEP = 20e-6


@dataclass(frozen=True)
class Snapshot:
    """A learner with its state after some stages.

    Examples
    --------
    >>> import vcl
    >>> stream = vcl.build("split-digits", vcl.StreamOptions(num_tasks=1), seed=0)
    >>> start = begin(vcl.VCL(hidden=(10,), epochs=2), stream.spec, seed=0)
    >>> learnt = observe(start, stream.task(0), stream.train(0), Fitter())
    >>> learnt.stages
    1
    """

    learner: Learner
    spec: StreamSpec
    seed: int
    state: State
    stages: int = 0
    """How many batches it has learnt from."""

    @property
    def root(self) -> Key[Array, ""]:
        return jax.random.key(self.seed)

    @property
    def test_key(self) -> Key[Array, ""]:
        """For read-outs and predictions."""
        return stage_key(self.root, self.stages - 1, 1) if self.stages else self.root


def init_key(seed: int) -> Key[Array, ""]:
    """The key of the initial state, and of what growth adds to it."""
    return jax.random.fold_in(jax.random.key(seed), INIT)


def stage_key(root: Key[Array, ""], stage: int, purpose: int) -> Key[Array, ""]:
    """The key of a stage: purpose 0 is for learning, 1 for testing."""
    return jax.random.fold_in(jax.random.fold_in(root, stage), purpose)


def begin(learner: Learner, spec: StreamSpec, seed: int) -> Snapshot:
    """Before any data."""
    template(learner, spec)
    return Snapshot(learner, spec, seed, learner.init(init_key(seed), spec))


def template(learner: Learner, spec: StreamSpec) -> State:
    """The structure, shapes and dtypes of a state, without its arrays; refused if it can be seen not to fit."""
    try:
        state = jax.eval_shape(lambda: learner.init(jax.random.key(0), spec))
    except OverflowError as error:
        raise VclError(f"These settings ask for an array beyond what can be addressed ({error}).") from None
    check_feasible(
        learner, spec, sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(state))
    )
    return state


def check_feasible(learner: Learner, spec: StreamSpec, state_bytes: int) -> None:
    """Refuse settings that need more memory than the machine has, or more steps than can be counted."""
    # Learning holds the parameters, their gradient and the optimiser's two moments.
    needed = {"the network and what is learnt with it": 4.0 * state_bytes}
    widest = max(getattr(learner, "hidden", ()), default=1)
    for name, batch in (("test_samples", evaluation.BATCH), ("train_samples", getattr(learner, "batch_size", 1))):
        samples = getattr(learner, name, 1)
        flag = f"--{name.replace('_', '-')} {samples}"
        needed[flag] = 4.0 * samples * min(batch, spec.capacity) * max(widest, spec.num_classes)
    what, most = max(needed.items(), key=lambda item: item[1])
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if most > memory:
        raise VclError(
            f"{what[0].upper()}{what[1:]} would need about {most / 1e9:,.0f} GB of memory, and this machine has "
            f"{memory / 1e9:,.0f} GB. Choose smaller settings."
        )
    epochs, batch = getattr(learner, "epochs", 1), getattr(learner, "batch_size", 1)
    steps = epochs * -(-spec.capacity // batch)
    if steps >= MOST_STEPS:
        raise VclError(
            f"--epochs {epochs} are {steps:.3g} steps for a task: at {SECONDS_PER_STEP * 1e6:.0f} µs for each, "
            f"which is fast, about {steps * SECONDS_PER_STEP / 86400:,.0f} days. Choose fewer epochs."
        )


def grow(snapshot: Snapshot, spec: StreamSpec) -> Snapshot:
    """With room for all that `spec` announces."""
    if spec == snapshot.spec:
        return snapshot
    state = snapshot.learner.grow(init_key(snapshot.seed), snapshot.state, snapshot.spec, spec)
    return replace(snapshot, spec=spec, state=state)


def observe(snapshot: Snapshot, task: Task, examples: Examples, fit: Fit) -> Snapshot:
    """After one more batch."""
    data = to_device(examples, snapshot.spec.capacity)
    key = stage_key(snapshot.root, snapshot.stages, 0)
    state = snapshot.learner.observe(key, snapshot.state, task, data, fit)
    return replace(snapshot, state=state, stages=snapshot.stages + 1)


def readout(snapshot: Snapshot, task: Task, fit: Fit | None = None) -> Params:
    """What predicts for a task."""
    return snapshot.learner.readout(snapshot.test_key, snapshot.state, task, fit or Fitter())


def predict(
    snapshot: Snapshot,
    task: Task,
    inputs: Shaped[np.ndarray, "n d"],
    fit: Fit | None = None,
    classes: Shaped[np.ndarray, "c"] | None = None,
    *,
    common_noise: bool = False,
) -> Prediction:
    """The predictive distribution for inputs of a task; over some of the classes only, where these are named."""
    key, params = predictor(snapshot, task, fit)
    return evaluation.predict(snapshot.learner, key, params, inputs, classes, common_noise=common_noise)


def predictor(snapshot: Snapshot, task: Task, fit: Fit | None = None) -> tuple[Key[Array, ""], Params]:
    """The key and the parameters that answer for a task."""
    return jax.random.fold_in(snapshot.test_key, task.index), readout(snapshot, task, fit)


def score(snapshot: Snapshot, task: Task, examples: Examples, fit: Fit | None = None) -> Scores:
    """How well examples of a task are predicted."""
    return evaluation.score(predict(snapshot, task, examples.inputs, fit), examples.labels)
