"""Batches of data from files: CSV, Parquet, NumPy arrays, folders of images by class."""

import contextlib
import csv
import hashlib
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zipfile import ZipFile

import numpy as np

from vcl import inputs
from vcl.errors import VclError
from vcl.files import open_regular
from vcl.inputs import Label, parse_npy

if TYPE_CHECKING:
    from PIL import Image

MISSING = {"", "na", "n/a", "nan", "null", "none"}
USUAL_LABELS = ("label", "target", "class", "y")
MOST_BYTES = 1 << 34
MOST_PIXELS = 1 << 26
PICTURES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp"}

Table = dict[str, list[Any]]
"""Columns as a file has them."""
Columns = dict[str, np.ndarray]
"""float64 with NaN for missing numbers, or objects: strings, with None for missing ones."""


@dataclass(frozen=True)
class Batch:
    """What one file holds: named columns or pixels, and a label for each example where there are labels."""

    source: str
    columns: Columns | None
    pixels: np.ndarray | None
    labels: list[Label] | None
    label: str | None = None
    """The name of the column with the labels."""

    @property
    def size(self) -> int:
        if self.pixels is not None:
            return len(self.pixels)
        return len(next(iter((self.columns or {}).values()), ()))


def read(
    path: Path,
    label: str | None = None,
    *,
    ignore: Sequence[str] = (),
    labelled: bool = True,
    categories: Sequence[str] = (),
) -> Batch:
    """One batch of data. `label` is the column with the labels; to predict (`labelled=False`) none is needed.

    Columns that are known as `categories` keep their texts, even where all of them look like numbers.
    """
    if not path.exists():
        raise VclError(f"There is no file or folder {path}.")
    if path.is_dir():
        return read_pictures(path)
    readers: dict[str, Callable[[Path], tuple[Table | np.ndarray, Any]]] = {
        ".csv": read_csv,
        ".parquet": read_parquet,
        ".npz": read_npz,
        ".npy": read_npy,
    }
    if path.suffix.lower() not in readers:
        raise VclError(
            f"{path} ends in {path.suffix or 'nothing'}, which is not known. Give a file that ends in "
            f"{', '.join(readers)}, or a folder with one folder of images for each class."
        )
    content, labels = readers[path.suffix.lower()](path)
    if isinstance(content, np.ndarray):
        if labelled and labels is None:
            raise VclError(
                f"{path} has no labels. Put them into an array y of the .npz file, or beside a .npy file into "
                f"{path.stem}-labels.npy."
            )
        if labels is not None and len(labels) != len(content):
            raise VclError(f"{path} has {len(content)} examples and {len(labels)} labels; they must be as many.")
        as_list = None if labels is None else as_labels(np.asarray(labels).tolist(), path, labelled)
        if content.dtype == np.uint8 or content.ndim > 2:
            return Batch(str(path), None, content, as_list)
        numbers = {f"x{i + 1}": content[:, i].astype(np.float64) for i in range(content.shape[1])}
        return Batch(str(path), numbers, None, as_list)
    table = {
        name: typed(column, as_text=name in categories) for name, column in content.items() if name not in ignore
    }
    name = label_column(path, list(table), label, labelled)
    values = table.pop(name, None) if name else None
    if not table:
        raise VclError(f"{path} has no columns beside the labels, so there is nothing to predict them from.")
    if not len(next(iter(table.values()))):
        raise VclError(f"{path} holds no examples.")
    as_list = None if values is None else as_labels(values.tolist(), path, labelled)
    return Batch(str(path), table, None, as_list, name)


def one_line(error: Exception) -> str:
    """What an error says, short enough to be read."""
    return (" ".join(str(error).split()) or type(error).__name__)[:300].rstrip(".")


def label_column(path: Path, names: list[str], label: str | None, labelled: bool) -> str | None:
    """The column with the labels: the one that is named, or one with a usual name."""
    if label is not None:
        if label not in names and labelled:
            raise VclError(f"{path} has no column {label!r}. Its columns: {', '.join(names)}.")
        return label
    found = [name for name in names if name.lower() in USUAL_LABELS]
    if len(found) == 1 or not labelled:
        return found[0] if found else None
    raise VclError(
        f"Which column of {path} holds the labels? Say so with --label COLUMN. Its columns: {', '.join(names)}."
    )


