"""
Splits the content of a file into parts that can be compared. Leaves out everything that always differs between two
trainings: folder paths of instances, times of day, and the figures that spotrun logs. If a file format stores parts in
an arbitrary order, their order is ignored too.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import sqlite3
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Any, BinaryIO

from spotrun.exactness.arrays import NPY, parts_of_npy
from spotrun.exactness.pickled import PROTO, Parts, digest_of_items, no_memory, parts_of_pickle
from spotrun.exactness.same_everywhere import TIMES, Clean, is_duration, without_times

OURS = frozenset({"cost_usd", "usd_per_epoch", "lost_s", "attempt"})
"""Metrics that spotrun logs in addition to the script's metrics: `Figures.metrics` of spotrun/trainer_link.py."""
ZIP, GZIP, SQLITE = b"PK\x03\x04", b"\x1f\x8b", b"SQLite format 3\x00"
EVENTS = "events.out.tfevents."
LOOK_BYTES = 8192
PIECE_BYTES = 1 << 20
TEXT_MAX_BYTES = 256 << 20
"""Maximum bytes of a text that is compared line by line. For a longer text, digests are compared."""
BESIDE_ROW = {"step", "epoch"}
"""Columns that CSVLogger writes in each row in addition to the metrics."""


def parts_of_file(path: Path, clean: Clean) -> Parts:
    """
    Yield the parts of a file. Two files count as equal if they have the same parts with the same contents.

    Raises:
        OSError: the file cannot be read.
    """
    with path.open("rb") as file:
        head = file.read(LOOK_BYTES)
        file.seek(0)
        if head.startswith(SQLITE):
            yield from _readable(lambda: list(_of_database(path, clean)), file)
        elif head.startswith(ZIP):
            yield from _readable(lambda: list(_of_archive(file, clean)), file)
        elif head.startswith(GZIP):
            yield from _readable(lambda: list(_of_bytes(gzip.decompress(file.read()), clean)), file)
        elif head.startswith(PROTO):
            yield from _readable(lambda: list(_of_pickle(file.read(), clean)), file)
        elif head.startswith(NPY) and path.stat().st_size <= TEXT_MAX_BYTES:
            yield from _readable(lambda: list(parts_of_npy(file.read())), file)
        elif b"\0" in head or path.stat().st_size > TEXT_MAX_BYTES:
            yield "", _digest(file)
        elif path.suffix == ".csv":
            yield from _of_table(file.read(), clean)
        elif path.suffix == ".json":
            yield from _of_json(file.read(), clean)
        else:
            yield from _of_text(file.read(), clean)


def digest_of_parts(parts: Parts) -> str:
    total = sha256()
    for place, text in parts:
        total.update(f"{place} {text}\n".encode(errors="surrogatepass"))
    return total.hexdigest()


def _readable(read: Callable[[], list[tuple[str, str]]], file: BinaryIO) -> Parts:
    """
    Yield the parts that `read` returns. If it fails, because the file is not of the type that its first bytes suggest,
    yield the digest of the file's bytes.
    """
    try:
        yield from read()
    except (ValueError, KeyError, EOFError, OSError, RuntimeError, zipfile.BadZipFile, zlib.error, sqlite3.Error):
        file.seek(0)
        yield "", _digest(file)


def _digest(file: BinaryIO) -> str:
    total, size = sha256(), 0
    while piece := file.read(PIECE_BYTES):
        total.update(piece)
        size += len(piece)
    return f"{size} bytes {total.hexdigest()}"


def _of_bytes(content: bytes, clean: Clean) -> Parts:
    if content.startswith(PROTO):
        yield from _of_pickle(content, clean)
    elif b"\0" in content[:LOOK_BYTES]:
        yield "", _digest(io.BytesIO(content))
    else:
        yield from _of_text(content, clean)


# -- text files ------------------------------------------------------------------------------------------------------


def _of_text(content: bytes, clean: Clean) -> Parts:
    """Yield the lines of a text file. If a line is a JSON object or list, yield its fields instead."""
    for number, line in enumerate(content.decode(errors="surrogateescape").splitlines(keepends=True), 1):
        fields = _read_json(line) if line.startswith(("{", "[")) else None
        if fields is not None:
            yield from _of_value(fields, f"line {number}", clean)
        else:
            yield f"line {number}", _line(line, clean)


def _line(text: str, clean: Clean) -> str:
    return repr(without_times(clean(text)))


def _of_json(content: bytes, clean: Clean) -> Parts:
    value = _read_json(content.decode(errors="surrogateescape"))
    yield from _of_text(content, clean) if value is None else _of_value(value, "", clean)


def _read_json(text: str) -> Any:
    """Return a JSON value; None if `text` is not JSON. Numbers are returned as text, so that each digit is compared."""
    try:
        return json.loads(text, parse_float=_Number, parse_int=_Number, parse_constant=_Number)
    except (ValueError, RecursionError):
        return None


class _Number(str):
    """The text of a number, exactly as the file contains it."""


def _of_value(value: Any, path: str, clean: Clean, name: str = "") -> Parts:
    if isinstance(value, dict):
        yield path, f"object of {len(value)}"
        for key, part in value.items():
            yield from _of_value(part, f"{path}[{clean(key)!r}]", clean, key)
    elif isinstance(value, list):
        yield path, f"list of {len(value)}"
        for number, part in enumerate(value):
            yield from _of_value(part, f"{path}[{number}]", clean, name)
    elif isinstance(value, _Number):
        yield path, "<time>" if is_duration(name) else str(value)
    else:
        yield path, _line(value, clean) if isinstance(value, str) else repr(value)


