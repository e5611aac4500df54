"""Models and files of one's own data under attack: refused in one paragraph, written whole, learnt once."""

import io
import json
import os
import signal
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import save
from test_cli import refused, vcl  # noqa: F401

from vcl import Model, VclError, checkpoints, recording
from vcl.kept import KeptModel, read

ROWS = np.random.default_rng(0).normal(size=(60, 2))
TABLE = "a,b\x1b[31m,label\n" + "".join(f"{a:.3f},{b:.3f},{'yes' if a > 0 else '[/b]'}\n" for a, b in ROWS)
LEARN = ("learn", "m.vcl", "one.csv", "--label", "label", "--method", "finetune")
LEARN += ("--hidden", "4", "--epochs", "4", "--quiet")


@pytest.fixture
def taught(vcl, tmp_path, monkeypatch) -> Path:  # noqa: F811
    monkeypatch.chdir(tmp_path)
    Path("one.csv").write_text(TABLE)
    assert vcl(*LEARN).code == 0
    return Path("m.vcl")


def rewritten(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """The model with other facts, and a checksum that fits."""
    metadata, tensors = checkpoints._read(path, with_tensors=True)
    facts = json.loads(metadata["facts"])
    change(facts)
    told = json.dumps(facts)
    path.write_bytes(save(tensors, metadata={"facts": told, "sha256": checkpoints.digest(tensors, told)}))


ODD = {
    "no format": lambda f: f.pop("format"),
    "a format of text": lambda f: f.update(format="1"),
    "no method": lambda f: f.pop("method"),
    "an unknown method": lambda f: f.update(method="magic"),
    "settings that make no sense": lambda f: f["settings"].update(epochs=-5),
    "sizes of text": lambda f: f["spec"].update(heads="x"),
    "no sizes": lambda f: f.update(spec={}),
    "no tasks": lambda f: f.update(tasks=[]),
    "tasks of numbers": lambda f: f.update(tasks=[1]),
    "a head that is not there": lambda f: f["tasks"][0].update(head=7),
    "classes that are not there": lambda f: f.update(head_classes=[[0, 9]]),
    "notes of text": lambda f: f.update(notes="x"),
    "kept notes of text": lambda f: f["notes"].update(kept=3),
    "threads of text": lambda f: f["notes"]["kept"].update(threads="<b>"),
    "a log of text": lambda f: f["notes"]["kept"]["log"][0].update(seconds="<script>"),
    "a log without sources": lambda f: f["notes"]["kept"]["log"][0].pop("source"),
    "columns of text": lambda f: f["notes"]["kept"]["encoder"][0].update(low="<b>"),
    "held-out examples of text": lambda f: f["notes"]["kept"].update(held_out=[["default", {"correct": "x"}]]),
}


def test_a_model_that_vcl_did_not_write_is_refused(vcl, taught):  # noqa: F811
    good = taught.read_bytes()
    for name, change in ODD.items():
        taught.write_bytes(good)
        rewritten(taught, change)
        answer = vcl("show", taught)
        assert answer.code == 2, name
        refused(answer)
    rng = np.random.default_rng(0)
    for _ in range(30):
        place = int(rng.integers(0, len(good)))
        taught.write_bytes(good[:place] + bytes([good[place] ^ (1 << int(rng.integers(0, 8)))]) + good[place + 1 :])
        refused(vcl("show", taught))


def test_names_in_a_model_cannot_command_the_terminal(vcl, taught):  # noqa: F811
    for command in (("show", taught), ("predict", taught, "one.csv")):
        answer = vcl(*command)
        assert answer.code == 0
        assert "\x1b" not in answer.out + answer.err
    assert "[/b]" in answer.out


def test_outputs_go_through_devices_and_survive_a_full_disk(vcl, taught):  # noqa: F811
    from test_store import largest_file

    commands = [("report", taught, "--out"), ("export", taught, "--format", "card", "--output")]
    commands.append(("predict", taught, "one.csv", "--output"))
    for command in commands:
        refused(vcl(*command, taught), "is the model itself")
        assert vcl(*command, "/dev/null").code == 0
        assert Path("/dev/null").is_char_device()
        Path("old").write_bytes(b"the old one")
        with largest_file(100):
            refused(vcl(*command, "old"), "Could not write")
        assert Path("old").read_bytes() == b"the old one"


def test_a_command_is_repeated_without_learning_twice(vcl, taught):  # noqa: F811
    before = taught.read_bytes()
    answer = vcl(*LEARN)
    assert answer.code == 0
    assert "taught already" in answer.err
    assert taught.read_bytes() == before
    refused(vcl(*LEARN, "--seed", "3"), "--seed is decided when a model is made")
    assert vcl("learn", taught, "one.csv", "--again", "--quiet").code == 0
    assert len(KeptModel.load(taught).log) == 2


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda n: n.name)
def test_a_signal_saves_and_the_same_command_continues(vcl, taught, monkeypatch, number):  # noqa: F811
    expected = KeptModel.load(taught).fingerprint
    taught.unlink()
    checkpoint = Path(".m.vcl.checkpoints")
    left = checkpoint / ".learn-train-000001.safetensors.0-1-x.vcl-tmp"
    with monkeypatch.context() as patched:
        patched.setattr(recording.LearnRecorder, "advance", lambda *_: signal.raise_signal(number))
        answer = vcl(*LEARN)
    assert answer.code == 130
    assert "checkpoints are saved. Continue with the same command." in answer.err
    assert "Traceback" not in answer.err
    assert not taught.exists()
    assert [path.name for path in checkpoint.iterdir()] == ["learn-train-000001.safetensors"]
    left.write_bytes(b"half")
    assert vcl(*LEARN).code == 0
    assert KeptModel.load(taught).fingerprint == expected
    assert sorted(path.name for path in Path().iterdir()) == [".m.vcl.lock", "m.vcl", "one.csv"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP], ids=lambda n: n.name)
