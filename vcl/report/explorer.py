"""What the explorer of hidden units shows, as data that travels inside the page."""

import base64
import gzip
import math
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Float, Int, Shaped

from vcl.analysis import Analysis, exciting_patterns

MEASURES = ("information", "news", "signal_to_noise", "removal_effect")
DIGITS = 6
LEVELS = 127
"""Means are stored as -127 … 127 parts of the layer's largest."""
STEPS = 254
"""Variances are stored as 1 … 255, even steps of their logarithm; 0 is a variance of zero."""


def explorer_data(record: dict[str, Any], analysis: Analysis) -> dict[str, Any]:
    """Every unit of every layer, after each task: its measures, its images and its outgoing weights."""
    tasks = analysis.num_tasks
    return {
        "tasks": record["task_names"][:tasks],
        "heads": list(analysis.heads[:tasks]),
        "layers": [
            _layer(analysis, number, record["spec"]["input_shape"]) for number in range(len(analysis.layers))
        ],
        "output": [_output(analysis, after) for after in range(tasks)],
    }


def _layer(analysis: Analysis, number: int, input_shape: Sequence[int]) -> dict[str, Any]:
    """A layer's units: `mean` and `variance` of incoming weights, above the first also the exciting `pattern`."""
    layer = analysis.layers[number]
    means = np.stack([np.asarray(q.mean.body[number].weight).T for q in analysis.posteriors])
    log_vars = np.stack([np.asarray(q.log_var.body[number].weight).T for q in analysis.posteriors])
    below = columns(input_shape if number == 0 else means.shape[-1:])
    data = {
        "first_active": layer.first_active.tolist(),
        "active": layer.active.tolist(),
        **{name: rounded(getattr(layer, name)) for name in MEASURES},
        "mean": packed_means(means, below),
        "variance": packed_variances(log_vars, below),
    }
    if number > 0:
        data["pattern"] = packed_means(_patterns(analysis, number), columns(input_shape))
    return data


def _patterns(analysis: Analysis, number: int) -> Float[np.ndarray, "t u d"]:
    """What excites each unit, among the inputs of the task that first activated it; of task 1 where none did."""
    teacher = np.maximum(analysis.layers[number].first_active, 1)
    found = np.zeros((analysis.num_tasks, len(teacher), analysis.questions[0].inputs.shape[1]), np.float32)
    for after, q in enumerate(analysis.posteriors):
        for task in np.unique(teacher):
            taught = np.flatnonzero(teacher == task)
            found[after, taught] = exciting_patterns(
                _only(q, number, taught), number, analysis.questions[task - 1].inputs
            )
    return found


def _only(q: Any, number: int, units: Int[np.ndarray, "u"]) -> Any:
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


def columns(shape: Sequence[int]) -> int:
    """How wide numbers of this shape are drawn: images as they are, colour planes one above the other."""
    return shape[-1] if len(shape) > 1 else math.ceil(math.sqrt(shape[0]))


def packed_means(values: Float[np.ndarray, "t u d"], width: int) -> dict[str, Any]:
    """A byte for each number: 128 is zero, 1 and 255 are the largest in size."""
    scale = float(np.abs(values).max()) or 1.0
    levels = np.round(values / scale * LEVELS).astype(np.int16) + LEVELS + 1
    return {"scale": scale, **_packed(levels, width)}


def packed_variances(log_vars: Float[np.ndarray, "t u d"], width: int) -> dict[str, Any]:
    """A byte for each variance, by its logarithm: they differ by orders of magnitude."""
    there = np.isfinite(log_vars)
    known = log_vars[there] if there.any() else np.zeros(1)
    low, high = float(known.min()), float(known.max())
    steps = np.round((np.where(there, log_vars, low) - low) / ((high - low) or 1.0) * STEPS) + 1
    return {"low": low, "high": high, **_packed(np.where(there, steps, 0), width)}


def _packed(levels: Shaped[np.ndarray, "t u d"], width: int) -> dict[str, Any]:
    # Without a time: the same run gives the same bytes.
    squeezed = gzip.compress(levels.astype(np.uint8).tobytes(), mtime=0)
    return {"columns": width, "size": levels.shape[-1], "bytes": base64.b64encode(squeezed).decode()}


def rounded(values: Float[np.ndarray, "..."]) -> Any:
    """Nested lists of numbers, to as many digits as are worth carrying; null for those that are none."""
    numbers = [float(f"{v:.{DIGITS}g}") if math.isfinite(v) else None for v in values.ravel().tolist()]
    return np.array(numbers, dtype=object).reshape(values.shape).tolist()
