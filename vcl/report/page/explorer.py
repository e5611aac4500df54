"""What the explorer of hidden units shows, as data that travels inside the page."""

import base64
import gzip
import math
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Float, Int, Shaped

from vcl.analysis import Analysis, exciting_patterns
from vcl.benchmarks import class_names, readable_tasks
from vcl.posteriors.mean_field import Gaussian
from vcl.report.images import Tile
from vcl.runs.config import spec_from_record
from vcl.runs.results import Record

MEASURES = {
    "information": "information",
    "information_gain": "information_gain",
    "signal_to_noise": "signal_to_noise",
    "removal_effect": "removal_effect",
}
"""The measures of a unit: their names in the page, and the fields of `vcl.analysis.Layer` that hold them."""
DIGITS = 6
LEVELS = 127
"""Means are stored as -127 … 127 parts of the layer's largest."""
STEPS = 254
"""Variances are stored as 1 … 255, even steps of their logarithm; 0 is a variance of zero."""


def explorer_data(record: Record, analysis: Analysis) -> dict[str, Any]:
    """Every unit of every layer, after each task: its measures, its images and its outgoing weights."""
    tasks = analysis.num_tasks
    spec = spec_from_record(record)
    inputs = Tile.of(spec.input_shape)
    return {
        "tasks": readable_tasks(record["benchmark"], record["task_names"])[:tasks],
        "classes": [list(names) for names in class_names(record["benchmark"], spec)],
        "heads": list(analysis.heads[:tasks]),
        "layers": [_layer(analysis, number, inputs) for number in range(len(analysis.layers))],
        "output": [_output(analysis, after) for after in range(tasks)],
    }


def _layer(analysis: Analysis, number: int, inputs: Tile) -> dict[str, Any]:
    """A layer's units: `mean` and `variance` of incoming weights, above the first also the exciting `pattern`."""
    layer = analysis.layers[number]
    means = np.stack([np.asarray(q.mean.body[number].weight).T for q in analysis.posteriors])
    log_vars = np.stack([np.asarray(q.log_var.body[number].weight).T for q in analysis.posteriors])
    below = inputs if number == 0 else Tile.of(means.shape[-1:])
    data = {
        "first_active": layer.first_active.tolist(),
        "active": layer.active.tolist(),
        **{name: rounded(getattr(layer, field)) for name, field in MEASURES.items()},
        "mean": packed_means(means, below),
        "variance": packed_variances(log_vars, below),
    }
    if number > 0:
        data["pattern"] = packed_means(_patterns(analysis, number), inputs)
    return data


def _patterns(analysis: Analysis, number: int) -> Float[np.ndarray, "t u d"]:
    """What excites each unit, among the inputs of the task that first activated it; of task 1 where none did."""
    teacher = np.maximum(analysis.layers[number].first_active, 1)
    found = np.zeros((analysis.num_tasks, len(teacher), analysis.probes[0].inputs.shape[1]), np.float32)
    for after, q in enumerate(analysis.posteriors):
        for task in np.unique(teacher):
            taught = np.flatnonzero(teacher == task)
            found[after, taught] = exciting_patterns(
                _only(q, number, taught), number, analysis.probes[task - 1].inputs
            )
    return found


def _only(q: Gaussian, number: int, units: Int[np.ndarray, "u"]) -> Gaussian:
    """q with no other units in a layer: what is not asked for need not be computed."""
    some = jax.tree.map(lambda leaf: leaf[..., units], q.mean.body[number])
    return eqx.tree_at(lambda q: q.mean.body[number], q, some)


def _output(analysis: Analysis, after: int) -> dict[str, Any]:
    """Weights into the heads trained so far: [head, unit, class]."""
    q, trained = analysis.posteriors[after], np.unique(analysis.heads[: after + 1])
    return {
        "heads": trained.tolist(),
        "mean": rounded(np.asarray(q.mean.head.weight)[trained]),
        "sd": rounded(np.exp(0.5 * np.asarray(q.log_var.head.weight)[trained])),
    }


def packed_means(values: Float[np.ndarray, "t u d"], tile: Tile) -> dict[str, Any]:
    """A byte for each number: 128 is zero, 1 and 255 are the largest in size. Colour images keep their channels."""
    shown = tile.shown(values)
    scale = float(np.abs(shown).max()) or 1.0
    levels = np.round(shown / scale * LEVELS).astype(np.int16) + LEVELS + 1
    return {"scale": scale, "channels": tile.channels if tile.is_colour else 1, **_packed(levels, tile)}


def packed_variances(log_vars: Float[np.ndarray, "t u d"], tile: Tile) -> dict[str, Any]:
    """A byte for each variance, by its logarithm: they differ by orders of magnitude. Channels are averaged."""
    if tile.channels > 1:
        with np.errstate(divide="ignore"):
            log_vars = np.log(tile.grey(np.exp(log_vars)))
    there = np.isfinite(log_vars)
    known = log_vars[there] if there.any() else np.zeros(1)
    low, high = float(known.min()), float(known.max())
    steps = np.round((np.where(there, log_vars, low) - low) / ((high - low) or 1.0) * STEPS) + 1
    return {"low": low, "high": high, "channels": 1, **_packed(np.where(there, steps, 0), tile)}


def _packed(levels: Shaped[np.ndarray, "t u d"], tile: Tile) -> dict[str, Any]:
    # Without a time: the same run gives the same bytes.
    squeezed = gzip.compress(levels.astype(np.uint8).tobytes(), mtime=0)
    return {"columns": tile.columns, "size": levels.shape[-1], "bytes": base64.b64encode(squeezed).decode()}


def rounded(values: Float[np.ndarray, "..."]) -> Any:
    """Nested lists of numbers, to as many digits as are worth carrying; null for those that are not finite."""
    numbers = [float(f"{v:.{DIGITS}g}") if math.isfinite(v) else None for v in values.ravel().tolist()]
    return np.array(numbers, dtype=object).reshape(values.shape).tolist()
