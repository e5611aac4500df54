"""Real streams: how rows become tasks, and where the files come from."""

import hashlib
import io
import zipfile

import numpy as np
import pytest
from test_data import server, tar_gz  # noqa: F401

from vcl.benchmarks import STREAMS, StreamOptions, check, settings_for
from vcl.benchmarks.streams import real
from vcl.data import DATASETS, Tabular, load_table, tables
from vcl.data.catalogue import DatasetInfo
from vcl.data.sources import Sdist
from vcl.errors import VclError
from vcl.evaluation import prequential
from vcl.methods import METHODS


def as_csv(table: np.ndarray) -> bytes:
    head = ",".join(f"c{i}" for i in range(table.shape[1]))
    return "\n".join([head, *(",".join(map(str, row)) for row in table.tolist())]).encode() + b"\n"


def forest(rows: int = 400) -> bytes:
    """Rows as Covertype has them: ten numbers, four areas, forty soils, a label from 1 to 7."""
    rng = np.random.default_rng(0)
    area, soil = rng.integers(0, 4, rows), rng.integers(0, 40, rows)
    parts = [rng.integers(0, 9, (rows, 10)), np.eye(4, dtype=int)[area], np.eye(40, dtype=int)[soil]]
    return as_csv(np.concatenate([*parts, rng.integers(1, 8, (rows, 1))], axis=1))


def test_covertype_by_area_does_not_give_the_area_away():
    raw = forest()
    whole = tables.numbers(raw)
    inputs, labels, areas = tables.read_covertype({"covtype.csv": raw})
    assert inputs.shape == (400, 50)
    np.testing.assert_array_equal(areas, whole[:, 10:14].argmax(axis=1))
    np.testing.assert_array_equal(labels, whole[:, -1] - 1)
    np.testing.assert_array_equal(inputs[:, :10], whole[:, :10])
    np.testing.assert_array_equal(inputs[:, 10:], whole[:, 14:54])
    in_order = tables.read_covertype_in_order({"covtype.csv": raw})
    assert in_order[0].shape == (400, 54)
    np.testing.assert_array_equal(np.bincount(in_order[2]), [40] * 10)


def test_a_large_area_is_sampled_evenly():
    np.testing.assert_array_equal(tables.evenly(np.arange(9), 3), [0, 4, 8])
    np.testing.assert_array_equal(tables.evenly(np.arange(3), 9), [0, 1, 2])


def flights(rows: list[str]) -> dict[str, bytes]:
    head = "month,day,sched_dep_time,arr_delay,carrier,origin,distance,hour,minute,time_hour"
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("flights.csv", "\n".join([head, *rows]))
    weather = "origin,time_hour,temp,dewp,humid,wind_speed,precip,pressure,visib\n"
    weather += "EWR,a,1,2,3,4,5,NA,7\nEWR,b,3,2,3,4,5,6,7"
    return {"flights.csv.zip": buffer.getvalue(), "weather.csv": weather.encode()}


def test_flights_are_sorted_labelled_and_have_their_weather():
    rows = ["2,1,600,20,UA,EWR,100,6,0,b", "1,2,730,15,AA,EWR,200,7,30,a", "1,1,730,NA,AA,JFK,200,7,30,a"]
    inputs, labels, months = tables.read_flights(flights(rows))
    assert months.tolist() == [0, 1]  # the cancelled flight is gone
    assert labels.tolist() == [0, 1]  # 15 minutes are not yet a delay
    np.testing.assert_allclose(inputs[:, :3], [[7.5, 7.5**2, 200], [6, 36, 100]])
    np.testing.assert_allclose(inputs[:, 3], [1, 3])
    np.testing.assert_allclose(inputs[:, 8], [6, 6])  # a missing pressure is the mean of the others
    np.testing.assert_allclose(inputs[:, 10:17].argmax(axis=1), [2, 4])  # a Wednesday, a Friday


