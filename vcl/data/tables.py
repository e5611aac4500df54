"""Real streams as tables: numbers, labels and, where rows belong to places or months, which one."""

import csv
import io
import zipfile
from collections.abc import Mapping, Sequence
from datetime import date

import numpy as np
from jaxtyping import Float, Int32

Table = tuple[Float[np.ndarray, "n d"], Int32[np.ndarray, "n"], Int32[np.ndarray, "n"]]
"""Inputs, labels from 0, and the task of each row, in the order in which rows came."""

TEST_EVERY = 5
"""Every fifth row of a task is a test row."""
AREAS = slice(10, 14)
"""Columns of Covertype that say in which wilderness area a row lies: the task, so no input."""
MOST_PER_AREA = 25_000
DELAYED = 15.0
"""Minutes after which an arrival counts as delayed."""
WEATHER = ("temp", "dewp", "humid", "wind_speed", "precip", "pressure", "visib")


def numbers(raw: bytes) -> Float[np.ndarray, "n d"]:
    """A CSV file that holds nothing but numbers below its first line."""
    head, _, body = raw.partition(b"\n")
    flat = np.fromstring(body.replace(b"\n", b",").rstrip(b","), sep=",")
    return flat.reshape(-1, head.count(b",") + 1)


def read_covertype(files: Mapping[str, bytes]) -> Table:
    """Covertype by wilderness area: of each an even sample, so that a run takes a minute."""
    table = numbers(files["covtype.csv"])
    areas = table[:, AREAS].argmax(axis=1).astype(np.int32)
    chosen = np.sort(np.concatenate([evenly(np.flatnonzero(areas == area), MOST_PER_AREA) for area in range(4)]))
    inputs = np.delete(table[chosen, :-1], np.arange(54)[AREAS], axis=1)
    return inputs, table[chosen, -1].astype(np.int32) - 1, areas[chosen]


def read_covertype_in_order(files: Mapping[str, bytes]) -> Table:
    """Covertype in the order of its file: an even sample, in ten parts."""
    table = numbers(files["covtype.csv"])
    chosen = evenly(np.arange(len(table)), 4 * MOST_PER_AREA)
    return table[chosen, :-1], table[chosen, -1].astype(np.int32) - 1, parts(len(chosen), 10)


def read_elec2(files: Mapping[str, bytes]) -> Table:
    """Prices of electricity in New South Wales, up or down, every half hour: twelve parts."""
    table = numbers(files["elec.csv"])
    return table[:, :-1], table[:, -1].astype(np.int32), parts(len(table), 12)


def read_weather(files: Mapping[str, bytes]) -> Table:
    """Rain or none, from fifty years of daily measurements: ten parts."""
    table = numbers(files["weather.csv"])
    return table[:, :-1], table[:, -1].astype(np.int32), parts(len(table), 10)


def read_flights(files: Mapping[str, bytes]) -> Table:
    """Flights out of New York in 2013, delayed or not, by month, with the weather at the hour of departure."""
    with zipfile.ZipFile(io.BytesIO(files["flights.csv.zip"])) as archive:
        flights = rows(archive.read("flights.csv"))
    hours = {
        (r["origin"], r["time_hour"]): [number(r[name]) for name in WEATHER] for r in rows(files["weather.csv"])
    }
    flights = [flight for flight in flights if flight["arr_delay"] not in ("", "NA")]
    flights.sort(key=lambda f: (int(f["month"]), int(f["day"]), int(f["sched_dep_time"])))
    carriers, origins = (sorted({f[name] for f in flights}) for name in ("carrier", "origin"))
    calm = [0.0] * len(WEATHER)
    measured = np.array([hours.get((f["origin"], f["time_hour"]), calm) for f in flights])
    measured = np.where(np.isnan(measured), np.nanmean(measured, axis=0), measured)
    day = np.array([date(2013, int(f["month"]), int(f["day"])).weekday() for f in flights])
    hour = np.array([int(f["hour"]) + int(f["minute"]) / 60 for f in flights])
    inputs = np.concatenate(
        [
            np.stack([hour, hour**2, [float(f["distance"]) for f in flights]], axis=1),
            measured,
            one_hot(day, 7),
            one_hot(np.array([carriers.index(f["carrier"]) for f in flights]), len(carriers)),
            one_hot(np.array([origins.index(f["origin"]) for f in flights]), len(origins)),
        ],
        axis=1,
    )
    labels = np.array([float(f["arr_delay"]) > DELAYED for f in flights], np.int32)
    return inputs, labels, np.array([int(f["month"]) - 1 for f in flights], np.int32)


def rows(raw: bytes) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(raw.decode())))


def number(text: str) -> float:
    return float(text) if text not in ("", "NA") else np.nan


def one_hot(values: np.ndarray, size: int) -> Float[np.ndarray, "n size"]:
    return np.eye(size)[values]


def evenly(indices: np.ndarray, most: int) -> np.ndarray:
    """At most so many of them, spread evenly."""
    return indices[np.linspace(0, len(indices) - 1, min(most, len(indices))).astype(int)]


def parts(size: int, count: int) -> Int32[np.ndarray, "size"]:
    """Rows in their order, as so many parts of nearly the same size."""
    return (np.arange(size) * count // size).astype(np.int32)


def split_rows(tasks: Int32[np.ndarray, "n"]) -> tuple[np.ndarray, np.ndarray]:
    """Training and test rows: every fifth row of each task is a test row."""
    rank = np.zeros(len(tasks), int)
    for task in np.unique(tasks):
        rank[tasks == task] = np.arange(np.sum(tasks == task))
    test = rank % TEST_EVERY == TEST_EVERY - 1
    return np.flatnonzero(~test), np.flatnonzero(test)


def standardised(inputs: Float[np.ndarray, "n d"], known: Sequence[int] | np.ndarray) -> Float[np.ndarray, "n d"]:
    """Inputs by the mean and standard deviation of the rows that are known when the stream begins."""
    mean, std = inputs[known].mean(axis=0), inputs[known].std(axis=0)
    return np.clip((inputs - mean) / np.where(std > 1e-9, std, 1.0), -10.0, 10.0).astype(np.float32)
