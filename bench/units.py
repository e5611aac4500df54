"""What pruned and active units look like in a stored run: the numbers behind docs/understanding.md.

    python bench/units.py RUN

After each task, of the first layer: the gap in signal-to-noise between silent units and the others; outgoing
standard deviations, firing probability and information of pruned and of active units. Then how far the output
weights of a shared head have moved, and, where there is a trace, medians of cost and benefit over training.
"""

import sys
from pathlib import Path

import numpy as np
from scipy.stats import norm

from vcl import runs
from vcl.analysis import Analysis, analyse
from vcl.analysis.trace import Trace, read
from vcl.runs.folder import RunFolder

LARGE = 0.2
"""Output weights further than this from zero are followed."""


def main() -> None:
    runs.prepare_jax(runs.available_threads())
    folder = RunFolder.open(Path(sys.argv[1]))
    analysis = analyse(folder)
    for task in range(analysis.num_tasks):
        print(f"after task {task + 1}: {after(analysis, task)}")
    if len(set(analysis.heads)) == 1:
        print(head_weights(analysis))
    for trace in read(folder):
        print(f"learning task {trace.stage}:")
        for line in lives(analysis, trace):
            print(f"  {line}")


def after(analysis: Analysis, task: int) -> str:
    layer, q = analysis.layers[0], analysis.posteriors[task]
    active, ratio = layer.active[task], layer.signal_to_noise[task]
    silent = ratio < 1
    above = q.log_var.body[1].weight if len(q.log_var.body) > 1 else q.log_var.head.weight[analysis.heads[task]]
    spread = np.exp(0.5 * np.asarray(above))
    fires = firing(analysis, task)
    parts = [
        f"active {active.sum()}, signal-to-noise of silent units at most {ratio[silent].max(initial=0):.2f}, "
        f"of others at least {ratio[~silent].min(initial=np.inf):.2f}",
    ]
    for name, which in (("pruned", ~active), ("active", active)):
        if which.any():
            told, often = layer.information[task][which], 100 * np.median(fires[which])
            parts.append(
                f"{name}: outgoing σ {np.median(spread[which]):.2f}, fires for {often:.1f} %, "
                f"information {np.median(told):.1f} ({told.min():.1f} to {told.max():.1f})"
            )
    return "; ".join(parts)


def firing(analysis: Analysis, task: int) -> np.ndarray:
    """How likely each unit of the first layer is above zero, on average over inputs of the task."""
    q, inputs = analysis.posteriors[task], analysis.probes[task].inputs
    x = inputs / 255.0 if inputs.dtype == np.uint8 else inputs
    mean, log_var = q.mean.body[0], q.log_var.body[0]
    centre = x @ np.asarray(mean.weight) + np.asarray(mean.bias)
    variance = (x * x) @ np.exp(np.asarray(log_var.weight)) + np.exp(np.asarray(log_var.bias))
    return norm.sf(0.0, centre, np.sqrt(variance)).mean(axis=0)


def head_weights(analysis: Analysis) -> str:
    """How far the large output weights of a shared head have moved since task 1."""
    heads = [np.asarray(q.mean.head.weight[0]) for q in analysis.posteriors]
    large = np.abs(heads[0]) > LARGE
    first, last = heads[0][large], heads[-1][large]
    return (
        f"{large.sum()} output weights above {LARGE} after task 1, {np.abs(first).mean():.3f} in size: moved by "
        f"{np.abs(last - first).mean():.3f} since, correlation {np.corrcoef(first, last)[0, 1]:.3f}"
    )


def lives(analysis: Analysis, trace: Trace) -> list[str]:
    """Medians of the first layer's units at each point, and the active ones one by one at the last."""
    units, active = trace.layers[0], analysis.layers[0].active[trace.stage - 1]

    def median(values: np.ndarray, row: int, which: np.ndarray) -> float:
        return float(np.median(values[row][which]))

    lines = [
        f"epoch {epoch}: pruned: in {median(units.incoming_kl, row, ~active):.1f}, "
        f"out {median(units.outgoing_kl, row, ~active):.1f}, "
        f"benefit {median(units.benefit, row, ~active):.2f} nats; "
        f"active: in {median(units.incoming_kl, row, active):.1f}, "
        f"largest benefit {units.benefit[row][active].max():.0f}"
        for row, epoch in enumerate(trace.epochs)
    ]
    last = zip(units.incoming_kl[-1][active], units.benefit[-1][active], strict=True)
    return [
        *lines,
        "active at the end (in, benefit): " + ", ".join(f"{cost:.0f} {worth:.0f}" for cost, worth in last),
    ]


if __name__ == "__main__":
    main()