def table() -> Tabular:
    rng = np.random.default_rng(0)
    inputs = rng.normal(5, 2, (100, 3))
    inputs[50:] += 7
    return Tabular("t", inputs, rng.integers(0, 2, 100).astype(np.int32), tables.parts(100, 2), 2, ("a", "b"))


def test_the_stream_is_standardised_by_what_is_known_at_its_beginning():
    stream = real("t", table(), "domain", None)
    first, second = stream.train(0), stream.train(1)
    np.testing.assert_allclose(first.inputs.mean(axis=0), 0, atol=1e-6)
    np.testing.assert_allclose(first.inputs.std(axis=0), 1, atol=1e-5)
    assert (second.inputs.mean(axis=0) > 2).all()
    assert [len(stream.train(t).labels) for t in (0, 1)] == [40, 40]
    assert [len(stream.test(t).labels) for t in (0, 1)] == [10, 10]
    assert stream.spec.scenario == "domain"
    assert stream.spec.num_heads == 1
    assert real("t", table(), "task", 1).spec.num_tasks == 1
    with pytest.raises(VclError, match="2 tasks"):
        real("t", table(), "domain", 3)


def test_options_that_make_no_sense_are_refused():
    with pytest.raises(VclError, match="no class scenario"):
        check(STREAMS["elec2"], StreamOptions(scenario="class"))
    with pytest.raises(VclError, match="permutes nothing"):
        check(STREAMS["elec2"], StreamOptions(permute_first=True))


def test_every_method_has_settings_for_real_streams():
    for kind in METHODS.values():
        kind(**settings_for(kind.recipes["fast"], "covertype-areas"))


def test_accuracy_before_learning_leaves_out_the_first_task():
    assert prequential([0.1, 0.5, 0.7]) == pytest.approx(0.6)
    assert prequential([0.1]) is None


SOURCE = tar_gz({"elec.csv": as_csv(np.array([[1, 2, 3, 4, 5, 6, 1], [2, 3, 4, 5, 6, 7, 0]] * 30))}, "p-1.0/src")


def small_elec(**changes) -> DatasetInfo:
    raw = as_csv(np.array([[1, 2, 3, 4, 5, 6, 1], [2, 3, 4, 5, 6, 7, 0]] * 30))
    digest = hashlib.sha256(SOURCE).hexdigest()
    source = Sdist(**{"package": "p", "version": "1.0", "sha256": digest, **changes})
    return DatasetInfo(
        "small", "", 2, (6,), tables.read_elec2, {"elec.csv": hashlib.sha256(raw).hexdigest()}, packages=(source,)
    )


@pytest.fixture
def index(server, tmp_path, monkeypatch):  # noqa: F811
    monkeypatch.setenv("VCL_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("PIP_INDEX_URL", f"{server.url}/simple/")
    page = b'<a href="../../files/p-1.0.tar.gz#sha256=x">p-1.0.tar.gz</a>'
    server.files = {"/simple/p/": page, "/files/p-1.0.tar.gz": SOURCE}
    return server


def test_a_source_distribution_is_read_from_the_index_of_pip(index):
    data = load_table("small", catalogue={"small": small_elec()}, say=lambda _: None)
    assert data.inputs.shape == (60, 6)
    assert data.labels.tolist() == [1, 0] * 30
    assert data.task_names[0] == "part 1"
    asked = len(index.requests)
    load_table("small", catalogue={"small": small_elec()}, say=lambda _: None)
    assert len(index.requests) == asked


@pytest.mark.parametrize(
    ("changes", "told"), [({"sha256": "0" * 64}, "is altered"), ({"version": "2.0"}, "has no p-2.0.tar.gz")]
)
def test_another_archive_than_the_known_one_is_refused(index, changes, told):
    with pytest.raises(VclError, match=told) as refusal:
        load_table("small", catalogue={"small": small_elec(**changes)}, say=lambda _: None)
    assert index.url not in str(refusal.value)


def test_every_table_of_the_catalogue_has_a_stream():
    used = {benchmark.dataset for benchmark in STREAMS.values() if benchmark.family == "real"}
    assert used == {"covertype", "elec2", "weather", "flights"} <= DATASETS.keys()
