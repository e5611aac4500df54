"""vcl data: list, fetch and verify the data sets; and the lists of methods and benchmarks."""

import inspect
from typing import Annotated

from cyclopts import Parameter

from vcl.cli import tables
from vcl.cli.console import out as stdout
from vcl.cli.console import show as show_text
from vcl.cli.options import DataDir
from vcl.errors import VclError


def list_methods() -> None:
    """List the methods."""
    from vcl.methods import METHODS

    stdout().print(
        tables.names_table({name: (inspect.getdoc(kind) or "").split("\n\n")[0] for name, kind in METHODS.items()})
    )


def list_benchmarks() -> None:
    """List the benchmarks."""
    from vcl.benchmarks import STREAMS

    stdout().print(tables.names_table({name: benchmark.summary for name, benchmark in STREAMS.items()}))


def list_data() -> None:
    """List the data sets and their locations."""
    from vcl.data import overview

    stdout().print(tables.datasets_table(overview()))


def fetch(name: Annotated[str, Parameter(help="Name of the data set.")], /, *, data_dir: DataDir = None) -> None:
    """Fetch a data set into the cache, from the first source that has it."""
    from vcl import data

    show_text(f"{name}: {data.fetch(name, data_dir)}")


def verify(
    name: Annotated[str | None, Parameter(help="Name of the data set (default: all).")] = None,
    /,
    *,
    data_dir: DataDir = None,
) -> None:
    """Compare files with their known SHA-256 checksums; exit code 2 if one was altered."""
    from vcl import data
    from vcl.errors import choose

    names = [choose("data set", name, data.DATASETS)] if name else list(data.DATASETS)
    rows = [(n, status) for n in names for status in data.verify(n, data_dir)]
    stdout().print(tables.files_table(rows))
    if altered := [str(s.path) for _, s in rows if s.status.startswith("altered")]:
        raise VclError(f"Altered: {', '.join(altered)}. Remove it; `vcl data fetch` fetches the right one.")
