"""What passes between tasks, seen in the units.

Forward: a task's answers use units that earlier tasks activated. Backward: units that an earlier task activated
change while later tasks train. Forgetting: an earlier task's answers suffer from either such changes or the units
that later tasks activated, which its inputs excite too.
"""

from collections.abc import Iterable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float

from vcl.analysis.stored import Analysis, Watch, nobody
from vcl.analysis.units import Mask, change_without, predictive, without
from vcl.core import Stream
from vcl.evaluation import Matrix
from vcl.nets import Affine, Weights, select_head
from vcl.posteriors.mean_field import Gaussian

Ends = tuple[Bool[np.ndarray, "i"], Bool[np.ndarray, "o"]]
"""A yes or no for what enters a layer, and for what leaves it."""


def forward_use(analysis: Analysis) -> Float[np.ndarray, "t t"]:
    """[t, s]: how far predictions for task s, just learnt, move without the units first activated by task t.

    In mean total-variation distance. Below the diagonal nothing is defined: those units were not yet active.
    """
    tasks = analysis.num_tasks
    use = np.full((tasks, tasks), np.nan)
    for source in range(tasks):
        keep = tuple(layer.first_active != source + 1 for layer in analysis.layers)
        for task in range(source, tasks):
            (use[source, task],) = change_without(
                jax.random.key(0), analysis.posteriors[task], keep, [analysis.probes[task]]
            )
    return use


def backward_change(analysis: Analysis) -> Float[np.ndarray, "t t"]:
    """[t, s]: what task s told, on average, to a unit first activated by task t: KL to before task s, in nats.

    On the diagonal, what it told to its own units; below it nothing is defined. NaN where a task activated no unit.
    """
    tasks = analysis.num_tasks
    change = np.full((tasks, tasks), np.nan)
    for source in range(tasks):
        told = np.concatenate(
            [layer.information_gain[:, layer.first_active == source + 1] for layer in analysis.layers], axis=1
        )
        if told.size:
            change[source, source:] = told.mean(axis=1)[source:]
    return change


def accuracy_change(matrix: Matrix) -> Float[np.ndarray, "t t"]:
    """[j, i]: how much better (or worse) task j is solved after task i than when it was learnt."""
    a = np.array([[np.nan if value is None else value for value in row] for row in matrix])
    return (a - np.diag(a)).T


class Forgetting(NamedTuple):
    """Test accuracy on task j after task i in [j, i], as it is and without one of its two causes; NaN below."""

    accuracy: Float[np.ndarray, "t t"]
    without_newer_units: Float[np.ndarray, "t t"]
    """Without the units that tasks after j first activated."""
    with_earlier_weights: Float[np.ndarray, "t t"]
    """With the weights between all other units, and into these, as they were after task j."""


def forgetting(analysis: Analysis, stream: Stream, watch: Watch = nobody) -> Forgetting:
    """Whether tasks are forgotten because later ones activated units or because weights have changed.

    Without the newer units and with the earlier weights the network is the one that the task left, but for units
    that were not active then.
    """
    tasks = analysis.num_tasks
    found = Forgetting(*(np.full((tasks, tasks), np.nan) for _ in Forgetting._fields))
    for task in range(tasks):
        watch(task / tasks, f"forgetting of task {task + 1}/{tasks}")
        data, head = stream.test(task), analysis.heads[task]
        # The units of this task and of those before it, and the units that were never active.
        earlier = tuple(layer.first_active <= task + 1 for layer in analysis.layers)
        then = analysis.posteriors[task]
        for after in range(task, tasks):
            now = analysis.posteriors[after]
            for place, q in zip(found, (now, without(now, earlier), restored(now, then, earlier)), strict=True):
                answers = predictive(jax.random.key(0), select_head(q, head), data.inputs)
                place[task, after] = float(np.mean(np.argmax(answers, axis=1) == data.labels))
    return found


def restored(now: Gaussian, then: Gaussian, units: Mask) -> Gaussian:
    """`now` with weights of `then` between units of the mask, inputs and outputs, and with the biases of these."""

    def restore(new: Weights, old: Weights) -> Weights:
        masks = between(new, units)
        return new.with_layers([chosen(*layer) for layer in zip(masks, new.layers, old.layers, strict=True)])

    return Gaussian(restore(now.mean, then.mean), restore(now.log_var, then.log_var))


def between(network: Weights, units: Mask) -> Iterable[Ends]:
    """Which ends of each layer are units of the mask; inputs and outputs of the network all count."""
    inputs, outputs = network.body[0].weight.shape[0], network.head.bias.shape[-1]
    return zip((np.ones(inputs, bool), *units), (*units, np.ones(outputs, bool)), strict=True)


def chosen(ends: Ends, new: Affine, old: Affine) -> Affine:
    """Weights of `old` between these ends, and biases of `old` at the upper ones; of `new` elsewhere."""
    rows, columns = ends
    weight = jnp.where(rows[:, None] & columns, old.weight, new.weight)
    return Affine(weight, jnp.where(columns, old.bias, new.bias))
