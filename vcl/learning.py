"""A learner and all that it has learnt, as one value: what runs and models stand on.

Keys are functions of the seed and the place, so that continuing needs no hidden random state.
"""

from dataclasses import dataclass, replace

import jax
import numpy as np
from jaxtyping import Array, Key, Shaped

from vcl import evaluation
from vcl.core import Examples, Fit, Learner, Params, State, StreamSpec, Task
from vcl.evaluation import Prediction, Scores
from vcl.training import Fitter, to_device

INIT = 2**31 - 1
"""The place of the initial state's key: no stage is numbered so high."""


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
    return Snapshot(learner, spec, seed, learner.init(init_key(seed), spec))


def template(learner: Learner, spec: StreamSpec) -> State:
    """The structure, shapes and dtypes of a state, without its arrays."""
    return jax.eval_shape(lambda: learner.init(jax.random.key(0), spec))


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
) -> Prediction:
    """The predictive distribution for inputs of a task; over some of the classes only, where these are named."""
    key = jax.random.fold_in(snapshot.test_key, task.index)
    return evaluation.predict(snapshot.learner, key, readout(snapshot, task, fit), inputs, classes)


def score(snapshot: Snapshot, task: Task, examples: Examples, fit: Fit | None = None) -> Scores:
    """How well examples of a task are predicted."""
    return evaluation.score(predict(snapshot, task, examples.inputs, fit), examples.labels)
