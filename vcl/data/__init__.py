"""Data sets: fetched from whichever source answers, checked against pinned checksums, read into arrays."""

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int32
from platformdirs import user_cache_path

from vcl.data.catalogue import DATASETS, DatasetInfo
from vcl.data.formats import Arrays, Images, Labels, TestImages, TestLabels
from vcl.data.sources import FAILURES, Files, Folder, Mirror, Say, Source, check
from vcl.data.tables import Table
from vcl.errors import VclError, choose
from vcl.files import locked, write_atomically

__all__ = ["DATASETS", "Dataset", "DatasetInfo", "DatasetStatus", "FileStatus"]
__all__ += ["Tabular", "fetch", "is_here", "load", "load_table", "overview", "verify"]

Catalogue = Mapping[str, DatasetInfo]


@dataclass(frozen=True, eq=False)
class Dataset:
    """Images flattened in C order (CIFAR-10: channel, row, column), with their labels."""

    name: str
    train_images: Images
    train_labels: Labels
    test_images: TestImages
    test_labels: TestLabels
    num_classes: int
    shape: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Tabular:
    """Rows of numbers in the order in which they came, with their labels and tasks."""

    name: str
    inputs: Float[np.ndarray, "n d"]
    labels: Int32[np.ndarray, "n"]
    tasks: Int32[np.ndarray, "n"]
    num_classes: int
    task_names: tuple[str, ...]


@dataclass(frozen=True)
class FileStatus:
    """One copy of one file: 'ok', 'missing' or 'altered: expected ..., found ...'."""

    path: Path
    status: str


@dataclass(frozen=True)
class DatasetStatus:
    """Whether a data set can be loaded without fetching it, and from where."""

    name: str
    description: str
    present: bool
    where: str


def load(
    name: str, data_dir: Path | None = None, say: Say | None = None, catalogue: Catalogue = DATASETS
) -> Dataset:
    """Read a data set, fetching it first where necessary; its checksums are verified every time."""
    info = catalogue[choose("data set", name, catalogue)]
    arrays: Arrays = info.read(_obtain(info, data_dir, say or _to_stderr))
    return Dataset(name, *arrays, num_classes=info.num_classes, shape=info.shape)


def load_table(
    name: str,
    data_dir: Path | None = None,
    say: Say | None = None,
    read: Callable[[Files], Table] | None = None,
    catalogue: Catalogue = DATASETS,
) -> Tabular:
    """Read a data set of rows; `read` where they are to be arranged in another way than the catalogue's."""
    info = catalogue[choose("data set", name, catalogue)]
    inputs, labels, tasks = (read or info.read)(_obtain(info, data_dir, say or _to_stderr))
    count = int(tasks.max()) + 1
    names = info.task_names if len(info.task_names) == count else tuple(f"part {i + 1}" for i in range(count))
    return Tabular(name, inputs, labels, tasks, info.num_classes, names)


def fetch(name: str, data_dir: Path | None = None, say: Say | None = None, catalogue: Catalogue = DATASETS) -> str:
    """Bring a data set into the cache unless it is there already; return where it is."""
    info = catalogue[choose("data set", name, catalogue)]
    _obtain(info, data_dir, say or _to_stderr)
    return _where(info)


def verify(name: str, data_dir: Path | None = None, catalogue: Catalogue = DATASETS) -> list[FileStatus]:
    """Check every copy, in the cache and in the user's folder. Empty for a data set without files."""
    info = catalogue[choose("data set", name, catalogue)]
    folders = [_cache(info), *_user_folder(info, data_dir)]
    rows = []
    for file, digest in info.files.items():
        copies = [(folder, path) for folder in folders if (path := folder.find(file))]
        for folder, path in copies:
            _, wrong = check(folder.files([file], _to_stderr), {file: digest})
            rows.append(FileStatus(path, wrong.get(file, "ok")))
        if not copies:
            rows.append(FileStatus(folders[0].path / file, "missing"))
    return rows


def overview(catalogue: Catalogue = DATASETS) -> list[DatasetStatus]:
    """Each data set and whether the cache has it, by a glance at the file names: `verify` looks inside."""
    return [
        DatasetStatus(name, info.description, all(map(_cache(info).find, info.files)), _where(info))
        for name, info in catalogue.items()
    ]


def is_here(name: str, data_dir: Path | None = None, catalogue: Catalogue = DATASETS) -> bool:
    """Whether a data set can be loaded without fetching it, by a glance at the file names."""
    info = catalogue[choose("data set", name, catalogue)]
    folders = [_cache(info), *_user_folder(info, data_dir)]
    return all(any(folder.find(file) for folder in folders) for file in info.files)


