"""Damage to a run folder is refused or repaired: it never changes an answer in silence."""

import json
import shutil
from pathlib import Path

import pytest
from test_runs import SMALL, Listener, same

from vcl import runs
from vcl.errors import VclError
from vcl.runs import StoredRun, sealed
from vcl.runs.fold import Interrupted
from vcl.runs.folder import RunFolder

TASKS = 3


def config(**changes) -> runs.RunConfig:
    options = runs.StreamOptions(num_tasks=TASKS)
    return runs.configure("permuted-digits", **{"threads": 1, "stream": options, **SMALL, "epochs": 2, **changes})


@pytest.fixture(scope="module")
def complete(tmp_path_factory) -> RunFolder:
    root = tmp_path_factory.mktemp("damage")
    runs.run(config(), root)
    return RunFolder.open(root / config().name)


@pytest.fixture
def folder(complete, tmp_path) -> RunFolder:
    """A copy to be damaged."""
    return RunFolder(shutil.copytree(complete.path, tmp_path / complete.name))


def stopped(folder: RunFolder) -> RunFolder:
    """As it was before the last stage."""
    (folder.path / "result.json").unlink()
    folder.path_after(TASKS).unlink()
    return folder


def without_lines(folder: RunFolder, lost) -> None:
    path = folder.path / "metrics.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    kept = [line for line in lines if not lost(json.loads(line))]
    assert len(kept) < len(lines)
    path.write_text("".join(kept))


LOST = {
    "untrained": lambda e: e["event"] == "untrained",
    "the first evaluation": lambda e: e["event"] == "evaluation" and e["stage"] == 0,
    "all evaluations": lambda e: e["event"] == "evaluation",
    "everything": lambda e: True,
    "the end": lambda e: e["stage"] > 0,
}


@pytest.mark.parametrize("lost", LOST)
def test_lost_lines_are_measured_again_when_the_run_continues(complete, folder, lost):
    without_lines(stopped(folder), LOST[lost])
    same(runs.resume(folder), complete.result)
    same(runs.resume(folder), complete.result)
    assert folder.events()


@pytest.mark.parametrize("lost", LOST)
def test_lost_lines_of_a_complete_run_are_told(folder, lost):
    without_lines(folder, LOST[lost])
    with pytest.raises(sealed.Damaged, match=r"metrics\.jsonl.*vcl resume"):
        folder.events()


def test_lost_lines_whose_checkpoint_is_lost_too_are_refused(folder):
    without_lines(stopped(folder), LOST["the first evaluation"])
    folder.path_after(1).unlink()
    with pytest.raises(VclError, match="no checkpoint after stage 1"):
        runs.resume(folder)


@pytest.mark.parametrize(("old", "new"), [('"seed": 0', '"seed": 1'), ('"epochs": 2', '"epochs": 3')])
def test_a_changed_record_is_refused(folder, old, new):
    path = folder.path / "run.json"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    for use in (RunFolder.open, StoredRun.open):
        with pytest.raises(sealed.Damaged, match=r"run\.json was changed after it was written"):
            use(folder.path)


def test_a_record_that_was_changed_with_its_checksum_does_not_fit_the_checkpoints(folder):
    (folder.path / "run.json").write_bytes(sealed.seal({**stopped(folder).record, "seed": 1}))
    with pytest.raises(VclError, match="another configuration"):
        StoredRun.open(folder.path).state(2)
    before = folder.path_after(2).read_bytes()
    with pytest.raises(VclError, match="another configuration"):
        runs.resume(folder)
    assert folder.path_after(2).read_bytes() == before


def test_a_checkpoint_of_another_stage_is_refused_or_skipped(complete, folder):
    shutil.copy(folder.path_after(1), folder.path_after(2))
    with pytest.raises(VclError, match=r"another stage \(1, not 2\)"):
        StoredRun(folder).state(2)
    stopped(folder)
    listener = Listener()
    same(runs.resume(folder, reporter=listener), complete.result)
    assert any("The one before it is used" in word for word in listener.words)


def test_a_checkpoint_of_another_configuration_is_refused(folder, tmp_path):
    other = config(learning_rate=0.123)
    runs.run(other, tmp_path)
    shutil.copy(RunFolder(tmp_path / other.name).path_after(TASKS), folder.path_after(TASKS))
    with pytest.raises(VclError, match="another configuration"):
        StoredRun(folder).state()


@pytest.mark.parametrize("name", ["run.json", "result.json", "metrics.jsonl"])
def test_a_file_of_another_run_is_refused(folder, tmp_path, name):
    other = config(learning_rate=0.456)
    runs.run(other, tmp_path)
    shutil.copy(tmp_path / other.name / name, folder.path / name)
    with pytest.raises(VclError, match=r"another configuration|line 1|lines were lost"):
        StoredRun.open(folder.path).folder.events()


