"""Raw file contents -> arrays, and back for the one package that holds pictures instead of raw files."""

import io
import json
import warnings
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Int32, UInt8

if TYPE_CHECKING:
    from PIL import Image

Images = UInt8[np.ndarray, "examples pixels"]
Labels = Int32[np.ndarray, "examples"]
TestImages = UInt8[np.ndarray, "test_examples pixels"]
TestLabels = Int32[np.ndarray, "test_examples"]
Arrays = tuple[Images, Labels, TestImages, TestLabels]  # train images and labels, then test

IDX_FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
CIFAR10_FILES = (*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin")


def read_idx(files: Mapping[str, bytes]) -> Arrays:
    """MNIST's own format: two zero bytes, a type, the number of axes, big-endian sizes, then the values."""
    train_images, train_labels, test_images, test_labels = (_idx(files[name]) for name in IDX_FILES)
    return (
        train_images.reshape(len(train_images), -1),
        train_labels.astype(np.int32),
        test_images.reshape(len(test_images), -1),
        test_labels.astype(np.int32),
    )


def _idx(raw: bytes) -> UInt8[np.ndarray, "..."]:
    num_axes = raw[3]
    sizes = np.frombuffer(raw, ">i4", count=num_axes, offset=4)
    return np.frombuffer(raw, np.uint8, offset=4 + 4 * num_axes).reshape(sizes)


def read_cifar10(files: Mapping[str, bytes]) -> Arrays:
    """CIFAR-10's binary format: per example one label, then the red, green and blue planes row by row."""
    rows = [np.frombuffer(files[name], np.uint8).reshape(-1, 1 + 3 * 32 * 32) for name in CIFAR10_FILES]
    train, test = np.concatenate(rows[:-1]), rows[-1]
    return (
        np.ascontiguousarray(train[:, 1:]),
        train[:, 0].astype(np.int32),
        np.ascontiguousarray(test[:, 1:]),
        test[:, 0].astype(np.int32),
    )


def cifar10_from_pictures(files: Mapping[str, bytes]) -> dict[str, bytes]:
    """Rebuild CIFAR-10's binary files from lossless pictures with one image per row, and lists of labels."""
    labels = [*json.loads(files["train_lables.json"]), *json.loads(files["test_lables.json"])]  # their spelling
    if len(labels) != 60_000 or not all(type(label) is int and 0 <= label < 10 for label in labels):
        raise ValueError("the lists of labels are not 60,000 numbers from 0 to 9")
    rebuilt = {}
    for start, name in zip(range(0, 60_000, 10_000), CIFAR10_FILES, strict=True):
        pixels = np.asarray(_picture(files[name.replace(".bin", ".png")]).convert("RGB"))
        planes = pixels.transpose(0, 2, 1).reshape(10_000, 3 * 32 * 32)
        column = np.array(labels[start : start + 10_000], np.uint8)[:, None]
        rebuilt[name] = np.concatenate([column, planes], axis=1).tobytes()
    return rebuilt


def _picture(contents: bytes) -> "Image.Image":
    """A picture of the expected size, which its header tells: a larger one is never unpacked."""
    from PIL import Image

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            picture = Image.open(io.BytesIO(contents), formats=["PNG"])
    except (SyntaxError, Image.DecompressionBombError) as error:
        raise ValueError(f"a picture cannot be read: {error}") from None
    if picture.size != (32 * 32, 10_000):
        raise ValueError(f"a picture has {picture.size[0]} × {picture.size[1]} pixels instead of 1024 × 10000")
    return picture


def read_digits(_files: Mapping[str, bytes]) -> Arrays:
    """The 8x8 digits inside scikit-learn; every fifth example of each class is a test example."""
    # Only the file is wanted: to load the package takes longer than all else of a short run.
    package = find_spec("sklearn")
    assert package
    assert package.origin
    table = np.loadtxt(Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz", delimiter=",")
    labels = table[:, -1].astype(int)
    images = np.rint(table[:, :-1] * (255 / 16)).astype(np.uint8)
    rank_in_class = np.zeros(len(labels), int)
    for digit in range(10):
        rank_in_class[labels == digit] = np.arange(np.sum(labels == digit))
    test = rank_in_class % 5 == 4
    labels = labels.astype(np.int32)
    return images[~test], labels[~test], images[test], labels[test]
