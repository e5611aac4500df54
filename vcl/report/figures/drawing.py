"""What all figures share: one style, colours that all can tell apart, and files that are the same to the byte."""

import io
import textwrap
import zlib
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import Locator, LogLocator, MaxNLocator
from PIL import Image

KINDS = ("svg", "png")
"""Every figure is written as each of these."""
PRUNED = "#9a9a9a"
# In both, white is what nothing was learnt of: a mean of zero, a variance as large as the prior's.
MEANS, VARIANCES = "RdBu_r", "Greys_r"
CHANNELS = "gray"
"""Of each channel of a colour image: dark is negative, bright positive."""
# Okabe and Ito's colours, without the yellow that white paper swallows.
DISTINCT = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
METHOD_COLOURS = {
    "kronecker-vcl": "#b2182b",
    "kronecker-vcl-recall": "#c51b7d",
    "vcl": "#e08214",
    "gvcl": "#8c510a",
    "laplace": "#2166ac",
    "ewc": "#4393c3",
    "si": "#35978f",
    "joint": "#000000",
    "finetune": "#7b3294",
}
"""The methods that stand out among many."""
FURTHER = (
    "#1b7837",
    "#01665e",
    "#5e4fa2",
    "#bf812d",
    "#7fbc41",
    "#d6604d",
    "#4d4d4d",
    "#80cdc1",
    "#de77ae",
)
"""Those of the others, by their names."""
# Colour, dash and marker together tell lines apart, also without colour.
DASHES, MARKERS = ("-", "--", ":", "-."), "osv^D<>pXhP*d"
DOTS_PER_INCH = 150
LETTERS_PER_INCH = 16
COLUMNS = 6
"""Entries of a legend side by side."""


def canvas(width: float, height: float, title: str) -> Figure:
    """An empty figure, in inches."""
    figure = Figure(figsize=(width, height), layout="constrained")
    headed(figure, title)
    return figure


def headed(figure: Figure, title: str) -> None:
    """Put a title at the top left."""
    figure.suptitle(title, x=0.01, ha="left", fontweight="bold", fontsize=11)


def caption(figure: Figure, text: str) -> None:
    """A few lines below the figure that say how to read it."""
    width = int(LETTERS_PER_INCH * figure.get_figwidth())
    figure.supxlabel(textwrap.fill(text, width), x=0.01, ha="left", fontsize=8, color="#444444")


def tidy(axes: Axes, *, grid: str = "y") -> None:
    """Two spines and a faint grid."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis=grid, alpha=0.3, lw=0.5)  # type: ignore[arg-type]
    axes.tick_params(labelsize=8)


def bare(axes: Axes) -> None:
    """Nothing but what is drawn in it."""
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set_visible(False)


def colours(number: int) -> list[Any]:
    """As many colours as asked for: distinct ones while there are enough, else steps along a colour map."""
    if number <= len(DISTINCT):
        return list(DISTINCT[:number])
    return list(mpl.colormaps["viridis"](np.linspace(0, 0.92, number)))


def method_colour(label: str) -> str:
    """The colour of a method, the same in every figure; `vcl:coreset=200` and `vcl, seed 0` have that of `vcl`.

    >>> method_colour("vcl") == method_colour("vcl:coreset=200") != method_colour("laplace")
    True
    """
    name = label.split(":", maxsplit=1)[0].split(",", maxsplit=1)[0]
    return METHOD_COLOURS.get(name) or FURTHER[zlib.crc32(name.encode()) % len(FURTHER)]


def legend(figure: Figure, entries: dict[str, Any]) -> None:
    """What the colours mean, at the top right: beside the title, or above it where there is no room."""
    title = figure.get_suptitle()
    letters = 1.6 * len(title) + sum(len(entry) + 6 for entry in entries)
    if letters > LETTERS_PER_INCH * figure.get_figwidth():
        headed(figure, "\n" * -(-len(entries) // COLUMNS) + title)
    handles = [Line2D([], [], color=colour, lw=4) for colour in entries.values()]
    figure.legend(
        handles,
        list(entries),
        loc="outside upper right",
        ncols=min(len(entries), COLUMNS),
        frameon=False,
        fontsize=8,
        handlelength=1.0,
        columnspacing=1.2,
    )


def scale(figure: Figure, image: ScalarMappable, axes: Any, label: str, **place: Any) -> None:
    """The colours of an image, with their values."""
    bar = figure.colorbar(image, ax=axes, ticks=_few_ticks(image), format="%g", **place)
    bar.minorticks_off()
    bar.set_label(label, fontsize=8)
    bar.ax.tick_params(labelsize=7)
    # One end of a scale may be as white as the paper.
    bar.outline.set(edgecolor="#cccccc", linewidth=0.5)


def _few_ticks(image: ScalarMappable) -> Locator | None:
    """Round numbers on a logarithmic scale, also where it is too short for powers of ten."""
    norm = image.norm
    if not isinstance(norm, LogNorm):
        return None
    return (
        LogLocator(subs=(1, 2, 5))
        if (norm.vmax or 1.0) > 10 * (norm.vmin or 1.0)
        else MaxNLocator(4, steps=[1, 2, 5, 10])
    )


def after_tasks(axes: Axes, number: int) -> None:
    """An axis that counts tasks."""
    every = -(-number // 10)
    axes.set_xticks(range(1, number + 1, every))
    axes.set_xlim(0.7, number + 0.3)
    axes.set_xlabel("after task", fontsize=8)


def saved(figure: Figure, kind: str) -> bytes:
    """The figure's file. No date, no names of programs, no random names: the same runs give the same bytes."""
    out = io.BytesIO()
    nothing = {"svg": ("Creator", "Date", "Format", "Type"), "png": ("Software",), "pdf": ("CreationDate",)}[kind]
    with mpl.rc_context({"svg.hashsalt": "vcl"}):
        figure.savefig(out, format=kind, dpi=DOTS_PER_INCH, metadata=dict.fromkeys(nothing))
    return smaller(out) if kind == "png" and not _has_colour_images(figure) else out.getvalue()


def _has_colour_images(figure: Figure) -> bool:
    """Whether there are images of red, green and blue in it, of which 256 colours would lose much."""
    return any(np.ndim(np.asarray(image.get_array())) == 3 for axes in figure.axes for image in axes.images)


def smaller(picture: io.BytesIO) -> bytes:
    """The PNG in 256 colours, spread over all that are in it: a third of the size, and no hue is lost."""
    out = io.BytesIO()
    whole = Image.open(picture).convert("RGB")
    few = whole.quantize(256, Image.Quantize.MAXCOVERAGE, kmeans=1, dither=Image.Dither.NONE)
    few.save(out, format="png", optimize=True, dpi=(DOTS_PER_INCH, DOTS_PER_INCH))
    return out.getvalue()
