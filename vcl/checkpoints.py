"""Pytrees of arrays as files: safetensors with facts and a checksum over all of it. Loading never runs code."""

import hashlib
import json
import stat
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from vcl.errors import VclError


class DamagedCheckpoint(Exception):
    """A checkpoint that is not what was written."""


def dump_tree(tree: PyTree, facts: dict[str, Any]) -> bytes:
    """A pytree of arrays as one safetensors file, with facts and a checksum over all of it."""
    # Not ascontiguousarray, which gives scalars an axis.
    tensors = {name: np.asarray(leaf, order="C") for name, leaf in named_leaves(tree)}
    told = json.dumps(facts)
    return _in_order(save(tensors, metadata={"facts": told, "sha256": digest(tensors, told)}))


def _in_order(contents: bytes) -> bytes:
    """A safetensors file with its metadata sorted: it comes in any order, but equal trees shall make equal files."""
    begin = 8
    end = begin + int.from_bytes(contents[:begin], "little")
    header = json.loads(contents[begin:end])
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    sorted_header = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    return contents[:begin] + sorted_header.ljust(end - begin) + contents[end:]


def load_tree(path: Path, like: PyTree) -> tuple[PyTree, dict[str, Any]]:
    """Read back what `dump_tree` wrote, into the structure of `like`."""
    metadata, tensors = _read(path, with_tensors=True)
    if metadata.get("sha256") != digest(tensors, metadata.get("facts", "")):
        raise DamagedCheckpoint(f"The checkpoint {path} was altered: its checksum does not match.")
    expected = {name: (leaf.shape, np.dtype(leaf.dtype)) for name, leaf in named_leaves(like)}
    found = {name: (tensor.shape, tensor.dtype) for name, tensor in tensors.items()}
    if expected != found:
        raise VclError(
            f"The checkpoint {path} does not fit this run's configuration: it holds other arrays or shapes. "
            "It belongs to another run, or run.json was changed."
        )
    leaves = [jnp.asarray(tensors[name]) for name, _ in named_leaves(like)]
    return jax.tree.unflatten(jax.tree.structure(like), leaves), _facts(path, metadata)


def _read(path: Path, *, with_tensors: bool) -> tuple[dict[str, str], dict[str, np.ndarray]]:
    """The metadata of a safetensors file, and its arrays. What is not a regular file might have no end."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise OSError("it is not a regular file")
        with safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
            names = list(file.keys()) if with_tensors else []
            return metadata, {name: file.get_tensor(name) for name in names}
    # Of types that numpy does not have, such as float8, safetensors tells in several ways.
    except (SafetensorError, OSError, TypeError, KeyError, AttributeError, ValueError) as error:
        raise DamagedCheckpoint(f"The checkpoint {path} cannot be read ({error}).") from None


def _facts(path: Path, metadata: dict[str, str]) -> dict[str, Any]:
    try:
        facts = json.loads(metadata.get("facts", "null"))
    except (ValueError, RecursionError) as error:
        raise DamagedCheckpoint(f"The checkpoint {path} cannot be read ({error}).") from None
    if not isinstance(facts, dict):
        raise DamagedCheckpoint(f"The checkpoint {path} cannot be read (it has no facts).")
    return facts


def read_facts(path: Path) -> dict[str, Any]:
    """The facts alone, unchecked: `load_tree` compares the checksum."""
    return _facts(path, _read(path, with_tensors=False)[0])


def named_leaves(tree: PyTree) -> list[tuple[str, Any]]:
    """Each array with its path within the tree as its name."""
    return [(jax.tree_util.keystr(path), leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(tree)]


def digest(tensors: dict[str, np.ndarray], facts: str = "") -> str:
    """SHA-256 over names, types, shapes and contents, and over the facts."""
    checksum = hashlib.sha256(facts.encode())
    for name in sorted(tensors):
        array = tensors[name]
        checksum.update(f"{name} {array.dtype} {array.shape}".encode())
        checksum.update(array.tobytes())
    return checksum.hexdigest()


def tree_digest(tree: PyTree) -> str:
    """A fingerprint of all arrays in a pytree: equal exactly when they are equal to the bit."""
    return digest({name: np.asarray(leaf) for name, leaf in named_leaves(tree)})