def _of_table(content: bytes, clean: Clean) -> Parts:
    """
    Yield the fields of a table, row by row. Columns and rows that contain only spotrun's own metrics (OURS) are left
    out, because the values of these metrics differ between any two trainings. The metrics are in the table because
    spotrun logs them and CSVLogger writes everything that is logged.

    If the first row contains a number, the row has no column names, and the file is compared as text.
    """
    text = content.decode(errors="surrogateescape")
    rows = list(csv.DictReader(io.StringIO(text, newline="")))
    if not rows or any(None in row or None in row.values() for row in rows) or any(map(_is_number, rows[0])):
        yield from _of_text(content, clean)
        return
    number = 0
    for row in rows:
        kept = {name: value for name, value in row.items() if name not in OURS and value}
        if kept.keys() <= BESIDE_ROW and any(row.get(name) for name in OURS):
            continue  # the row has only spotrun's metrics
        number += 1
        for name in sorted(kept):
            is_time = is_duration(name) and _is_number(kept[name])
            yield f"row {number}, {name}", "<time>" if is_time else _line(kept[name], clean)
    yield "rows", str(number)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


# -- archives and other binary files ---------------------------------------------------------------------------------


def _of_archive(file: BinaryIO, clean: Clean) -> Parts:
    """
    Yield the contents of a zip archive. It may have been written by torch.save, by numpy.savez or by any other program.
    """
    with zipfile.ZipFile(file) as archive:
        names = sorted(name for name in archive.namelist() if not name.endswith("/"))
        objects = next((name for name in names if name.endswith("/data.pkl") or name == "data.pkl"), None)
        if objects is not None:
            yield from _of_torch(archive, objects, clean)
            return
        for name in names:
            with archive.open(name) as member:
                head = member.read(LOOK_BYTES)
            if head.startswith(NPY):
                yield from _of_array(archive.read(name), name)
            elif b"\0" in head:
                with archive.open(name) as member:
                    yield name, _digest(member)  # type: ignore[arg-type]
            else:
                yield from ((f"{name} {place}", text) for place, text in _of_bytes(archive.read(name), clean))


def _of_array(content: bytes, name: str) -> Parts:
    try:
        yield from [(f"{name}{place}", text) for place, text in parts_of_npy(content)]
    except ValueError:
        yield name, _digest(io.BytesIO(content))


def _of_torch(archive: zipfile.ZipFile, objects: str, clean: Clean) -> Parts:
    folder = objects.removesuffix("data.pkl")

    @lru_cache(maxsize=1)
    def storage(name: str) -> bytes:
        return archive.read(f"{folder}data/{name}")

    return parts_of_pickle(archive.read(objects), clean, storage)


def _of_pickle(content: bytes, clean: Clean) -> Parts:
    return parts_of_pickle(content, clean, no_memory)


def _of_database(path: Path, clean: Clean) -> Parts:
    database = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)
    try:
        for number, line in enumerate(database.iterdump(), 1):
            yield f"statement {number}", _line(line, clean)
    finally:
        database.close()


# -- TensorBoard -----------------------------------------------------------------------------------------------------


def parts_of_events(paths: list[Path], clean: Clean) -> Parts:
    """
    Yield each tag's values at each step from all event files of a folder. (A resumed training has several event files.)
    """
    found: dict[str, list[str]] = {}
    for path in sorted(paths):
        for record in _records(path):
            fields = list(_fields(record))
            step = next((value for number, value in fields if number == 2), 0)
            for number, value in fields:
                if number == 5 and isinstance(value, bytes):
                    for tag, text in _values(value):
                        if tag not in OURS and not tag.replace("/", "_").endswith(TIMES):
                            text = "<time>" if is_duration(tag) else text
                            found.setdefault(f"{tag}, step {step!r}", []).append(text)
    for name in sorted(found):
        yield clean(name), digest_of_items(iter(sorted(set(found[name]))))


def _records(path: Path) -> Iterator[bytes]:
    """
    Yield the content of each record (length, checksum, content, checksum). Stop at a record that was not written
    completely.
    """
    with path.open("rb") as file:
        while len(head := file.read(12)) == 12:
            (size,) = struct.unpack("<Q", head[:8])
            content = file.read(size + 4)
            if len(content) < size + 4:
                return
            yield content[:size]


def _values(summary: bytes) -> Iterator[tuple[str, str]]:
    for number, value in _fields(summary):
        if number == 1 and isinstance(value, bytes):
            parts = dict(_fields(value))
            tag = parts.pop(1, b"")
            assert isinstance(tag, bytes)
            name = tag.decode(errors="replace")
            if not name.startswith("_hparams_/"):  # each process writes this again, with its start time
                yield name, repr(sorted(parts.items()))


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield the number and the value of each field of a protocol buffer message."""
    at = 0
    while at < len(message):
        key, at = _number(message, at)
        kind = key & 7
        if kind == 0:
            value, at = _number(message, at)
            yield key >> 3, value
        else:
            size = {1: 8, 5: 4}.get(kind)
            if size is None:
                size, at = _number(message, at)
            yield key >> 3, message[at : at + size]
            at += size


def _number(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(message):
            return value, at
        byte = message[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at
