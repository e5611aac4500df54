"""All figures of the paper, from stored runs, as files."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from matplotlib.figure import Figure

from vcl.analysis import Analysis, analyse
from vcl.analysis.trace import read
from vcl.errors import VclError
from vcl.files import write_atomically
from vcl.report import groups
from vcl.report.drawing import KINDS, saved
from vcl.report.figures import draw_curves
from vcl.report.lives import draw_lives, of_tasks
from vcl.report.transfer import draw_transfer
from vcl.report.units import draw_active_units, draw_counts, draw_grid, draw_output_weights, subject
from vcl.store import RunFolder, writing

Named = Iterator[tuple[str, Figure]]
"""Figures, with the names of their files."""


def figures(
    folders: Sequence[RunFolder],
    out: Path,
    *,
    look: Callable[[RunFolder], Analysis] = analyse,
    say: Callable[[str], None] = print,
) -> Iterator[Path]:
    """Draw all that the runs can tell into the folder `out`; gives each file as soon as it is written.

    `look` gives the analysis of a run; `say` is told what is left out, and why.
    """
    drawn = False
    for name, figure in draw(folders, look, say):
        for kind in KINDS:
            path = out / f"{name}.{kind}"
            with writing(path):
                out.mkdir(parents=True, exist_ok=True)
                write_atomically(path, saved(figure, kind))
            drawn = True
            yield path
    if not drawn:
        raise VclError("There was nothing to draw: no run is complete, and none has units that can be looked into.")


def draw(folders: Sequence[RunFolder], look: Callable[[RunFolder], Analysis], say: Callable[[str], None]) -> Named:
    """Accuracy for each stream; then, for each configuration, its runs one by one and their counts together."""
    configurations = groups.configurations(folders)
    for stream in groups.streams(folders):
        yield from draw_accuracies(stream, say)
    for configuration in configurations:
        analyses = []
        for folder in configuration:
            try:
                analysis = look(folder)
            except VclError as error:
                say(f"{folder.name}: no figures of its units. {error}")
                continue
            analyses.append(analysis)
            yield from draw_run(folder, analysis, say)
        if analyses:
            record = configuration[0].record
            title = f"Number of active units: {record['benchmark']}, {record['method']}"
            yield f"counts-{groups.configuration_name(configuration[0])}", draw_counts(title, analyses)


def draw_accuracies(folders: Sequence[RunFolder], say: Callable[[str], None]) -> Named:
    """The curves of complete runs that learn the same tasks."""
    for folder in folders:
        if folder.result is None:
            say(f"{folder.name}: no accuracy curve, as it is not complete. Go on with: vcl resume {folder.path}")
    complete = groups.configurations([folder for folder in folders if folder.result is not None])
    if complete:
        records = [configuration[0].record for configuration in complete]
        results = [[folder.result for folder in configuration if folder.result] for configuration in complete]
        lines = list(zip(groups.labels(records), results, strict=True))
        name = groups.stream_name(records[0])
        yield f"accuracy-{name}", draw_curves(f"Test accuracy: {name}", lines)


def draw_run(folder: RunFolder, analysis: Analysis, say: Callable[[str], None]) -> Named:
    """All about the units of one run."""
    record, name = folder.record, folder.name
    if analysis.layers[0].active.any():
        yield f"active-units-{name}", draw_active_units(record, analysis)
    else:
        say(f"{name}: no figure of active units, as it has none: all can be removed from the first layer at once.")
    yield f"transfer-{name}", draw_transfer(f"Transfer: {subject(record)}", analysis, folder.result)
    for layer in range(len(analysis.layers)):
        for kind in ("means", "variances"):
            yield f"{kind}-layer{layer + 1}-{name}", draw_grid(record, analysis, layer, kind)
    yield f"output-weights-{name}", draw_output_weights(record, analysis)
    if traces := of_tasks(record, analysis, read(folder)):
        for layer in range(len(analysis.layers)):
            yield f"lives-layer{layer + 1}-{name}", draw_lives(record, analysis, traces, layer)
