"""Tables as files within the page."""

import base64
import csv
import io
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any


def download(name: str, head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A link that saves a table as CSV; what a spreadsheet would take for a formula is made text."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows([[harmless(cell) for cell in row] for row in (head, *rows)])
    content = base64.b64encode(text.getvalue().encode()).decode()
    file = "".join(letter if letter.isalnum() else "-" for letter in name.lower()).strip("-")
    return (
        f"<p class='soft'><a download='{escape(file)}.csv' href='data:text/csv;base64,{content}'>"
        f"CSV<span class='hidden'> of {escape(name)}</span></a></p>"
    )


def harmless(cell: Any) -> Any:
    """Text that starts like a formula, with a quote before it; numbers stay as they are.

    >>> harmless("=1+1"), harmless("-0.5"), harmless("+12.00")
    ("'=1+1", '-0.5', '+12.00')
    """
    if isinstance(cell, str) and cell[:1] in tuple("=+-@\t\r"):
        try:
            float(cell)
        except ValueError:
            return f"'{cell}"
    return cell
