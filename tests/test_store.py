"""Run folders: what is written is whole or absent, what is read is what was written, one process at a time."""

import json
import os
import resource
import subprocess
import sys
from contextlib import contextmanager

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array
from safetensors import safe_open

from vcl.checkpoints import DamagedCheckpoint, dump_tree, load_tree, tree_digest
from vcl.errors import VclError
from vcl.files import write_atomically
from vcl.runs.folder import FORMAT, RunFolder, stored_runs


class State(eqx.Module):
    """A little of everything that a learner's state may hold."""

    weights: Array
    layers: tuple[Array, ...]
    counts: dict[str, Array]


def make_state(number: float = 0.0, *, size: int = 3) -> State:
    weights = jnp.linspace(-1, 1, size) + number
    return State(
        weights,
        (jnp.full((2, 2), number, jnp.float32), jnp.zeros((0, 4), jnp.uint8)),
        {"filled": jnp.int32(number), "seen": jnp.array([True, False])},
    )


LIKE = make_state()
SCORES = dict.fromkeys(
    ("accuracy", "log_likelihood", "calibration_error", "total_entropy", "aleatoric_entropy"), 0.5
)
RESULT = {
    "accuracy_matrix": [[1 / 3]],
    "average_accuracy": 1 / 3,
    "forgetting": 0.0,
    "backward_transfer": 0.0,
    "forward_transfer": None,
    "untrained_accuracy": [0.1],
    "accuracy_before_learning": [0.1],
    "task_names": ["one"],
    "scores": [[SCORES]],
    "steps": 3,
    "train_seconds": 0.1,
    "state_sha256": "0",
    "benchmark": "b",
    "method": "vcl",
    "seed": 0,
    "config": {"recipe": "fast", "stream": {}, "learner": {}, "threads": 1},
    "version": "0.1",
    "run": "r",
}


def equal(a, b) -> bool:
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return all(x.dtype == y.dtype and np.array_equal(x, y) for x, y in pairs)


@pytest.fixture
def folder(tmp_path) -> RunFolder:
    return RunFolder.create(tmp_path / "run", {"benchmark": "b", "version": "0.1"})


def names(folder: RunFolder) -> list[str]:
    return sorted(path.name.removesuffix(".safetensors") for path in folder.checkpoints.iterdir())


