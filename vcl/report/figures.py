"""Figures from stored results."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vcl.errors import VclError
from vcl.files import write_atomically
from vcl.store import writing


def accuracy_figure(results: Sequence[dict[str, Any]], path: Path) -> None:
    """Accuracy after each task, as a PNG, SVG or PDF file."""
    kinds = {".png", ".svg", ".pdf"}
    if path.suffix not in kinds:
        raise VclError(f"A figure's file must end in {', '.join(sorted(kinds))}, but it is {path}.")
    picture = draw_accuracy(results, path.suffix[1:])
    with writing(path):
        write_atomically(path, picture)


def draw_accuracy(results: Sequence[dict[str, Any]], kind: str) -> bytes:
    """Accuracy on each task, and on average, after each task; mean and standard deviation over several seeds."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.ticker import MaxNLocator

    names = results[0]["task_names"]
    if any(r["task_names"] != names for r in results):
        raise VclError("These runs have different tasks, so their curves cannot be averaged. Draw them one by one.")
    matrices = np.array(
        [[[np.nan if a is None else 100 * a for a in row] for row in r["accuracy_matrix"]] for r in results]
    )
    after = np.arange(1, len(names) + 1)
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4), sharey=True, layout="constrained")
    colours = plt.get_cmap("viridis")(np.linspace(0, 0.9, len(names)))
    for task, (name, colour) in enumerate(zip(names, colours, strict=True)):
        left.plot(after[task:], matrices[:, task:, task].mean(0), "o-", color=colour, ms=3.5, lw=1.4, label=name)
    left.set(title="each task", xlabel="after task", ylabel="test accuracy (%)")
    if len(names) <= 10:
        left.legend(frameon=False, fontsize=8, title="task", title_fontsize=8, ncols=2)
    averages = np.nanmean(matrices, axis=2)
    spread = averages.std(0, ddof=1) if len(results) > 1 else np.zeros(len(names))
    right.errorbar(after, averages.mean(0), spread, fmt="o-", color="black", ms=3.5, lw=1.4, capsize=3)
    seeds = f", {len(results)} seeds" if len(results) > 1 else ""
    right.set(title=f"average over tasks seen{seeds}", xlabel="after task")
    for axes in (left, right):
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", alpha=0.3, lw=0.5)
    figure.suptitle(f"{results[0]['benchmark']}, {results[0]['method']}", x=0.01, ha="left", fontweight="bold")
    return saved(figure, kind)


def draw_comparison(title: str, curves: Sequence[tuple[str, Sequence[Sequence[float]]]], kind: str) -> bytes:
    """Average accuracy on the tasks seen, after each task, of several methods: (name, a curve for each seed)."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.ticker import MaxNLocator

    figure, axes = plt.subplots(figsize=(8, 4.6), layout="constrained")
    # Colour, dash and marker together tell methods apart, also without colour.
    colours = plt.get_cmap("viridis")(np.linspace(0, 0.9, len(curves)))
    dashes, markers = ("-", "--", ":", "-."), "osv^D<>pXhP*d"
    for number, (name, seeds) in enumerate(curves):
        values = 100 * np.array(seeds)
        after = np.arange(1, values.shape[1] + 1)
        style = {
            "color": colours[number],
            "ls": dashes[number % len(dashes)],
            "marker": markers[number % len(markers)],
        }
        axes.plot(after, values.mean(0), label=f"{name}  {values[:, -1].mean():.1f}", ms=4, lw=1.3, **style)
        if len(values) > 1:
            low, high = values.mean(0) - values.std(0, ddof=1), values.mean(0) + values.std(0, ddof=1)
            axes.fill_between(after, low, high, color=colours[number], alpha=0.12, lw=0)
    axes.set(xlabel="after task", ylabel="average accuracy on tasks seen (%)")
    axes.set_title(title, loc="left", fontweight="bold")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", alpha=0.3, lw=0.5)
    axes.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return saved(figure, kind)


def saved(figure: Any, kind: str) -> bytes:
    """The figure's file. No date and no names of programs: the same runs give the same bytes."""
    import matplotlib.pyplot as plt

    out = io.BytesIO()
    nothing = {"svg": ("Creator", "Date", "Format", "Type"), "png": ("Software",), "pdf": ("CreationDate",)}[kind]
    figure.savefig(out, format=kind, dpi=150, metadata=dict.fromkeys(nothing))
    plt.close(figure)
    return out.getvalue()
