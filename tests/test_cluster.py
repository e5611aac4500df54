"""A Dask cluster on loopback: results come back to the caller's store, also if a worker is killed."""

import os
import signal
import subprocess
import sys

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
    for address in ("tcp://127.0.0.1:1", "localhost:1"):
        with pytest.raises(VclError, match=r"no Dask scheduler at .*Timed out"):
            run_all(configs(1), tmp_path, 1, watch=lambda *_: None, pool=dask(address))


MALFORMED = ["", "nonsense", "localhost:x", "tcp://", "foo://1:2", "tcp://:8786", "tcp://localhost:0", "tcp://..:1"]
MALFORMED += ["tcp://localhost:99999", "tcp://[::1:5", "inproc://1/2/3", "tcp://localhost:8786/"]


@pytest.mark.parametrize("address", MALFORMED)
def test_what_is_no_address_is_refused_before_a_client_is_made(address, monkeypatch):
    monkeypatch.setattr("distributed.Client", lambda *_, **__: pytest.fail("it would hang"))
    with pytest.raises(VclError, match="is not the address of a Dask scheduler") as refusal:
        dask(address)
    assert repr(address) in str(refusal.value)


def test_an_encrypted_address_needs_certificates():
    import dask as library

    with pytest.raises(VclError, match="needs certificates"):
        dask("tls://127.0.0.1:8786")
    tls = "distributed.comm.tls"
    with library.config.set({f"{tls}.ca-file": "ca.pem", f"{tls}.client.cert": "cert.pem"}):
        dask("tls://127.0.0.1:8786")


def test_a_malformed_address_ends_the_command_without_a_traceback(tmp_path):
    """In a process of its own: Dask's clients complain when the interpreter collects them."""
    stream = ("split-digits", "--num-tasks", "1", "--quiet", "--dask")
    commands = [("run", *stream, "nonsense"), ("run", *stream, ""), ("compare", *stream, "foo://1:2")]
    for command in commands:
        answer = subprocess.run(
            [sys.executable, "-m", "vcl", *command], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert answer.returncode == 2
        assert "is not the address of a Dask scheduler" in " ".join(answer.stderr.split())
        assert "Traceback" not in answer.stderr
        assert not list(tmp_path.iterdir())


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
