"""Odd and hostile input: refused with one paragraph, in seconds, without a traceback or an unbounded allocation."""

import gzip
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from test_cli import NAME, RUN, Answer, copied, finished, images, refused, vcl  # noqa: F401

from vcl import data
from vcl.data import sources
from vcl.data.formats import cifar10_from_pictures
from vcl.errors import VclError
from vcl.files import locked, write_atomically, write_output
from vcl.runs.folder import RunFolder
from vcl.runs.sealed import seal

HUGE = [
    (["--hidden", "1000000000"], ["GB of memory"]),
    (["--epochs", "10000000000"], ["--epochs", "days"]),
    (["--test-samples", "1000000000"], ["--test-samples", "GB of memory"]),
    (["--threads", "100000"], ["--threads", "1024"]),
    (["--seeds", "10000000"], ["--seeds", "days"]),
    (["--num-tasks", "10000000"], ["--num-tasks", "GB"]),
    (["--prior-std", "inf"], ["--prior-std", "inf"]),
    (["--hidden", "[/b]"], ["--hidden"]),
    (["--seed", "1.5"], ["--seed", "1.5"]),
    (["--threads", "1.5"], ["--threads", "1.5"]),
    (["--checkpoint-seconds", "nan"], ["--checkpoint-seconds"]),
    (["--checkpoint-seconds", "-1"], ["--checkpoint-seconds", "negative"]),
    (["--out", "x" * 300], ["file name too long"]),
]


@pytest.mark.parametrize(("arguments", "words"), HUGE, ids=lambda value: " ".join(value)[:40])
def test_a_size_that_cannot_be_meant_is_refused_with_an_estimate(vcl, tmp_path, monkeypatch, arguments, words):  # noqa: F811
    monkeypatch.chdir(tmp_path)
    benchmark = "permuted-digits" if "--num-tasks" in arguments else "split-digits"
    refused(vcl("run", benchmark, *arguments), *words)
    assert not list(tmp_path.iterdir())


PYTHON = {
    "make('vcl', {'hidden': [8, 2.5]})": "--hidden must be a whole number",
    "make('vcl', {'hidden': '88'})": "--hidden",
    "make('vcl', {'hidden': 8})": "--hidden",
    "make('vcl', {'epochs': 2.5})": "--epochs must be a whole number, but it is 2.5",
    "make('vcl', {'epochs': True})": "--epochs",
    "make('vcl', {'epochs': None})": "--epochs",
    "make('vcl', {'learning_rate': 'fast'})": "--learning-rate must be a number",
    "make('vcl', {'schedule': 'linear'})": "--schedule must be 'constant'",
    "make('vcl', {'network': 'cnn'})": "--network must be 'mlp'",
    "make('vcl', {'network': 3})": "--network",
    "make('vcl', {'prior_std': float('inf')})": "--prior-std",
    "make('vcl', {'prior_std': 10**400})": "--prior-std",
    "vcl.configure('split-digits', seed=1.5)": "--seed must be a whole number",
    "vcl.configure('split-digits', seed='1')": "--seed",
    "vcl.configure('split-digits', threads=1.5)": "--threads",
    "vcl.configure('split-digits', threads=10**6)": "--threads",
    "vcl.configure('split-digits', recipe='none')": "recipe",
    "vcl.build('split-digits', vcl.StreamOptions(scenario='all'), 0)": "scenario",
    "vcl.build('split-digits', vcl.StreamOptions(num_tasks=2.0), 0)": "--num-tasks",
    "vcl.build('split-digits', vcl.StreamOptions(online=3.5), 0)": "--online",
    "vcl.build('split-digits', vcl.StreamOptions(validation='x'), 0)": "--validation",
    "vcl.StoredRun.open('no/such/run')": "is not a run folder",
    "vcl.configure(3)": "no benchmark 3",
    "vcl.configure('split-digits', recipe=b'x')": "no recipe",
    "vcl.build('split-digits', vcl.StreamOptions(online=None), 0)": "--online must be a whole number",
    "vcl.build('split-digits', vcl.StreamOptions(), 'abc')": "--seed must be a whole number",
    "vcl.Model(3)": "A method is a name",
    "vcl.Model('vcl').learn(np.ones((4, 2)), None)": "The labels must be a sequence",
    "vcl.Model('vcl').learn([[1], [1, 2]], [0, 1])": "rows of different lengths",
    "vcl.VCLClassifier(hidden=3).fit(np.eye(4), [0, 1, 0, 1])": "--hidden",
    "vcl.VCLRegressor().fit(np.eye(4), [1e308, -1e308, 0, 1])": "of a usual size",
    "vcl.Model(vcl.VCL(hidden=(4,), epochs=1)).learn(np.ones((4, 2)) * 1e39, [0, 1, 0, 1])": "too large",
    "vcl.Model(vcl.VCL(hidden=(10**9,), epochs=1)).learn(np.ones((4, 2)), [0, 1, 0, 1])": "GB of memory",
}