def as_labels(values: list[Any], path: Path, labelled: bool) -> list[Label] | None:
    """Labels as whole numbers where all are; otherwise as they are. To predict, all of them may be missing."""
    missing = [number for number, value in enumerate(values, start=1) if value is None or value != value]  # noqa: PLR0124
    if missing and len(missing) == len(values) and not labelled:
        return None
    if missing:
        raise VclError(f"Example {missing[0]} of {path} has no label. Remove it, or give it one.")
    if all(isinstance(value, float) and value.is_integer() for value in values):
        return [int(value) for value in values]
    return values


def read_csv(path: Path) -> tuple[Table, None]:
    try:
        with open_regular(path, most=MOST_BYTES) as raw, io.TextIOWrapper(raw, "utf-8-sig", newline="") as file:
            rows = list(csv.reader(file))
    except (OSError, ValueError, csv.Error) as error:
        raise VclError(f"{path} could not be read as a CSV file: {error}. Save it as CSV in UTF-8.") from None
    if not rows:
        raise VclError(f"{path} is empty. Its first line must name the columns.")
    names, body = [name.strip() for name in rows[0]], [row for row in rows[1:] if row]
    if twice := {name for name in names if names.count(name) > 1}:
        raise VclError(f"{path} has two columns named {sorted(twice)[0]!r}. Rename one.")
    if wrong := [number for number, row in enumerate(body, start=2) if len(row) != len(names)]:
        raise VclError(
            f"Line {wrong[0]} of {path} has {len(body[wrong[0] - 2])} fields, but the first line names "
            f"{len(names)}. Fields with commas need quotes."
        )
    columns = zip(*body, strict=True) if body else ([] for _ in names)
    return {name: list(column) for name, column in zip(names, columns, strict=True)}, None


def typed(values: list[Any], *, as_text: bool = False) -> np.ndarray:
    """A column of numbers where all that is there is a number, else of strings; or as the text that it is."""
    found = [None if value is None or str(value).strip().lower() in MISSING else value for value in values]
    if not (as_text and all(value is None or isinstance(value, str) for value in found)):
        with contextlib.suppress(TypeError, ValueError):
            return np.array([np.nan if value is None else float(value) for value in found], np.float64)
    column = np.empty(len(found), object)
    column[:] = [None if value is None else str(value).strip() for value in found]
    return column


def read_parquet(path: Path) -> tuple[Table, None]:
    try:
        from pyarrow import ArrowException, parquet
    except ImportError:
        raise VclError("Parquet files need pyarrow: pip install 'vcl[parquet]'. Or save the table as CSV.") from None
    try:
        with open_regular(path, most=MOST_BYTES) as file:
            table = parquet.read_table(file)
        if twice := {name for name in table.column_names if table.column_names.count(name) > 1}:
            raise VclError(f"{path} has two columns named {sorted(twice)[0]!r}. Rename one.")
        return {name: table.column(name).to_pylist() for name in table.column_names}, None
    except (OSError, ArrowException, ValueError, OverflowError) as error:
        raise VclError(f"{path} could not be read as a Parquet file: {one_line(error)}.") from None


def read_npz(path: Path) -> tuple[np.ndarray, np.ndarray | None]:
    try:
        with open_regular(path, most=MOST_BYTES) as file, ZipFile(file) as archive:
            found = {name.removesuffix(".npy"): archive.getinfo(name) for name in archive.namelist()}
            if "x" not in found:
                raise VclError(f"{path} must hold an array x with the examples, and y with their labels.")
            if (size := sum(found[name].file_size for name in ("x", "y") if name in found)) > MOST_BYTES:
                raise VclError(f"{path} unpacks to {size / 1e9:.1f} GB; at most {MOST_BYTES / 1e9:.1f} are read.")
            arrays = {name: parse_npy(archive.read(found[name])) for name in ("x", "y") if name in found}
    except VclError:
        raise
    except Exception as error:  # there are many ways to break an archive
        raise VclError(
            f"{path} could not be read: {one_line(error)}. Save arrays of numbers or strings with numpy.savez."
        ) from None
    return checked(arrays["x"], path), label_array(arrays.get("y"), path)


