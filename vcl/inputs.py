"""What users hand in, as arrays and labels that a learner takes; refused where it would train into nonsense."""

import io
import math
import os
from collections.abc import Hashable, Iterable, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from vcl.core import StreamSpec, check_inputs
from vcl.errors import VclError
from vcl.files import open_regular

MOST_BYTES = 1 << 34
ROUNDING = 1e-12
"""Numbers that differ by a smaller part than this are equal up to rounding."""

Label = Hashable


class Targets(NamedTuple):
    """What a batch teaches, in numbers of a head's outputs, and what is known of classes then."""

    outputs: np.ndarray
    classes: list[Label]
    head_classes: list[list[int]]
    new_outputs: list[int]


def as_inputs(x: Any, what: str) -> np.ndarray:
    """Arrays, DataFrames and lists as uint8 pixels or float32; refused where that would lose their meaning."""
    try:
        array = x.to_numpy() if hasattr(x, "to_numpy") else np.asarray(x)
    except ValueError:
        raise VclError(f"{what} are rows of different lengths. Give every example as many features.") from None
    if array.ndim < 2:
        raise VclError(
            f"{what} have shape {array.shape}, but must be (examples, features …). For a single feature or example, "
            "reshape: x.reshape(-1, 1) or x.reshape(1, -1)."
        )
    if len(array) == 0:
        raise VclError(f"{what} hold no examples.")
    if array.size == 0:
        raise VclError(
            f"{what} have shape {array.shape}: there is nothing to learn from. Give at least one feature."
        )
    if array.dtype == object:
        try:
            array = array.astype(np.float64)
        except (TypeError, ValueError) as error:
            raise VclError(f"{what} are not all numbers ({error}). Encode categories as numbers first.") from None
    if array.dtype == np.uint8:
        return array
    if not (np.issubdtype(array.dtype, np.number) or array.dtype == bool) or np.issubdtype(
        array.dtype, np.complexfloating
    ):
        raise VclError(
            f"{what} are {array.dtype}, but must be numbers. Encode categories and dates as numbers first."
        )
    floats = array.astype(np.float64)
    check_inputs(floats, what)
    return floats.astype(np.float32)


def as_taught(inputs: np.ndarray, spec: StreamSpec, what: str) -> np.ndarray:
    """Inputs with the shape and the type of those that a model was taught."""
    if inputs.shape[1:] != spec.input_shape and inputs.shape[1:] != (spec.input_size,):
        raise VclError(
            f"{what} have shape {inputs.shape}, but this model was taught inputs of shape "
            f"(examples, {', '.join(map(str, spec.input_shape))}). Give the same features in the same order."
        )
    shaped = inputs.reshape(len(inputs), *spec.input_shape)
    if (inputs.dtype == np.uint8) == (spec.input_dtype == "uint8"):
        return shaped
    if spec.input_dtype == "uint8":
        raise VclError(f"{what} are not uint8, but this model was taught uint8 pixels. Give uint8 from 0 to 255.")
    return shaped.astype(np.float32) / np.float32(255)


def spread(values: np.ndarray) -> np.ndarray:
    """The standard deviation of each column, to divide by: 1 where it is constant, and only rounding would differ.

    >>> spread(np.array([[0.1, 1.0]] * 999 + [[0.1, 3.0]])).round(2).tolist()
    [1.0, 0.06]
    """
    low, high, std = values.min(axis=0), values.max(axis=0), values.std(axis=0)
    varies = high - low > ROUNDING * np.maximum(np.abs(low), np.abs(high))
    return np.where(varies & (std > 0), std, 1.0)


def read_npy(path: Path) -> np.ndarray:
    """The one array of a .npy file, whose header is not believed before the size of the file agrees."""
    try:
        with open_regular(path, most=MOST_BYTES) as file:
            return _parse(file, os.fstat(file.fileno()).st_size)
    except Exception as error:  # a header is a Python expression, and there are many ways to break one
        words = (" ".join(str(error).split()) or type(error).__name__)[:300]
        raise VclError(
            f"{path} could not be read as a .npy file: {words}. Save the images, as one array, with numpy.save."
        ) from None


def parse_npy(contents: bytes) -> np.ndarray:
    """The array of a .npy file that was read; many kinds of errors tell that it is none."""
    return _parse(io.BytesIO(contents), len(contents))


def _parse(file: BinaryIO | io.BytesIO, size: int) -> np.ndarray:
    if file.read(2) == b"PK":
        raise ValueError("it is an archive of several arrays")
    file.seek(0)
    read_header = (
        np.lib.format.read_array_header_1_0
        if np.lib.format.read_magic(file) == (1, 0)
        else np.lib.format.read_array_header_2_0
    )
    shape, _, dtype = read_header(file)
    promised, there = math.prod(shape) * dtype.itemsize, size - file.tell()
    if promised != there and not dtype.hasobject:
        raise ValueError(f"its header promises {promised} bytes of numbers, and {there} are there")
    file.seek(0)
    return np.asarray(np.lib.format.read_array(file, allow_pickle=False))


def as_labels(y: Any) -> list[Label]:
    """Labels as plain Python values."""
    values = y.tolist() if hasattr(y, "tolist") else list(y) if isinstance(y, Iterable) else y
    if not isinstance(values, list):
        raise VclError("The labels must be a sequence with one label for each example.")
    for number, value in enumerate(values):
        if not isinstance(value, Hashable):
            shown = "a column of one label each: use y.ravel()" if isinstance(value, list) else type(value).__name__
            raise VclError(f"Label {number} is not hashable ({shown}). Give one label for each example.")
        if value is None or value != value:  # noqa: PLR0124
            raise VclError(f"Label {number} is missing ({value}). Remove the example, or give it a label.")
    return values


def check_as_many(inputs: np.ndarray, labels: Sequence[Label] | np.ndarray) -> None:
    if len(inputs) != len(labels):
        raise VclError(f"There are {len(inputs)} inputs and {len(labels)} labels; they must be as many.")


def new_labels(labels: Sequence[Label], known: Sequence[Label]) -> list[Label]:
    """Labels that are not known yet: sorted where they can be, else in the order in which they come."""
    found = list(dict.fromkeys(label for label in labels if label not in set(known)))
    try:
        return sorted(found)  # type: ignore[type-var]
    except TypeError:
        return found


def as_label_array(labels: list[Label]) -> np.ndarray:
    """Labels as an array, of objects where they are tuples or mixed."""
    if len({type(label) for label in labels}) == 1 and isinstance(labels[0], str | int | float | bool):
        return np.array(labels)
    array = np.empty(len(labels), object)
    array[:] = labels
    return array


def label_to_json(label: Label) -> Any:
    """JSON has strings, numbers and truth values; tuples become lists."""
    if isinstance(label, tuple):
        return [label_to_json(part) for part in label]
    if isinstance(label, str | int | float | bool):
        return label
    raise VclError(
        f"The label or task name {label!r} is a {type(label).__name__}, which cannot be saved. Use strings, "
        "numbers, truth values or tuples of them."
    )


def label_from_json(value: Any) -> Label:
    return tuple(label_from_json(part) for part in value) if isinstance(value, list) else value