def test_odd_values_are_refused_in_python():
    """In a process of its own, without the checks of types that tests have."""
    code = "import json, sys\nimport numpy as np\nimport vcl\nfrom vcl.methods import make\n"
    code += "assert make('vcl', {'hidden': [8, np.int64(4)]}) == make('vcl', {'hidden': (8, 4)})\n"
    code += "def answer(call):\n    try:\n        return f'accepted: {eval(call)}'\n"
    code += "    except BaseException as error:\n        return f'{type(error).__name__}: {error}'\n"
    code += "print(json.dumps({call: answer(call) for call in json.loads(sys.argv[1])}))"
    command = [sys.executable, "-c", code, json.dumps(list(PYTHON))]
    found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True, timeout=300).stdout)
    for call, words in PYTHON.items():
        assert found[call].startswith("VclError"), (call, found[call])
        assert words in found[call], (call, found[call])


def test_a_prior_beyond_all_numbers_is_told(vcl, tmp_path):  # noqa: F811
    refused(vcl(*RUN, "--prior-std", "1e29", "--out", tmp_path, "--quiet"), "not numbers")


# Run folders


def with_record(folder: Path, **changes) -> Path:
    """The folder with another record, and a checksum that fits."""
    (folder / "run.json").write_bytes(seal({**RunFolder(folder).record, **changes}))
    return folder


def fifo(path: Path) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path)


STRANGE = {
    "deep json": lambda f: (f / "run.json").write_text("[" * 200_000),
    "a list": lambda f: (f / "run.json").write_text("[]"),
    "wrong types": lambda f: with_record(f, seed="zero"),
    "wrong types inside": lambda f: with_record(f, stages=["a", 1]),
    "no configuration": lambda f: (f / "run.json").write_text('{"format": 2}'),
    "a fifo as record": lambda f: fifo(f / "run.json"),
    "a fifo as result": lambda f: fifo(f / "result.json"),
    "a folder as result": lambda f: [(f / "result.json").unlink(), (f / "result.json").mkdir()],
    "a result of other types": lambda f: (f / "result.json").write_bytes(seal({"steps": "<script>"})),
    "a ragged result": lambda f: (f / "result.json").write_bytes(
        seal({**RunFolder(f).result, "accuracy_matrix": [[1.0]]})
    ),
    "a number as text": lambda f: (f / "result.json").write_bytes(seal({**RunFolder(f).result, "steps": "<b>"})),
    "not utf-8": lambda f: (f / "run.json").write_bytes(b"\xff\xfe"),
    "nothing": lambda f: (f / "run.json").write_bytes(b""),
}


