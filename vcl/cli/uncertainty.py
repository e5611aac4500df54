"""vcl uncertainty: whether a run's uncertainty can be trusted."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from vcl.cli import tables
from vcl.cli.console import out as stdout
from vcl.cli.console import print_json, say
from vcl.cli.options import DataDir, Json


def uncertainty(
    run: Annotated[Path, Parameter(help="A complete run.")],
    /,
    *more: Annotated[Path, Parameter(help="Further runs of the same benchmark, such as other seeds.")],
    data_dir: DataDir = None,
    json: Json = False,
) -> None:
    """Measure calibration, selective prediction and the detection of out-of-distribution inputs.

    Means over all tasks after the last one; with several runs, mean ± standard deviation over each method's runs.
    AUROC is the probability that an input from outside has a higher entropy than a test input: 0.5 is chance. The
    inputs from outside are another data set's images, uniform noise, and classes or permutations not yet seen.
    """
    from vcl.analysis.uncertainty import averaged, uncertainty
    from vcl.runs import StoredRun

    by_method: dict[str, list[object]] = {}
    for path in (run, *more):
        stored = StoredRun.open(path)
        say(f"Measuring {stored.name} …")
        by_method.setdefault(stored.record["method"], []).append(uncertainty(stored, data_dir))
    found = {method: averaged(reports) for method, reports in by_method.items()}  # type: ignore[arg-type]
    if json:
        print_json(
            {
                method: {name: {"mean": m, "standard_deviation": s} for name, (m, s) in columns.items()}
                | {"runs": len(by_method[method])}
                for method, columns in found.items()
            }
        )
    else:
        stdout().print(tables.uncertainty_table(found, {method: len(runs) for method, runs in by_method.items()}))
