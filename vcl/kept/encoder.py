"""From named columns to numbers: scaling, categories, missing values, by the statistics of the first batch."""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from vcl.errors import VclError
from vcl.inputs import spread
from vcl.kept.files import Columns

MOST_CATEGORIES = 100
FARTHEST = 10.0
"""Standardised values are cut off here, so that a single outlier does not end the training."""
FAR_MEAN = 2.0
"""Standard deviations between the mean of a batch and that of the first one that call for a warning."""
OFTEN = 0.05


@dataclass(frozen=True)
class Column:
    """What is kept of one column: statistics of the first batch, and never its values."""

    name: str
    kind: str
    """`number` or `category`."""
    mean: float = 0.0
    std: float = 1.0
    low: float = 0.0
    high: float = 0.0
    missing: bool = False
    """Whether values were missing, so that there is an input that says so."""
    categories: tuple[str, ...] = ()

    @property
    def width(self) -> int:
        """How many inputs of the network it becomes."""
        return len(self.categories) + self.missing if self.kind == "category" else 1 + self.missing


@dataclass(frozen=True)
class Encoder:
    """Columns as inputs of a network. All of it is JSON.

    Examples
    --------
    >>> import numpy as np
    >>> table = {"age": np.array([20.0, 40.0, np.nan]), "town": np.array(["Ulm", "Rom", "Ulm"], object)}
    >>> Encoder.fit(table).encode(table).round(2).tolist()
    [[-1.0, 0.0, 0.0, 1.0], [1.0, 0.0, 1.0, 0.0], [0.0, 1.0, 0.0, 1.0]]
    """

    columns: tuple[Column, ...]

    @staticmethod
    def fit(table: Columns) -> "Encoder":
        """The statistics of a first batch."""
        return Encoder(tuple(described(name, values) for name, values in table.items()))

    @staticmethod
    def from_json(value: list[dict[str, Any]]) -> "Encoder":
        return Encoder(tuple(Column(**{**entry, "categories": tuple(entry["categories"])}) for entry in value))

    def to_json(self) -> list[dict[str, Any]]:
        return [{**asdict(column), "categories": list(column.categories)} for column in self.columns]

    @property
    def input_names(self) -> list[str]:
        """What each input of the network is."""
        return [name for column in self.columns for name in names_of(column)]

    @property
    def categories(self) -> list[str]:
        """The names of the columns that are categories."""
        return [column.name for column in self.columns if column.kind == "category"]

    def encode(self, table: Columns) -> Float[np.ndarray, "n d"]:
        """The inputs of the network. Columns are found by name; further ones are ignored."""
        self.check(table)
        return np.concatenate([encoded(column, table[column.name]) for column in self.columns], axis=1)

    def check(self, table: Columns) -> None:
        """Refuse a table that lacks columns, or has them of another type."""
        names = [column.name for column in self.columns]
        if lacking := [name for name in names if name not in table]:
            raise VclError(
                f"The column {lacking[0]!r} is missing; the model was taught with: {', '.join(names)}. "
                "Give the same columns; their order does not matter."
            )
        for column in self.columns:
            values = table[column.name]
            if column.kind == "number" and values.dtype == object:
                odd = next(value for value in values if value is not None and not is_number(value))
                raise VclError(
                    f"The column {column.name!r} held numbers in the first batch, but now holds {odd!r}. Mend the "
                    "column, or start a new model."
                )

    def outside(self, table: Columns) -> Bool[np.ndarray, "n"]:
        """Which rows have a number beyond the first batch's range by more than a standard deviation."""
        numbers = [column for column in self.columns if column.kind == "number"]
        rows = len(next(iter(table.values())))
        return np.any([beyond(column, table[column.name]) for column in numbers] or [np.zeros(rows, bool)], axis=0)

    def warnings(self, table: Columns) -> list[str]:
        """Where a later batch is far from what the first one was like."""
        return [text for column in self.columns if (text := far_outside(column, table[column.name]))]


def described(name: str, values: np.ndarray) -> Column:
    if values.dtype == object:
        levels = sorted({str(value) for value in values if value is not None})
        if len(levels) > MOST_CATEGORIES:
            raise VclError(
                f"The column {name!r} has {len(levels)} different texts, too many for a category (at most "
                f"{MOST_CATEGORIES}). Leave it out with --ignore {name!r}, or turn it into numbers or fewer groups."
            )
        return Column(
            name, "category", categories=tuple(levels), missing=any(value is None for value in values.tolist())
        )
    there = values[np.isfinite(values)]
    if not len(there):
        raise VclError(f"The column {name!r} is empty. Leave it out with --ignore {name!r}.")
    with np.errstate(over="ignore", invalid="ignore"):
        mean, std = float(there.mean()), float(spread(there))
    if not np.isfinite([mean, std]).all():
        raise VclError(f"The column {name!r} has numbers that are too large to be scaled. Use other units.")
    return Column(
        name,
        "number",
        mean=mean,
        std=std,
        low=float(there.min()),
        high=float(there.max()),
        missing=len(there) < len(values),
    )


def names_of(column: Column) -> list[str]:
    shown = [f"{column.name}={level}" for level in column.categories] or [column.name]
    return shown + [f"{column.name} is missing"] * column.missing


def encoded(column: Column, values: np.ndarray) -> Float[np.ndarray, "n w"]:
    """One column as inputs: 0 stands for the mean, for an unknown category, and for a missing value."""
    if column.kind == "category":
        texts = as_texts(values)
        parts = [[text == level for text in texts] for level in column.categories]
        missing = [text is None for text in texts]
    else:
        gone = ~np.isfinite(values)
        standard = (np.where(gone, column.mean, values) - column.mean) / column.std
        parts = [np.clip(standard, -FARTHEST, FARTHEST).tolist()]
        missing = gone.tolist()
    return np.array([*parts, *([missing] if column.missing else [])], np.float64).T.reshape(
        len(values), column.width
    )


def as_texts(values: np.ndarray) -> list[str | None]:
    """Texts of a category; what is a number in this batch, and no text, as it is usually written."""
    if values.dtype == object:
        return values.tolist()
    return [None if value != value else f"{value:g}" for value in values.tolist()]  # noqa: PLR0124


def beyond(column: Column, values: np.ndarray) -> Bool[np.ndarray, "n"]:
    return (values < column.low - column.std) | (values > column.high + column.std)


def is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def far_outside(column: Column, values: np.ndarray) -> str:
    """Why a column is far from what it was, or nothing."""
    if column.kind == "category":
        texts = [text for text in as_texts(values) if text is not None]
        new = sorted({text for text in texts if text not in column.categories})
        part = sum(text in new for text in texts) / max(len(texts), 1)
        return f"{column.name}: unknown categories {', '.join(new[:5])} ({part:.0%} of values)" if new else ""
    there = values[np.isfinite(values)]
    if not len(there):
        return f"{column.name}: every value is missing"
    if len(there) < len(values) and not column.missing:
        return f"{column.name}: {len(values) - len(there)} missing values, of which the first batch had none"
    shift = (there.mean() - column.mean) / column.std
    if abs(shift) > FAR_MEAN:
        return (
            f"{column.name}: its mean of {there.mean():.4g} is {abs(shift):.1f} standard deviations "
            f"{'above' if shift > 0 else 'below'} that of the first batch"
        )
    outside = beyond(column, there).mean()
    return f"{column.name}: {outside:.0%} of values lie outside the first batch's range" if outside > OFTEN else ""