def test_model_learn_with_checkpoints_stops_at_a_signal(tmp_path, monkeypatch, number):
    model = Model("finetune", hidden=(4,), epochs=4, batch_size=16)
    with monkeypatch.context() as patched:
        patched.setattr(recording.LearnRecorder, "advance", lambda *_: signal.raise_signal(number))
        with pytest.raises(KeyboardInterrupt, match="the same call continues there"):
            model.learn(ROWS, ROWS[:, 0] > 0, checkpoint=tmp_path)
    assert signal.getsignal(number) is signal.SIG_DFL
    assert list(tmp_path.iterdir())
    model.learn(ROWS, ROWS[:, 0] > 0, checkpoint=tmp_path)
    assert not list(tmp_path.iterdir())


# Files to learn from


def array(values: Any) -> bytes:
    out = io.BytesIO()
    np.save(out, values)
    return out.getvalue()


def archive(path: Path, **parts: bytes) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, contents in parts.items():
            packed.writestr(f"{name}.npy", contents)


def picture(path: Path, side: int) -> None:
    (path / "class").mkdir(parents=True)
    Image.new("1", (side, side)).save(path / "class" / "1.png")


X, Y = array(ROWS), array(np.arange(60))
HUGE = b"{'descr': '<f8', 'fortran_order': False, 'shape': (100000000000, 64)}\n"
BROKEN: dict[str, Callable[[Path], Any]] = {
    "fifo.csv": os.mkfifo,
    "fifo.npy": os.mkfifo,
    "fifo.npz": os.mkfifo,
    "fifo.parquet": os.mkfifo,
    "binary.csv": lambda path: path.write_bytes(bytes(range(256))),
    "long.csv": lambda path: path.write_text("x,label\n" + "9" * 200_000 + ",a\n"),
    "huge.npy": lambda path: path.write_bytes(b"\x93NUMPY\x01\x00" + len(HUGE).to_bytes(2, "little") + HUGE),
    "huge.npz": lambda path: archive(
        path, x=b"\x93NUMPY\x01\x00" + len(HUGE).to_bytes(2, "little") + HUGE + bytes(64), y=Y
    ),
    "broken.npz": lambda path: archive(path, x=b"junk", y=Y),
    "short.npz": lambda path: path.write_bytes(b"PK\x03\x04"),
    "matrix-labels.npz": lambda path: archive(path, x=X, y=X),
    "dates.npz": lambda path: archive(path, x=X, y=array(np.full(60, "2020-01-01", "M8[D]"))),
    "complex.npz": lambda path: archive(path, x=array(ROWS.astype(complex)), y=Y),
    "texts.npz": lambda path: archive(path, x=array(ROWS.astype(str)), y=Y),
    "bytes.npz": lambda path: archive(path, x=X, y=array(np.full(60, b"\xff"))),
    "junk.parquet": lambda path: path.write_bytes(b"PAR1junkPAR1"),
    "bomb": lambda path: picture(path, 15_000),
    "fifo-picture": lambda path: [(path / "c").mkdir(parents=True), os.mkfifo(path / "c" / "1.png")],
}


@pytest.mark.parametrize("name", BROKEN)
@pytest.mark.filterwarnings("ignore:Image size")
def test_a_broken_file_of_data_is_refused(tmp_path, name):
    if name.endswith(".parquet"):
        pytest.importorskip("pyarrow")
    BROKEN[name](tmp_path / name)
    with pytest.raises(VclError, match=name.split(".")[0]):
        read(tmp_path / name)


def test_numbers_beyond_scaling_are_refused():
    from vcl.kept import Encoder

    with pytest.raises(VclError, match="too large"):
        Encoder.fit({"x": np.array([1e308, -1e308])})