def read_npy(path: Path) -> tuple[np.ndarray, np.ndarray | None]:
    beside = labels_beside(path)
    labels = inputs.read_npy(beside) if beside.exists() else None
    return checked(inputs.read_npy(path), path), label_array(labels, beside)


def labels_beside(path: Path) -> Path:
    """Where the labels of an .npy file are, if there are any."""
    return path.with_name(f"{path.stem}-labels.npy")


def checked(array: np.ndarray, path: Path) -> np.ndarray:
    if array.ndim < 2 or not len(array) or not array.size:
        raise VclError(f"The examples in {path} have shape {array.shape}, but must be (examples, features …).")
    if array.dtype.kind not in "biuf":
        raise VclError(f"The examples in {path} are {array.dtype}, but must be numbers. Save a table as CSV.")
    return array


def label_array(array: np.ndarray | None, path: Path) -> np.ndarray | None:
    if array is not None and (array.ndim != 1 or array.dtype.kind not in "biufU"):
        raise VclError(
            f"The labels in {path} are {array.dtype} of shape {array.shape}, but must be numbers or texts, one for "
            "each example."
        )
    return array


def read_pictures(path: Path) -> Batch:
    """A folder with one folder of images for each class; or images alone, without labels."""
    from PIL import Image

    folders = sorted(folder for folder in path.iterdir() if folder.is_dir())
    found: list[tuple[Path, str | None]] = [(file, folder.name) for folder in folders for file in pictures(folder)]
    found = found or [(file, None) for file in pictures(path)]
    if not found:
        raise VclError(f"{path} has no images: it must hold one folder of images for each class.")
    arrays: list[np.ndarray] = []
    for file, _ in found:
        try:
            with open_regular(file) as raw, Image.open(raw) as image:
                if (size := image.width * image.height) > MOST_PIXELS:
                    raise ValueError(f"it has {size} pixels, and at most {MOST_PIXELS} are read")
                pixels = as_bytes(image)
        except Exception as error:  # formats of images are many, and so are their errors
            raise VclError(f"{file} could not be read as an image: {one_line(error)}.") from None
        arrays.append(pixels if pixels.ndim == 2 else np.moveaxis(pixels, -1, 0))
        if arrays[-1].shape != arrays[0].shape:
            raise VclError(
                f"{file} has shape {arrays[-1].shape}, but {found[0][0]} has {arrays[0].shape}. Bring all images to "
                "one size, all grey or all in colour."
            )
    labels: list[Label] = [name for _, name in found if name is not None]
    return Batch(str(path), None, np.stack(arrays), labels or None)


def as_bytes(image: "Image.Image") -> np.ndarray:
    """The pixels of an image, grey or in colour, from 0 to 255."""
    if image.mode.startswith("I;16"):
        return np.round(np.asarray(image) / 257).astype(np.uint8)
    if image.mode in ("I", "F"):
        raise ValueError(
            f"its pixels are numbers of mode {image.mode}, of which it is not known what is white; save it with 8 "
            "or 16 bits"
        )
    return np.asarray(image.convert("L" if image.mode in ("1", "L", "LA") else "RGB"))


def pictures(folder: Path) -> list[Path]:
    return sorted(file for file in folder.iterdir() if file.suffix.lower() in PICTURES)


def fingerprint(path: Path) -> str:
    """SHA-256 of a file with its labels, or of all images in a folder with their names."""
    checksum = hashlib.sha256()
    beside = [labels_beside(path)] if path.suffix.lower() == ".npy" and labels_beside(path).is_file() else []
    for file in [path, *beside] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file()):
        checksum.update(b"" if path.is_file() else str(file.relative_to(path)).encode())
        with open_regular(file, most=MOST_BYTES) as contents:
            while part := contents.read(1 << 20):
                checksum.update(part)
    return checksum.hexdigest()
