"""The paper's figure 2 under its own recipe: active units of permuted MNIST after each task, from the stored counts.

    .venv/bin/python bench/paper_counts.py

reads results/units/permuted-mnist-paper*.json, whose commands stand in them, and draws
docs/images/counts-permuted-mnist-paper.png.
"""

import json
from pathlib import Path
from typing import Any

from vcl.report.figures.drawing import DASHES, DISTINCT, MARKERS, after_tasks, canvas, caption, tidy

ROOT = Path(__file__).parent.parent
PAPER = 11
"""What the paper counts in the upper layer."""
LAYERS = ("lower layer", "upper layer")


def lines() -> dict[str, list[list[int]]]:
    """Active units of both layers after each task, by what was run and how they were counted."""
    ten, one, shared = (read(f"permuted-mnist-paper{kind}.json") for kind in ("", "-one-sample", "-shared-noise"))
    return {
        "ten samples": ten["active_units"],
        "ten samples, tolerance 0.05": ten["active_units_tolerance_0.05"],
        "one sample": one["active_units"],
        "one sample, noise per minibatch": shared[0]["active_units"],
    }


def read(name: str) -> Any:
    return json.loads((ROOT / "results" / "units" / name).read_text())


def main() -> None:
    figure = canvas(9.0, 3.8, "Active units of permuted MNIST under the recipe paper, {100, 100}")
    panels = figure.subplots(1, len(LAYERS), sharey=True)
    for layer, (axes, name) in enumerate(zip(panels, LAYERS, strict=True)):
        for number, (label, counts) in enumerate(lines().items()):
            after = range(1, len(counts) + 1)
            style = {"color": DISTINCT[number], "ls": DASHES[number], "marker": MARKERS[number], "ms": 4, "lw": 1.3}
            axes.plot(after, [both[layer] for both in counts], label=label, **style)
        axes.set_title(name, fontsize=9)
        axes.set_ylim(0, 105)
        after_tasks(axes, 10)
        tidy(axes)
    panels[-1].axhline(PAPER, color="black", lw=0.8)
    panels[-1].text(10, PAPER - 2, f"the paper: {PAPER}", ha="right", va="top", fontsize=8)
    panels[0].set_ylabel("active units of 100", fontsize=8)
    panels[0].legend(frameon=False, fontsize=8, loc="lower right")
    caption(figure, "One seed each; 800 epochs a task. The tolerance is 0.0002 where nothing else is said.")
    figure.savefig(ROOT / "docs" / "images" / "counts-permuted-mnist-paper.png", dpi=150)


if __name__ == "__main__":
    main()
