"""Line charts as SVG that takes its colours from the page, so that it is at home in light and in dark."""

import math
from collections.abc import Sequence
from html import escape

import numpy as np

WIDTH, HEIGHT = 460, 260
LEFT, RIGHT, TOP, BOTTOM = 62, 24, 12, 40
STYLES = 10
"""How many series look different: colour, dash and marker change together."""

Series = tuple[str, Sequence[float | None]]
"""A name, and a value after each task; None where there is none."""
Curve = tuple[str, Sequence[float], Sequence[float]]
"""A name, and the places of its points."""
FEW = 12
"""Curves with more points than this have no markers."""


def line_chart(
    title: str,
    y_label: str,
    series: Sequence[Series],
    *,
    from_zero: bool = False,
    scale: Sequence[float] | None = None,
) -> str:
    """Values after each task, a line for each series, with its legend; `scale`: ticks shared with other charts."""
    steps = max(len(values) for _, values in series)
    known = [value for _, values in series for value in values if value is not None]
    ticks = scale or nice_ticks(0.0 if from_zero else min(known), max(known))

    def x(step: int) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * (step + 0.5) / steps

    def y(value: float) -> float:
        return TOP + (HEIGHT - TOP - BOTTOM) * (ticks[-1] - value) / (ticks[-1] - ticks[0])

    rules = "".join(
        f"<line class='rule' x1='{LEFT}' x2='{WIDTH - RIGHT}' y1='{y(tick):.1f}' y2='{y(tick):.1f}'/>"
        f"<text x='{LEFT - 6}' y='{y(tick) + 4:.1f}' text-anchor='end'>{tick:g}</text>"
        for tick in ticks
    )
    numbers = "".join(
        f"<text x='{x(step):.1f}' y='{HEIGHT - BOTTOM + 18}' text-anchor='middle'>{step + 1}</text>"
        for step in range(0, steps, max(1, steps // 10))
    )
    lines = "".join(
        _line(number, [(x(step), y(value)) for step, value in enumerate(values) if value is not None])
        for number, (_, values) in enumerate(series)
    )
    middle = (TOP + HEIGHT - BOTTOM) / 2
    return f"""<figure class="chart"><figcaption>{escape(title)}</figcaption>
<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}: {escape(y_label)}, after each task">
{rules}{numbers}{lines}
<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 4}" text-anchor="middle">after task</text>
<text transform="translate(12 {middle}) rotate(-90)" text-anchor="middle">{escape(y_label)}</text>
</svg>{_legend(series) if len(series) > 1 else ""}</figure>"""


def curve_chart(
    title: str,
    labels: tuple[str, str],
    curves: Sequence[Curve],
    *,
    x_ticks: Sequence[tuple[float, str]],
    y_ticks: Sequence[tuple[float, str]],
    ideal: bool = False,
    marks: Sequence[tuple[float, str]] = (),
) -> str:
    """Curves between the first and last ticks; `marks` are labelled vertical lines; `ideal` adds the diagonal."""
    (left, _), (right, _), (low, _), (high, _) = x_ticks[0], x_ticks[-1], y_ticks[0], y_ticks[-1]

    def x(value: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * (value - left) / ((right - left) or 1.0)

    def y(value: float) -> float:
        return TOP + (HEIGHT - TOP - BOTTOM) * (high - value) / ((high - low) or 1.0)

    bottom = HEIGHT - BOTTOM
    parts = [
        f"<line class='rule' x1='{LEFT}' x2='{WIDTH - RIGHT}' y1='{y(value):.1f}' y2='{y(value):.1f}'/>"
        f"<text x='{LEFT - 6}' y='{y(value) + 4:.1f}' text-anchor='end'>{escape(word)}</text>"
        for value, word in y_ticks
    ]
    parts += [
        f"<text x='{x(value):.1f}' y='{bottom + 18}' text-anchor='middle'>{escape(word)}</text>"
        for value, word in x_ticks
    ]
    parts += [
        f"<line class='rule' x1='{x(value):.1f}' x2='{x(value):.1f}' y1='{TOP}' y2='{bottom}'/>"
        f"<text x='{x(value) + 3:.1f}' y='{TOP + 10}'>{escape(word)}</text>"
        for value, word in marks
    ]
    if ideal:
        parts.append(f"<line class='ideal' x1='{x(left)}' y1='{y(low)}' x2='{x(right)}' y2='{y(high)}'/>")
    for number, (_, across, up) in enumerate(curves):
        points = [(x(a), y(min(max(b, low), high))) for a, b in zip(across, up, strict=True)]
        parts.append(_line(number, points, marked=len(points) <= FEW))
    told = escape(f"{title}: {labels[1]} by {labels[0]}")
    return f"""<figure class="chart"><figcaption>{escape(title)}</figcaption>
<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{told}">
{"".join(parts)}
<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 4}" text-anchor="middle">{escape(labels[0])}</text>
<text transform="translate(12 {(TOP + bottom) / 2}) rotate(-90)" text-anchor="middle">{escape(labels[1])}</text>
</svg>{_legend([(name, list(up)) for name, _, up in curves]) if len(curves) > 1 else ""}</figure>"""


def nice_ticks(low: float, high: float) -> list[float]:
    """Round numbers, four to eight of them, from below `low` to above `high`."""
    span = (high - low) or abs(high) or 1.0
    power = 10.0 ** math.floor(math.log10(span / 4))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if span / (power * factor) <= 6)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [float(np.round(step * number, 12)) for number in range(first, max(last, first + 1) + 1)]


def _line(number: int, points: Sequence[tuple[float, float]], *, marked: bool = True) -> str:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    markers = "".join(_marker(number, x, y) for x, y in points) if marked else ""
    return f"<g class='series s{number % STYLES}'><polyline points='{path}'/>{markers}</g>"


def _marker(number: int, x: float, y: float) -> str:
    """Circle, square, diamond, triangle, in turn."""
    r = 3.6
    shape = number % 4
    if shape == 0:
        return f"<circle cx='{x:.1f}' cy='{y:.1f}' r='{r}'/>"
    if shape == 1:
        return f"<rect x='{x - r:.1f}' y='{y - r:.1f}' width='{2 * r}' height='{2 * r}'/>"
    corners = ((0, -1.4), (1.4, 0), (0, 1.4), (-1.4, 0)) if shape == 2 else ((0, -1.3), (1.2, 1), (-1.2, 1))
    return f"<polygon points='{' '.join(f'{x + r * a:.1f},{y + r * b:.1f}' for a, b in corners)}'/>"


def _legend(series: Sequence[Series]) -> str:
    rows = "".join(
        f"<li><svg viewBox='0 0 34 12' width='34' height='12' aria-hidden='true'>"
        f"<g class='series s{number % STYLES}'><polyline points='1,6 33,6'/>{_marker(number, 17.0, 6.0)}</g></svg>"
        f"{escape(name)}</li>"
        for number, (name, values) in enumerate(series)
        if values
    )
    return f"<ul class='legend'>{rows}</ul>"
