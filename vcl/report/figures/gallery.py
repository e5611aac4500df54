"""All figures of the paper, from stored runs, as files."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from matplotlib.figure import Figure

from vcl.analysis import Analysis, analyse
from vcl.analysis.trace import read
from vcl.errors import VclError
from vcl.files import write_atomically, writing
from vcl.report import groups
from vcl.report.figures import grids
from vcl.report.figures.accuracy import draw_curves
from vcl.report.figures.active_units import draw_active_units
from vcl.report.figures.counts import draw_counts
from vcl.report.figures.drawing import KINDS, saved
from vcl.report.figures.lives import draw_lives, of_tasks
from vcl.report.figures.output_weights import draw_output_weights
from vcl.report.figures.transfer import draw_transfer
from vcl.report.figures.units import Subject
from vcl.report.labels import labels
from vcl.runs.folder import RunFolder

Named = Iterator[tuple[str, Figure]]
"""Figures, with the names of their files."""


def figures(
    folders: Sequence[RunFolder],
    out: Path,
    *,
    analysed: Callable[[RunFolder], Analysis] = analyse,
    say: Callable[[str], None] = print,
) -> Iterator[Path]:
    """Draw all figures of some runs into the folder `out`.

    Parameters
    ----------
    folders
        The runs. Seeds of one configuration are averaged.
    out
        Where the files go, each figure as SVG and as PNG.
    analysed
        Gives the analysis of a run.
    say
        Is told what is left out, and why.

    Yields
    ------
    The path of each file, as soon as it is written.
    """
    drawn = False
    for name, figure in draw(folders, analysed, say):
        for kind in KINDS:
            path = out / f"{name}.{kind}"
            with writing(path):
                out.mkdir(parents=True, exist_ok=True)
                write_atomically(path, saved(figure, kind))
            drawn = True
            yield path
    if not drawn:
        raise VclError("There was nothing to draw: no run is complete, and none has units that can be analysed.")


def draw(
    folders: Sequence[RunFolder], analysed: Callable[[RunFolder], Analysis], say: Callable[[str], None]
) -> Named:
    """Accuracy for each stream; then, for each configuration, its runs one by one and their counts together."""
    configurations = groups.configurations(folders)
    for stream in groups.streams(folders):
        yield from draw_accuracies(stream, say)
    names = labels([group[0].record for group in configurations], always=("benchmark", "method"), over_seeds=True)
    for label, configuration in zip(names, configurations, strict=True):
        analyses = []
        for folder in configuration:
            try:
                analysis = analysed(folder)
            except VclError as error:
                say(f"{folder.name}: no figures of its units. {error}")
                continue
            analyses.append(analysis)
            seed = folder.record["seed"]
            yield from draw_run(folder, Subject(f"{label}, seed {seed}", folder.record, analysis), say)
        if analyses:
            title = f"Number of active units: {label}"
            yield f"counts-{groups.configuration_name(configuration[0])}", draw_counts(title, analyses)


def draw_accuracies(folders: Sequence[RunFolder], say: Callable[[str], None]) -> Named:
    """The curves of complete runs that learn the same tasks."""
    for folder in folders:
        if folder.result is None:
            say(f"{folder.name}: no accuracy curve, as it is not complete. Continue with: vcl resume {folder.path}")
    complete = groups.configurations([folder for folder in folders if folder.result is not None])
    if complete:
        records = [configuration[0].record for configuration in complete]
        results = [[folder.result for folder in configuration if folder.result] for configuration in complete]
        lines = list(zip(labels(records, over_seeds=True), results, strict=True))
        name = groups.stream_name(records[0])
        yield f"accuracy-{name}", draw_curves(f"Test accuracy: {name}", lines)


def draw_run(folder: RunFolder, subject: Subject, say: Callable[[str], None]) -> Named:
    """All about the units of one run."""
    name, analysis = folder.name, subject.analysis
    if analysis.layers[0].active.any():
        yield f"active-units-{name}", draw_active_units(subject)
    else:
        say(f"{name}: no figure of active units, as no unit of the first layer is active.")
    yield f"transfer-{name}", draw_transfer(f"Transfer: {subject.name}", analysis, folder.result)
    for layer in range(len(analysis.layers)):
        for kind in grids.KINDS:
            yield f"{kind}-layer{layer + 1}-{name}", grids.draw_grid(subject, layer, kind)
    yield f"output-weights-{name}", draw_output_weights(subject)
    if traces := of_tasks(subject, read(folder)):
        for layer in range(len(analysis.layers)):
            yield f"lives-layer{layer + 1}-{name}", draw_lives(subject, traces, layer)
