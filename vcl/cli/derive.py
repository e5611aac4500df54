"""Commands that make a smaller or a larger network from a stored run: prune, widen."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from vcl.cli import tables
from vcl.cli.console import err, print_json, say
from vcl.cli.console import out as stdout
from vcl.cli.options import After, DataDir, Json, RunPath, Tolerance, widths


def prune(
    run: RunPath,
    /,
    *,
    out: Annotated[Path | None, Parameter(help="Folder to write; default: RUN-pruned, beside RUN.")] = None,
    after: After = None,
    tolerance: Tolerance = None,
    data_dir: DataDir = None,
    json: Json = False,
) -> None:
    """Remove the inactive units: a smaller network with the same predictions.

    The result is a new run folder: `vcl predict` predicts from it, `vcl resume` continues learning with it, and
    `vcl widen` adds room for further tasks.
    """
    from vcl import analysis, runs
    from vcl.progress import Board

    stored = runs.StoredRun.open(run.resolve())
    runs.prepare_jax(stored.record["config"]["threads"])
    settings = {} if tolerance is None else {"tolerance": tolerance}
    with Board(err, [stored.name], quiet=json) as board:
        pruning = analysis.prune(
            stored.folder,
            out or stored.path.with_name(f"{stored.name}-pruned"),
            after=after,
            data_dir=data_dir,
            watch=lambda fraction, text: board.show(0, fraction, text),
            **settings,
        )
    if json:
        return print_json(pruning.as_json())
    stdout().print(tables.pruning_table(pruning))
    return say(f"Run folder of the smaller network: {pruning.run}")


def widen(
    run: RunPath,
    /,
    *,
    hidden: Annotated[
        tuple[int, ...],
        Parameter(help="Units in each hidden layer, such as 100,100.", n_tokens=1, converter=widths),
    ],
    out: Annotated[Path | None, Parameter(help="Folder to write; default: RUN-widened, beside RUN.")] = None,
    after: After = None,
) -> None:
    """Add untrained units to the hidden layers without changing predictions: room for further tasks.

    The result is a new run folder; `vcl resume` continues learning with it.
    """
    from vcl import analysis, runs

    stored = runs.StoredRun.open(run.resolve())
    runs.prepare_jax(stored.record["config"]["threads"])
    place = out or stored.path.with_name(f"{stored.name}-widened")
    wider = analysis.widen(stored.folder, place, hidden, after=after)
    say(f"Run folder of the wider network: {wider.path}")