def _obtain(info: DatasetInfo, data_dir: Path | None, say: Say) -> Files:
    """Raw contents of all files of a data set, each equal to what its checksum promises."""
    cache = _cache(info)
    contents, wrong = check(cache.files(info.files, say), info.files)
    if wrong:
        with _filling(cache.path, say):
            # Another process may have fetched the files while this one waited for the lock.
            contents, wrong = check(cache.files(info.files, say), info.files)
            if wrong:
                found = _search(info, wrong, data_dir, say)
                for file, raw in found.items():
                    write_atomically(cache.path / file, raw)
                contents |= found
    return contents


def _search(info: DatasetInfo, wrong: Mapping[str, str], data_dir: Path | None, say: Say) -> dict[str, bytes]:
    """Ask one source after the other for the files that are missing or altered in the cache."""
    cache = _cache(info)
    answers = [f"cache {cache.path}: {_describe(wrong)}"]
    if set(wrong.values()) != {"missing"}:
        say(f"{answers[0]}; fetching again")
    expected = {file: info.files[file] for file in wrong}
    user = _user_folder(info, data_dir)
    if not user:
        answers.append("a folder of yours: none was named")
    for source in [*user, *_sources(info)]:
        say(f"{info.name}: trying {source}")
        try:
            good, bad = check(source.files(expected, say), expected)
        except FAILURES as error:
            answers.append(f"{source}: {' '.join(str(error).split()) or type(error).__name__}")
        else:
            if not bad:
                return good
            answers.append(f"{source}: {_describe(bad)}")
            altered = next((file for file, status in bad.items() if status != "missing"), None)
            if isinstance(source, Folder) and altered:
                # The user meant this file: passing over it in silence would hide that it is another.
                raise VclError(
                    f"{source.find(altered)} is {bad[altered]}. It is not the {altered} of {info.name!r}, "
                    "or it is damaged. Replace or remove it; where one folder holds several data sets, "
                    f"put these files into {source.path / info.name}."
                )
        say(f"  {answers[-1]}")
    raise VclError(
        f"The data set {info.name!r} could not be obtained. What was tried, and what each answered:\n"
        + "".join(f"  {answer}\n" for answer in answers)
        + f"To put it in place by hand: copy {', '.join(info.files)} (as they are or as .gz) into a folder "
        f"and name that folder with --data-dir or VCL_DATA_DIR; or copy them into {cache.path}."
    )


def _describe(wrong: Mapping[str, str]) -> str:
    missing = [file for file, status in wrong.items() if status == "missing"]
    altered = [f"{file} is {status}" for file, status in wrong.items() if status != "missing"]
    return "; ".join([f"has no {', '.join(missing)}"] * bool(missing) + altered)


def _sources(info: DatasetInfo) -> list[Source]:
    """Sources on the network, in the order in which they are tried."""
    base = os.environ.get("VCL_MIRROR", "").rstrip("/")
    if not base:
        return [*info.packages, *info.mirrors]
    archive = info.mirrors[0].archive if info.mirrors else ""
    # Data sets share file names: a mirror of several needs a folder for each, a mirror of one does not.
    return [*info.packages, Mirror(f"{base}/{info.name}", archive), Mirror(base, archive)]


def _user_folder(info: DatasetInfo, data_dir: Path | None) -> list[Folder]:
    """The folder that the user names, if any."""
    named = data_dir or os.environ.get("VCL_DATA_DIR")
    below = (f"{info.name}/{info.unpacks_into}", info.name, info.unpacks_into)
    return [Folder(Path(named).expanduser(), below)] if named else []


def _cache(info: DatasetInfo) -> Folder:
    named = os.environ.get("VCL_CACHE_DIR")
    return Folder((Path(named).expanduser() if named else user_cache_path("vcl")) / info.name)


def _where(info: DatasetInfo) -> str:
    return str(_cache(info).path) if info.files else "inside scikit-learn"


@contextmanager
def _filling(folder: Path, say: Say) -> Iterator[None]:
    """Let one process at a time write into the cache folder; say what to do if it cannot."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with locked(folder / ".lock", lambda: say(f"waiting for another process that fetches into {folder}")):
            yield
    except OSError as error:
        raise VclError(
            f"The cache folder {folder} cannot be written: {error.strerror or error}. "
            "Make room or mend its permissions, or name another folder with VCL_CACHE_DIR."
        ) from error


def _to_stderr(message: str) -> None:
    print(message, file=sys.stderr, flush=True)
