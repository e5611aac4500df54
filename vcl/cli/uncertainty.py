"""vcl uncertainty: whether a run's uncertainty can be trusted."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from vcl.cli import tables
from vcl.cli.console import out as stdout
from vcl.cli.console import print_json, say
from vcl.cli.options import DataDir, Json

if TYPE_CHECKING:
    from vcl.analysis.uncertainty import Report
    from vcl.runs import StoredRun


def uncertainty(
    run: Annotated[Path, Parameter(help="A complete run.")],
    /,
    *more: Annotated[Path, Parameter(help="Further runs of the same benchmark, such as other seeds.")],
    figure: Annotated[
        Path | None,
        Parameter(help="Also draw a reliability diagram and the risk of selective prediction: .svg, .png or .pdf."),
    ] = None,
    data_dir: DataDir = None,
    json: Json = False,
) -> None:
    """Measure calibration, selective prediction and the detection of out-of-distribution inputs.

    Means over all tasks after the last one; with several runs, mean ± standard deviation over the seeds of each
    configuration. AUROC is the probability that an input from outside has a higher entropy than a test input: 0.5
    is chance. The inputs from outside are another data set's images, uniform noise, and a further permutation or
    classes of other tasks: all of them after the last task, and the later ones, unseen, just after each task. Risk
    is the part of wrong answers where only the most confident part is answered.
    """
    from vcl.analysis.uncertainty import as_json, averaged
    from vcl.report.figures.uncertainty import check_kind, uncertainty_figure
    from vcl.report.groups import configurations
    from vcl.report.labels import labels
    from vcl.runs import StoredRun

    if figure is not None:
        check_kind(figure)
    groups = configurations([StoredRun.open(path).folder for path in (run, *more)])
    names = labels([group[0].record for group in groups], over_seeds=True)
    found = {
        name: measured([StoredRun(folder) for folder in group], data_dir)
        for name, group in zip(names, groups, strict=True)
    }
    if figure is not None:
        uncertainty_figure(f"Uncertainty: {groups[0][0].record['benchmark']}", found, figure)
        say(f"Figure: {figure}")
    if json:
        print_json({name: as_json(reports) for name, reports in found.items()})
    else:
        means = {name: averaged(reports) for name, reports in found.items()}
        stdout().print(tables.uncertainty_table(means, {name: len(reports) for name, reports in found.items()}))


def measured(runs: list["StoredRun"], data_dir: Path | None) -> list["Report"]:
    """The reports of some runs."""
    from vcl.analysis.uncertainty import uncertainty

    reports = []
    for run in runs:
        say(f"Measuring {run.name} …")
        reports.append(uncertainty(run, data_dir))
    return reports