@pytest.mark.parametrize("strange", STRANGE)
def test_a_strange_run_folder_is_refused_and_hides_no_other(vcl, copied, finished, strange):  # noqa: F811
    other = copied.with_name("other")
    shutil.copytree(finished, other)
    STRANGE[strange](copied)
    refused(vcl("show", copied))
    listed = vcl("runs", copied.parent, "--json")
    assert listed.code == 0
    assert [row["run"] for row in json.loads(listed.out)] == ["other"]
    assert "Skipped" in listed.err


@pytest.mark.parametrize("name", ["metrics.jsonl", "lock", "checkpoints/after-0002.safetensors"])
def test_a_fifo_in_a_run_folder_is_not_waited_for(vcl, copied, name):  # noqa: F811
    (copied / "result.json").unlink()
    fifo(copied / name)
    answer = vcl("resume", copied)
    assert "Traceback" not in answer.err
    assert name.rpartition("/")[2] in answer.err


def test_names_cannot_command_the_terminal(vcl, finished, tmp_path):  # noqa: F811
    folder = tmp_path / "a[b]\x1b[31m"
    shutil.copytree(finished, folder)
    with_record(folder, command="vcl \x1b]0;title\x07 [/red]")
    for command in ("show", "runs"):
        answer = vcl(command, folder if command == "show" else tmp_path)
        assert answer.code == 0
        assert "\x1b" not in answer.out + answer.err
        assert "\\x1b" in answer.out


# Arrays


def npy(header: bytes, body: bytes = b"") -> bytes:
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + body


NPY = {
    "a huge header": npy(b"{'descr': '<f8', 'fortran_order': False, 'shape': (100000000000, 64)}\n", b"\0" * 64),
    "an overflowing shape": npy(b"{'descr': '<f8', 'fortran_order': False, 'shape': (%d, 64)}\n" % 2**80),
    "a negative shape": npy(b"{'descr': '<f8', 'fortran_order': False, 'shape': (-5, 64)}\n"),
    "no expression": npy(b"{'descr': '<f8', ((((((\n"),
    "deep expression": npy(b"(" * 9000 + b"\n"),
    "no dictionary": npy(b"[1, 2]\n"),
    "unknown type": npy(b"{'descr': 'xyz', 'fortran_order': False, 'shape': (1, 64)}\n"),
    "objects": npy(b"{'descr': '|O', 'fortran_order': False, 'shape': (1, 64)}\n", b"\x80\x04."),
    "text": npy(b"{'descr': '<U1', 'fortran_order': False, 'shape': (1, 64)}\n", b"\0" * 256),
    "dates": npy(b"{'descr': '<M8[s]', 'fortran_order': False, 'shape': (1, 64)}\n", b"\0" * 512),
    "records": npy(b"{'descr': [('a', '<f8')], 'fortran_order': False, 'shape': (1, 64)}\n", b"\0" * 512),
    "cut off": npy(b"{'descr': '<f8', 'fortran_order': False, 'shape': (2, 64)}\n", b"\0" * 100),
    "nothing": b"",
}


@pytest.mark.parametrize("contents", NPY.values(), ids=NPY)
def test_a_broken_array_is_refused(vcl, finished, tmp_path, contents):  # noqa: F811
    path = tmp_path / "images.npy"
    path.write_bytes(contents)
    refused(vcl("predict", finished, "--input", path, "--task", "1"))


def test_no_mutation_of_a_header_is_a_traceback(tmp_path):
    from vcl.inputs import read_npy

    whole = io.BytesIO()
    np.save(whole, np.zeros((3, 64), np.float32))
    good, path, rng = whole.getvalue(), tmp_path / "x.npy", np.random.default_rng(0)
    read = 0
    for _ in range(300):
        place, bit = int(rng.integers(0, 128)), int(rng.integers(0, 8))
        path.write_bytes(good[:place] + bytes([good[place] ^ (1 << bit)]) + good[place + 1 :])
        try:
            assert read_npy(path).nbytes <= len(good)
            read += 1
        except VclError:
            pass
    assert read < 200