@contextmanager
def largest_file(size: int):
    """No file can grow beyond `size` bytes: the kernel refuses the write, as it does on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


# Checkpoints come back as they were


def test_a_tree_comes_back_to_the_bit(tmp_path):
    state = make_state(3.7)
    path = tmp_path / "tree.safetensors"
    path.write_bytes(dump_tree(state, {"steps": 5, "note": "ü"}))
    loaded, facts = load_tree(path, LIKE)
    assert equal(loaded, state)
    assert jax.tree.structure(loaded) == jax.tree.structure(state)
    assert facts == {"steps": 5, "note": "ü"}


def test_a_checkpoint_is_plain_safetensors_that_names_its_arrays(folder):
    folder.save_after(1, make_state(2.0), {}, keep=())
    with safe_open(folder.checkpoints / "after-0001.safetensors", framework="numpy") as file:
        assert set(file.keys()) == {".weights", ".layers[0]", ".layers[1]", ".counts['filled']", ".counts['seen']"}
        np.testing.assert_array_equal(file.get_tensor(".layers[0]"), np.full((2, 2), 2.0, np.float32))


def test_fingerprints_are_equal_exactly_when_all_bits_are():
    assert tree_digest(make_state(1.0)) == tree_digest(make_state(1.0))
    nearly = eqx.tree_at(lambda s: s.weights, make_state(1.0), jnp.nextafter(make_state(1.0).weights, 9.0))
    same_numbers = eqx.tree_at(lambda s: s.counts["filled"], make_state(1.0), jnp.uint32(1))
    assert len({tree_digest(t) for t in (make_state(1.0), nearly, same_numbers)}) == 3


def test_any_altered_byte_is_noticed(tmp_path):
    contents = dump_tree(make_state(1.0), {"steps": 5})
    path = tmp_path / "tree.safetensors"
    passed = 0
    for place in range(len(contents)):
        path.write_bytes(contents[:place] + bytes([contents[place] ^ 0x04]) + contents[place + 1 :])
        try:
            loaded, facts = load_tree(path, LIKE)
        except DamagedCheckpoint:
            continue
        # Only a byte that carries nothing, such as the header's filling, may pass.
        assert equal(loaded, make_state(1.0))
        assert facts == {"steps": 5}
        passed += 1
    assert passed < 16


def test_any_truncation_is_noticed(tmp_path):
    contents = dump_tree(make_state(1.0), {})
    path = tmp_path / "tree.safetensors"
    for size in range(len(contents)):
        path.write_bytes(contents[:size])
        with pytest.raises(DamagedCheckpoint, match=r"tree\.safetensors"):
            load_tree(path, LIKE)


@pytest.mark.parametrize("contents", [b"", b"not safetensors at all", b"\x80\x04\x95pickle", b"PK\x03\x04", b"{}"])
def test_another_file_in_place_of_a_checkpoint_is_noticed(tmp_path, contents):
    path = tmp_path / "tree.safetensors"
    path.write_bytes(contents)
    with pytest.raises(DamagedCheckpoint, match="cannot be read"):
        load_tree(path, LIKE)


def test_a_good_checkpoint_of_another_run_is_refused(folder):
    folder.save_after(1, make_state(size=4), {}, keep=())
    with pytest.raises(VclError, match="other arrays or shapes"):
        folder.newest_after(LIKE, say=pytest.fail)


# Which checkpoints are kept


def test_within_a_stage_the_last_two_of_each_phase_are_kept(folder):
    for phase in ("likelihood", "train"):
        for epoch in (5, 9, 10, 200):
            folder.save_during(1, phase, epoch, LIKE, {})
    assert names(folder) == [f"during-0001-{p}-{e:06d}" for p in ("likelihood", "train") for e in (10, 200)]


def test_after_a_stage_every_task_is_kept_and_what_was_inside_is_not(folder):
    folder.save_during(1, "train", 3, LIKE, {})
    folder.save_during(2, "train", 1, LIKE, {})
    folder.save_after(1, LIKE, {}, keep=())
    assert names(folder) == ["after-0001", "during-0002-train-000001"]
    # Stages 1 and 4 end tasks; 2, 3 and 5 are batches inside one.
    for stage in range(2, 7):
        folder.save_after(stage, LIKE, {}, keep=[s for s in (1, 4) if s < stage])
    assert folder.stages() == [1, 4, 5, 6]


def test_the_newest_checkpoints_are_found(folder):
    for number in (1, 2, 10):
        folder.save_after(number, make_state(number), {"steps": number}, keep=(1, 2))
        folder.save_during(11, "train", number, make_state(100 + number), {})
    assert folder.newest_after(LIKE, pytest.fail)[0] == 10
    epoch, state, _ = folder.newest_during(11, "train", LIKE, pytest.fail)
    assert epoch == 10
    assert equal(state, make_state(110))
    assert folder.newest_during(11, "tra", LIKE, pytest.fail) is None
    assert equal(folder.state_after(2, LIKE), make_state(2))


@pytest.mark.parametrize("damage", ["truncated", "altered", "replaced"])
def test_a_damaged_checkpoint_is_skipped_with_a_warning(folder, damage):
    for number in (1, 2):
        folder.save_after(number, make_state(number), {"steps": number}, keep=(1,))
        folder.save_during(3, "train", number, make_state(10 + number), {})
    for name in ("after-0002", "during-0003-train-000002"):
        path = folder.checkpoints / f"{name}.safetensors"
        good = path.read_bytes()
        changed = good[:-1] + bytes([good[-1] ^ 1])
        path.write_bytes({"truncated": good[:-7], "altered": changed, "replaced": b"hello"}[damage])
    said: list[str] = []
    stage, state, facts = folder.newest_after(LIKE, said.append)
    assert (stage, facts) == (1, {"steps": 1})
    assert equal(state, make_state(1))
    epoch, carry, _ = folder.newest_during(3, "train", LIKE, said.append)
    assert epoch == 1
    assert equal(carry, make_state(11))
    assert len(said) == 2
    assert "after-0002" in said[0]
    assert "The one before it" in said[0]
    with pytest.raises(VclError, match=r"after-0002.*To make it again.*vcl resume"):
        folder.state_after(2, LIKE)


def test_without_a_good_checkpoint_there_is_none(folder):
    assert folder.newest_after(LIKE, pytest.fail) is None
    (folder.checkpoints / "after-0001.safetensors").write_bytes(b"")
    said: list[str] = []
    assert folder.newest_after(LIKE, said.append) is None
    assert len(said) == 1
    with pytest.raises(VclError, match=r"no checkpoint after stage 7\. It has"):
        folder.state_after(7, LIKE)


def test_what_a_killed_process_left_half_written_is_not_a_checkpoint(folder):
    folder.save_after(1, make_state(1), {}, keep=())
    (folder.checkpoints / ".after-0002.safetensors.x7f2").write_bytes(b"half")
    assert folder.stages() == [1]
    assert folder.newest_after(LIKE, pytest.fail)[0] == 1


# Atomic, and locked


def test_a_full_disk_is_a_clear_error_and_leaves_the_earlier_files(folder):
    folder.save_after(1, LIKE, {}, keep=())
    folder.write_result(RESULT)
    big = make_state(size=100_000)
    with largest_file(50_000):
        with pytest.raises(VclError, match=r"Could not write .*after-0002.*File too large.*intact"):
            folder.save_after(2, big, {}, keep=(1,))
        with pytest.raises(VclError, match="Could not write"):
            folder.save_during(2, "train", 1, big, {})
        with pytest.raises(VclError, match="Could not write"):
            folder.write_result({"scores": [0.5] * 100_000})
    assert names(folder) == ["after-0001"]
    assert equal(folder.newest_after(LIKE, pytest.fail)[1], LIKE)
    assert folder.result == RESULT
    assert not list(folder.path.rglob(".*"))


def test_no_space_left_while_metrics_are_written_is_a_clear_error(folder):
    (folder.path / "metrics.jsonl").symlink_to("/dev/full")
    with pytest.raises(VclError, match="No space left on device"):
        folder.append_event(OBJECTIVE)


def test_a_failure_before_the_rename_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "file"
    write_atomically(path, b"old")

    def fail(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(KeyboardInterrupt):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_second_user_is_refused_and_a_later_one_is_not(folder):
    with folder.lock():
        with pytest.raises(VclError, match=r"Another process is at work.*nothing was changed"), folder.lock():
            pytest.fail("two at once")
        with pytest.raises(VclError, match="Another process"), RunFolder(folder.path).lock():
            pytest.fail("two at once")
    with folder.lock():
        pass


def test_the_lock_holds_between_processes_and_goes_with_its_process(folder):
    hold = (
        "import sys, time; from pathlib import Path; from vcl.files import locked\n"
        "with locked(Path(sys.argv[1]), lambda: None): print('held', flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", hold, folder.path / "lock"], stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"held\n"
        with pytest.raises(VclError, match="Another process"), folder.lock():
            pytest.fail("two at once")
        process.kill()
    with folder.lock():
        pass


# Reading what others may have changed


def test_a_record_is_kept_with_its_format(folder):
    assert RunFolder.open(folder.path).record == {"format": FORMAT, "benchmark": "b", "version": "0.1"}


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (json.dumps({"format": FORMAT + 1, "version": "9.9"}), "written by vcl 9.9.*Install that version"),
        ('{"benchmark": "b"}', "not a run folder"),
        ('{"format": "two"}', "not a run folder"),
        ("[1, 2]", "does not hold a JSON object"),
        ('{"format": 1,', "cannot be read"),
        (json.dumps({"format": FORMAT, "seed": 1}), "lost its checksum"),
        (json.dumps({"format": 2, "seed": "1"}), "'seed' is a str, not int"),
        ('{"format": ' + "[" * 100_000, "cannot be read"),
        ("\xff", "cannot be read"),
    ],
)
def test_a_record_that_this_version_cannot_read_is_refused(folder, record, message):
    (folder.path / "run.json").write_bytes(record.encode("latin-1"))
    with pytest.raises(VclError, match=message):
        RunFolder.open(folder.path)


def test_a_folder_without_a_record_is_no_run(tmp_path):
    (tmp_path / "file").touch()
    for path in (tmp_path, tmp_path / "missing", tmp_path / "file"):
        with pytest.raises(VclError, match=r"is not a run folder.*run\.json"):
            RunFolder.open(path)


@pytest.mark.parametrize("place", ["file", "file/below"])
def test_a_folder_that_cannot_be_written_is_a_clear_error(tmp_path, place):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(VclError, match="Could not write"):
        RunFolder.create(tmp_path / place / "run", {})
    with pytest.raises(VclError, match="Could not write"), RunFolder(tmp_path / place).lock():
        pytest.fail("no lock without a folder")
    assert (tmp_path / "file").read_text() == "in the way"


OBJECTIVE = {"event": "objective", "stage": 0, "phase": "train", "first": 0, "objectives": [0.1 + 0.2, 1e-300]}
UNTRAINED = {"event": "untrained", "stage": -1, "accuracy": [0.5], "name": "ü\n"}


def test_events_come_back_in_order_and_half_a_line_does_not_count(folder):
    assert folder.events() == []
    events = [OBJECTIVE, UNTRAINED]
    for event in events:
        folder.append_event(event)
    with (folder.path / "metrics.jsonl").open("a") as out:
        out.write('{"event": "eval')
    assert folder.events() == events
    folder.replace_events(folder.events()[:1])
    assert folder.events() == events[:1]


def test_events_that_were_damaged_are_not_passed_over_in_silence(folder):
    (folder.path / "metrics.jsonl").write_text('{"event": 1}\n{"eve\x00\n{"event": 2}\n')
    with pytest.raises(VclError, match=r"metrics\.jsonl was damaged in line 1"):
        folder.events()


def test_results_are_absent_until_written(folder):
    assert folder.result is None
    folder.write_result(RESULT)
    assert folder.result == RESULT
    assert RESULT.items() <= json.loads((folder.path / "result.json").read_text()).items()


def test_all_runs_below_a_folder_are_found_by_name(tmp_path):
    for name in ("b", "a"):
        RunFolder.create(tmp_path / name, {})
    (tmp_path / "c").mkdir()
    assert [run.name for run in stored_runs(tmp_path)] == ["a", "b"]
    (tmp_path / "b" / "metrics.jsonl").touch()
    (tmp_path / "b" / "run.json").unlink()
    assert [run.name for run in stored_runs(tmp_path)] == ["a", "b"]
    assert stored_runs(tmp_path / "missing") == []
