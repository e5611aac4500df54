"""JSON that tells whether it is what was written: a checksum inside an object, and a chain from line to line."""

import hashlib
import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from vcl.errors import VclError
from vcl.files import read_regular

CHECKSUM = "sha256"
LENGTH = 16
"""Letters of a line's checksum."""
BLOCK = 1 << 16


class Damaged(VclError):
    """A file that is not what was written."""


def seal(value: dict[str, Any]) -> bytes:
    """An object as JSON, with a checksum over all of it."""
    return (json.dumps({**value, CHECKSUM: digest(value)}, indent=2) + "\n").encode()


def digest(value: dict[str, Any]) -> str:
    """Of the values, not of their spelling: what changes no value does no harm."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def unseal(path: Path, *, remedy: str) -> tuple[dict[str, Any], bool]:
    """What `seal` wrote to a file, and whether it had a checksum at all (those of earlier versions have none)."""
    value = parse(read_text(path, remedy), path, remedy)
    if not isinstance(value, dict):
        raise Damaged(f"{path} does not hold a JSON object. {remedy}")
    found = value.pop(CHECKSUM, None)
    if found is not None and found != digest(value):
        raise Damaged(f"{path} was changed after it was written: its checksum does not match. {remedy}")
    return value, found is not None


def parse(text: str, path: Path, remedy: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Damaged(f"{path} cannot be read: {error}. {remedy}") from None


def read_text(path: Path, remedy: str) -> str:
    """The text of a file; a missing one is told by FileNotFoundError or NotADirectoryError."""
    try:
        return read_regular(path).decode()
    except (FileNotFoundError, NotADirectoryError):
        raise
    except (OSError, ValueError) as error:
        raise Damaged(f"{path} cannot be read: {error}. {remedy}") from None


# Lines


def link(before: str, event: dict[str, Any]) -> str:
    """The checksum of a line: over the line itself and over all before it, so that none can be lost unnoticed."""
    return hashlib.sha256(f"{before}{digest(event)}".encode()).hexdigest()[:LENGTH]


def chained(events: Iterable[dict[str, Any]], before: str) -> tuple[bytes, str]:
    """Events as lines that follow the line with checksum `before`, and the checksum of the last."""
    lines = []
    for event in events:
        before = link(before, event)
        lines.append(json.dumps({**event, CHECKSUM: before}) + "\n")
    return "".join(lines).encode(), before


def last_link(path: Path) -> str:
    """The checksum of a file's last line, without reading the whole file; empty if there is none."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            tail = b""
            while size and tail.count(b"\n") < 2:
                size = max(0, size - BLOCK)
                file.seek(size)
                tail = file.read()
    except FileNotFoundError:
        return ""
    lines = tail.splitlines()
    event = parse(lines[-1].decode(), path, "") if lines else {}
    return str(event.get(CHECKSUM, ""))


def unchained(
    path: Path, *, start: str, required: bool, check: Callable[[dict[str, Any]], bool], remedy: str
) -> tuple[list[dict[str, Any]], str, Damaged | None]:
    """The events of a file up to the first damage, the checksum of the last of them, and the damage.

    The first line follows `start`. A last line without its end was never written whole, and does not count. Files
    of earlier versions have no checksums, unless these are `required`. `check` says whether vcl writes such events.
    """
    try:
        lines = read_text(path, remedy).splitlines(keepends=True)
    except (FileNotFoundError, NotADirectoryError):
        return [], start, None
    except Damaged as damage:
        return [], start, damage
    required = required or any(CHECKSUM in line for line in lines)
    events: list[dict[str, Any]] = []
    before = start
    for number, line in enumerate((line for line in lines if line.endswith("\n")), 1):
        try:
            event = parse(line, path, remedy)
        except Damaged as damage:
            return events, before, damage
        found = event.pop(CHECKSUM, None) if isinstance(event, dict) else None
        if not isinstance(event, dict) or (required and found != link(before, event)) or not check(event):
            reason = f"{path} was damaged in line {number}, or lost the line before: its checksum does not match."
            return events, before, Damaged(f"{reason} {remedy}")
        before = found or before
        events.append(event)
    return events, before, None