def test_a_checkpoint_beyond_the_last_stage_is_refused(folder):
    shutil.copy(folder.path_after(TASKS), folder.path_after(TASKS + 1))
    for use in (StoredRun(folder).state, StoredRun(folder).task_ends):
        with pytest.raises(VclError, match=rf"after-000{TASKS + 1}.*has {TASKS} stages"):
            use()
    (folder.path / "result.json").unlink()
    with pytest.raises(VclError, match=rf"has {TASKS} stages"):
        runs.resume(folder)


@pytest.mark.parametrize(
    ("stage", "words"), [(TASKS, "the last, is missing"), (1, "lost its checkpoint after stage 1")]
)
def test_a_lost_checkpoint_is_told(folder, stage, words):
    folder.path_after(stage).unlink()
    with pytest.raises(VclError, match=words):
        StoredRun(folder).task_ends()


def answers(path: Path) -> list[object]:
    """All that is read of a run: record, result, events, fingerprints."""
    run = StoredRun.open(path)
    return [run.record, run.config, run.spec, run.result, run.folder.events(), run.folder.fingerprint]


def test_no_bit_flip_in_json_changes_an_answer(complete, folder):
    """Every eleventh byte, a bit of each: what is not refused must be read as it was."""
    expected = answers(complete.path)
    outcomes = {"refused": 0, "harmless": 0}
    for name in ("run.json", "result.json", "metrics.jsonl"):
        path = folder.path / name
        good = path.read_bytes()
        for place in range(0, len(good), 11):
            path.write_bytes(good[:place] + bytes([good[place] ^ (1 << place % 8)]) + good[place + 1 :])
            try:
                found = answers(folder.path)
            except VclError:
                outcomes["refused"] += 1
            else:
                assert found == expected, (name, place)
                outcomes["harmless"] += 1
        path.write_bytes(good)
    assert outcomes["refused"] > 10 * outcomes["harmless"]


def test_a_trace_that_was_asked_for_is_not_lost_by_a_kill_before_its_first_snapshot(tmp_path):
    from vcl.analysis.trace import UnitTracer

    calls = []

    def stop() -> bool:
        calls.append(1)
        return True

    class Late(UnitTracer):
        def epochs(self, phase, total):
            return ()

    with pytest.raises(Interrupted):
        runs.run(config(), tmp_path, trace=Late, stop=stop)
    folder = RunFolder.open(tmp_path / config().name)
    assert not folder.snapshots()
    assert folder.is_traced


def as_format_2(folder: RunFolder) -> None:
    """The folder as the version before wrote it, without checksums in JSON."""
    record, result, events = folder.record, folder.result, folder.events()
    (folder.path / "run.json").write_text(json.dumps({**record, "format": 2}))
    (folder.path / "result.json").write_text(json.dumps(result))
    (folder.path / "metrics.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))


def test_folders_of_the_version_before_are_read_and_continued(complete, folder):
    as_format_2(folder)
    run = StoredRun.open(folder.path)
    assert run.result == complete.result
    assert run.folder.events() == complete.events()
    assert run.state()
    stopped(folder)
    same(runs.resume(folder), complete.result)


def test_a_users_own_hidden_files_stay(folder):
    (folder.path / ".gitignore").write_text("*")
    (folder.path / ".git").mkdir()
    half = folder.checkpoints / ".after-0003.safetensors.k3j2h1_0"
    half.write_bytes(b"half")
    stopped(folder)
    runs.resume(folder)
    assert (folder.path / ".gitignore").read_text() == "*"
    assert (folder.path / ".git").is_dir()
    assert not half.exists()


def test_a_run_that_ends_while_it_is_read_is_not_taken_for_damaged(folder, monkeypatch):
    ended = {name: (folder.path / name).read_bytes() for name in ("metrics.jsonl", "result.json")}
    lines = ended["metrics.jsonl"].splitlines(keepends=True)
    (folder.path / "metrics.jsonl").write_bytes(b"".join(lines[:-1]))
    (folder.path / "result.json").unlink()
    read = RunFolder._chain

    def end_after_reading(self):
        found = read(self)
        for name, contents in ended.items():
            (self.path / name).write_bytes(contents)
        return found

    monkeypatch.setattr(RunFolder, "_chain", end_after_reading)
    assert len(folder.events()) == len(lines) - 1
    monkeypatch.undo()
    assert len(folder.events()) == len(lines)
