"""What the figures of a run show of its units: which of them, after which tasks, and in which colours."""

import re
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from vcl.analysis import Analysis, Layer
from vcl.core import StreamSpec
from vcl.report.figures.drawing import colours
from vcl.report.images import Tile
from vcl.runs.config import spec_from_record
from vcl.runs.results import Record

MOST_UNITS = 12
"""Of more active units than this, those with the largest effect are shown one by one."""
ALL_STAGES = 5
"""With more tasks than this, the first, the middle and the last stand for all, as in the paper."""
FRAMED = "Framed units are active at that stage, in the colour of the task that first activated them."


@dataclass(frozen=True)
class Subject:
    """A run to draw: what it is called, what was asked for, and what was found in its units."""

    name: str
    record: Record
    analysis: Analysis

    @cached_property
    def spec(self) -> StreamSpec:
        return spec_from_record(self.record)

    @property
    def stages_shown(self) -> list[int]:
        return stages_shown(self.analysis.num_tasks)

    @cached_property
    def task_colours(self) -> dict[str, Any]:
        """The tasks learnt, and the colour that stands for each in all figures of a run."""
        names = [f"task {number}{self._own_name(number)}" for number in range(1, self.analysis.num_tasks + 1)]
        return dict(zip(names, colours(len(names)), strict=True))

    def _own_name(self, number: int) -> str:
        """What a task is called, unless that is just its number."""
        name = self.record["task_names"][number - 1]
        return "" if name.endswith(f" {number}") else f": {name}"

    def class_names(self, head: int) -> list[str]:
        """The digits of a task called 0v1; numbers elsewhere."""
        name = self.record["task_names"][self.spec.heads.index(head)]
        digits = name.split("v") if re.fullmatch(r"\d+(v\d+)+", name) else []
        classes = self.spec.num_classes
        return digits if len(digits) == classes else [str(number) for number in range(classes)]

    def tile(self, layer: int) -> Tile:
        """How the weights into a unit of a hidden layer are laid out."""
        below = len(self.analysis.posteriors[0].mean.body[layer].weight)
        return Tile.of(self.spec.input_shape if layer == 0 else (below,))

    def source(self, layer: int) -> str:
        """What the weights into a hidden layer come from."""
        if layer:
            return "the units of the layer below, row by row"
        return "the input image" if len(self.spec.input_shape) > 1 else "the input's features, row by row"

    @property
    def about_prior(self) -> str:
        variance = float(np.exp(self.analysis.prior.log_var.body[0].bias[0]))
        return f"The first prior has mean 0 and variance {variance:.2g}."


def stages_shown(num_tasks: int) -> list[int]:
    """After which tasks, from 1, there is a picture."""
    return list(range(1, num_tasks + 1)) if num_tasks <= ALL_STAGES else [1, num_tasks // 2, num_tasks]


def units_shown(layer: Layer) -> Int[np.ndarray, "k"]:
    """Active units in the order of their first activation; of too many, those of each task that matter most."""
    effect, task = layer.removal_effect.max(axis=0), layer.first_active
    better = (effect > effect[:, None]) & (task == task[:, None])
    ever = np.flatnonzero(task)
    chosen = ever[np.lexsort((-effect[ever], better.sum(axis=1)[ever]))[:MOST_UNITS]]
    return chosen[np.lexsort((chosen, task[chosen]))]


def layer_name(layer: int) -> str:
    """What a hidden layer, counted from 0, is called."""
    return f"hidden layer {layer + 1}"


def incoming(
    analysis: Analysis, stage: int, layer: int
) -> tuple[Float[np.ndarray, "u i"], Float[np.ndarray, "u i"]]:
    """Means and variances of the weights into each unit of a hidden layer, after a task (from 1)."""
    q = analysis.posteriors[stage - 1]
    return np.asarray(q.mean.body[layer].weight).T, np.exp(np.asarray(q.log_var.body[layer].weight)).T


def into_head(
    analysis: Analysis, stage: int, head: int
) -> tuple[Float[np.ndarray, "u c"], Float[np.ndarray, "u c"]]:
    """Means and standard deviations of the weights into a head, after a task (from 1)."""
    q = analysis.posteriors[stage - 1]
    return np.asarray(q.mean.head.weight[head]), np.exp(0.5 * np.asarray(q.log_var.head.weight[head]))


def outgoing(
    analysis: Analysis, stage: int, layer: int
) -> list[tuple[int, Float[np.ndarray, "u _"], Float[np.ndarray, "u _"]]]:
    """Where a layer's weights go, after a task: (task that it belongs to, from 1; means; standard deviations).

    From the last layer, into the classes of each trained head; from others, into the units above that are shown.
    """
    if layer == len(analysis.layers) - 1:
        trained = dict.fromkeys(analysis.heads[:stage])
        return [(analysis.heads.index(head) + 1, *into_head(analysis, stage, head)) for head in trained]
    above = analysis.layers[layer + 1]
    means, variances = incoming(analysis, stage, layer + 1)
    chosen = units_shown(above)
    tasks = above.first_active[chosen]
    return [
        (int(task), means[chosen[tasks == task]].T, np.sqrt(variances[chosen[tasks == task]]).T)
        for task in np.unique(tasks)
    ]
