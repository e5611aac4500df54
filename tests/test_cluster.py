"""A Dask cluster on loopback: results come back to the caller's store, also if a worker is killed."""

import os
import signal

import pytest
from dask_workers import cluster

from vcl import runs
from vcl.errors import VclError
from vcl.runs.cluster import dask, pack, unpack
from vcl.runs.folder import RunFolder
from vcl.runs.sweep import run_all

pytest.importorskip("distributed")

SMALL = {"hidden": (8,), "epochs": 300, "batch_size": 16, "test_samples": 3}


def configs(number: int) -> list[runs.RunConfig]:
    options = runs.StreamOptions(num_tasks=2)
    return [runs.configure("split-digits", seed=s, threads=1, stream=options, **SMALL) for s in range(number)]


def test_runs_on_a_cluster_equal_local_ones_although_a_worker_is_killed(tmp_path):
    store, seen, killed = tmp_path / "store", [], []
    with cluster(tmp_path) as now:

        def watch(number, status):
            seen.append((number, status.phase))
            if status.phase == "running" and not killed:
                killed.append(number)
                os.kill(now.workers[0].pid, signal.SIGKILL)

        found = run_all(configs(3), store, 1, watch=watch, pool=dask(now.address), seconds_between_checkpoints=0.1)
        assert killed
        assert now.workers[0].wait() == -signal.SIGKILL
        again = run_all(configs(3), store, 1, watch=watch, pool=dask(now.address))
    assert again == found
    local = run_all(configs(3), tmp_path / "local", 1, watch=lambda *_: None)
    assert [r["state_sha256"] for r in found] == [r["state_sha256"] for r in local]
    assert [r["scores"] for r in found] == [r["scores"] for r in local]
    assert sorted(path.name for path in store.iterdir()) == sorted(config.name for config in configs(3))
    for config in configs(3):
        folder = RunFolder.open(store / config.name)
        assert folder.result in found
        assert folder.stages() == [1, 2]
        assert folder.events()


def test_a_cluster_that_is_not_there_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr("vcl.runs.cluster.SECONDS_TO_CONNECT", 1)
    for address in ("tcp://127.0.0.1:1", "nowhere://x"):
        with pytest.raises(VclError, match="no Dask scheduler"):
            run_all(configs(1), tmp_path, 1, watch=lambda *_: None, pool=dask(address))


def test_files_of_a_run_travel_and_nothing_else(tmp_path):
    folder = tmp_path / "run"
    (folder / "checkpoints").mkdir(parents=True)
    for name in ("run.json", "metrics.jsonl", "checkpoints/after-0001.safetensors", ".git", "lock"):
        (folder / name).write_text(name)
    known: dict[str, tuple[int, int]] = {}
    files, names = pack(folder, known)
    assert sorted(files) == names == ["checkpoints/after-0001.safetensors", "metrics.jsonl", "run.json"]
    assert pack(folder, known)[0] == {}
    (tmp_path / "copy" / "checkpoints").mkdir(parents=True)
    (tmp_path / "copy" / "checkpoints" / "after-0000.safetensors").write_text("old")
    unpack(tmp_path / "copy", files, names)
    assert pack(tmp_path / "copy")[0] == files
    with pytest.raises(VclError, match="none of a run's"):
        unpack(tmp_path / "copy", {"../evil": b""}, [])
