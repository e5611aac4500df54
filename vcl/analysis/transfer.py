"""What passes between tasks, seen in the units.

Forward: a task's answers use units that earlier tasks activated. Backward: units that an earlier task activated
change while later tasks train.
"""

import jax
import numpy as np
from jaxtyping import Float

from vcl.analysis.stored import Analysis
from vcl.analysis.units import change_without
from vcl.evaluation import Matrix


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