def test_inputs_far_out_of_range_are_refused(vcl, finished, tmp_path):  # noqa: F811
    np.save(tmp_path / "large.npy", np.full((2, 64), 1e30))
    refused(vcl("predict", finished, "--input", tmp_path / "large.npy", "--task", "1"), "scaled to [0, 1]")


# Data from strangers


def test_a_bomb_is_not_unpacked(monkeypatch):
    monkeypatch.setattr(sources, "MOST_BYTES", 10_000)
    bomb = gzip.compress(bytes(1_000_000))
    _, wrong = sources.check({"file": bomb}, {"file": "0" * 64})
    assert "once unpacked" in wrong["file"]


def tar(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for member, contents in members:
            member.size = len(contents)
            archive.addfile(member, io.BytesIO(contents))
    return packed.getvalue()


def test_links_in_an_archive_are_left_out_and_large_members_refused(monkeypatch):
    loop, hard, good = tarfile.TarInfo("a"), tarfile.TarInfo("b"), tarfile.TarInfo("folder/good")
    loop.type, loop.linkname = tarfile.SYMTYPE, "a"
    hard.type, hard.linkname = tarfile.LNKTYPE, "b"
    assert sources._untar(tar((loop, b""), (hard, b""), (good, b"contents"))) == {"good": b"contents"}
    monkeypatch.setattr(sources, "MOST_BYTES", 100)
    with pytest.raises(ValueError, match="larger than any file"):
        sources._untar(tar((good, bytes(1000))))


class Endless:
    def __init__(self):
        self.headers = {}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def read1(self, size):
        return bytes(100)


@pytest.mark.parametrize(("limit", "value"), [("MOST_BYTES", 5_000), ("PATIENCE", 0.05)])
def test_a_mirror_without_end_is_given_up(monkeypatch, limit, value):
    monkeypatch.setattr(sources, limit, value)
    monkeypatch.setattr(sources.urllib.request, "urlopen", lambda *_, **__: Endless())
    with pytest.raises(sources.FAILURES, match=r"sends more|given up"):
        sources._download("http://localhost/file", lambda _: None)


def picture(width: int, height: int) -> bytes:
    out = io.BytesIO()
    Image.new("1", (width, height)).save(out, "png")
    return out.getvalue()


@pytest.mark.parametrize(
    "files",
    [
        {"train_lables.json": b"{}", "test_lables.json": b"[]"},
        {"train_lables.json": b"[" * 100_000, "test_lables.json": b"[]"},
        {"train_lables.json": b"7", "test_lables.json": b"[]"},
        {"train_lables.json": b"[300]", "test_lables.json": b"[]"},
        {
            "train_lables.json": json.dumps([1] * 60_000).encode(),
            "test_lables.json": b"[]",
            "data_batch_1.png": picture(40_000, 40_000),
        },
        {
            "train_lables.json": json.dumps([1] * 60_000).encode(),
            "test_lables.json": b"[]",
            "data_batch_1.png": b"\x89PNG\r\n\x1a\n broken",
        },
    ],
    ids=["object", "deep", "number", "large label", "bomb", "broken"],
)
def test_an_odd_package_is_a_failure_of_its_source(files):
    with pytest.raises(sources.FAILURES):
        cifar10_from_pictures(files)


def test_a_cache_folder_that_cannot_be_used_is_told(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("in the way")
    for place, words in ((tmp_path / "file", "VCL_CACHE_DIR"), ("/proc/none", "VCL_CACHE_DIR"), ("x" * 300, "x")):
        monkeypatch.setenv("VCL_CACHE_DIR", str(place))
        with pytest.raises(VclError, match=words):
            data.load("mnist", say=lambda _: None)


# Files


def test_a_symbolic_link_is_written_through(tmp_path):
    target = tmp_path / "target"
    (tmp_path / "link").symlink_to(target)
    for contents in (b"one", b"two"):
        write_output(tmp_path / "link", contents)
        assert target.read_bytes() == contents
    assert (tmp_path / "link").is_symlink()


def test_devices_and_fifos_are_written_to_and_not_replaced(tmp_path):
    write_output(Path("/dev/null"), b"nothing")
    assert Path("/dev/null").is_char_device()
    os.mkfifo(tmp_path / "fifo")
    reader = os.open(tmp_path / "fifo", os.O_RDONLY | os.O_NONBLOCK)
    write_output(tmp_path / "fifo", b"read me")
    assert os.read(reader, 100) == b"read me"
    os.close(reader)
    with pytest.raises(OSError, match="not a regular file"):
        write_atomically(tmp_path / "fifo", b"no")


def test_leftovers_of_killed_processes_are_removed_and_those_of_living_ones_stay(tmp_path):
    code = "import os, sys; from pathlib import Path; from vcl import files\n"
    code += "os.replace = lambda *_: os._exit(9)\n"
    code += "files.write_atomically(Path(sys.argv[1]), b'half')"
    process = subprocess.run([sys.executable, "-c", code, tmp_path / "report.html"], check=False)
    assert process.returncode == 9
    (left,) = tmp_path.iterdir()
    machine, dead, _ = left.name.removeprefix(".report.html.").split("-", 2)
    assert int(dead) > 1
    alive = f".report.html.{machine}-{os.getpid()}-xyz.vcl-tmp"
    for name in (alive, ".report.html.mine"):
        (tmp_path / name).write_text("mine")
    write_atomically(tmp_path / "report.html", b"whole")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([alive, ".report.html.mine", "report.html"])


def test_a_file_system_without_locks_is_told_and_used(tmp_path, monkeypatch):
    import errno
    import fcntl

    def refuse(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    said: list[str] = []
    with locked(tmp_path / "lock", pytest.fail, said.append):
        pass
    assert "without locks" in said[0]


def real(arguments: list[str], folder: Path, **options) -> Answer:
    command = [sys.executable, "-m", "vcl", *arguments]
    answer = subprocess.run(
        command, cwd=folder, text=True, stderr=subprocess.PIPE, check=False, timeout=120, **options
    )
    return Answer(answer.returncode, "", answer.stderr)


def test_a_number_of_cores_that_is_none_is_refused(tmp_path):
    refused(real(["run", "split-digits"], tmp_path, env={**os.environ, "NPROC": "abc"}), "NPROC", "'abc'")


def test_a_closed_standard_output_harms_nothing(tmp_path):
    answer = real(["methods"], tmp_path, preexec_fn=lambda: os.close(1))
    assert (answer.code, answer.err) == (0, "")


def test_a_prediction_survives_a_full_disk(vcl, finished, images, tmp_path):  # noqa: F811
    from test_store import largest_file

    out = tmp_path / "predictions.npz"
    out.write_bytes(b"the old ones")
    with largest_file(100):
        refused(vcl("predict", finished, "--input", images, "--task", "1", "--output", out), "Could not write")
    assert out.read_bytes() == b"the old ones"


def test_a_folder_that_may_not_be_read_is_told(vcl, tmp_path, monkeypatch):  # noqa: F811
    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied", "/locked")

    monkeypatch.setattr(Path, "exists", refuse)
    refused(vcl(*RUN, "--out", tmp_path), "/locked", "permission denied")


def test_what_a_killed_prune_left_is_explained(vcl, copied):  # noqa: F811
    assert vcl("widen", copied, "--hidden", "9").code == 0
    wide = copied.with_name(f"{copied.name}-widened")
    refused(vcl("widen", copied, "--hidden", "9"), "exists already", "vcl show")
    (wide / "result.json").unlink()
    refused(vcl("widen", copied, "--hidden", "9"), "exists already", f"vcl resume {wide}")
    assert list(copied.parent.glob(NAME))
