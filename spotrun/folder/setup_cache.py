"""
What a run's `setup` has made, kept in the run's folder so that its next instance need not make it again.

    environments/KEY.json              the parts of one archive, created once and after all of them
    environments/KEY/LAUNCH/000000     32 MiB of the archive each

KEY names what went into the set-up (spotrun.agent.environment). The description comes last and only if absent: a pack
is there whole or not at all, and of two instances that made the same one counts. Packs live as long as the run's
folder, unless `spotrun checkpoints prune` takes them from a run that has ended.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Annotated

import msgspec

from spotrun.errors import ObjectMissing, SpotrunError
from spotrun.run.events import PACK_PART_BYTES as PART_BYTES
from spotrun.store.port import Store
from spotrun.store.retrying import through_faults

FOLDER = "environments"
SIDE_BY_SIDE = 8
WITHIN_S = 300.0
"""System time that a passing fault of the store may last."""


class PackUnusable(SpotrunError):
    """What is stored is not what was packed: set up again."""


class Part(msgspec.Struct, frozen=True):
    size_bytes: Annotated[int, msgspec.Meta(ge=1, le=PART_BYTES)]
    sha256: str


class Pack(msgspec.Struct, frozen=True, kw_only=True):
    """One archive in the store. `launch` is the one whose instance made it."""

    launch: Annotated[int, msgspec.Meta(ge=0)]
    parts: Annotated[tuple[Part, ...], msgspec.Meta(min_length=1)]

    @property
    def size_bytes(self) -> int:
        return sum(part.size_bytes for part in self.parts)


def find(store: Store, key: str) -> Pack | None:
    """
    The pack of that key, if there is one.

    Raises:
        PackUnusable: its description is damaged.
        StoreError
    """
    try:
        return msgspec.json.decode(through_faults(WITHIN_S)(store.get, _description_key(key)), type=Pack)
    except ObjectMissing:
        return None
    except msgspec.MsgspecError as error:
        raise PackUnusable(f"{_description_key(key)} does not describe a pack") from error


def fetch(store: Store, key: str, pack: Pack, archive: Path) -> None:
    """
    Write the archive, every part of which was compared with its checksum.

    Raises:
        PackUnusable: a part is missing or not what was stored.
        StoreError
    """
    with archive.open("wb") as file, ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        for _ in pool.map(partial(_fetch_part, store, key, pack, file.fileno()), range(len(pack.parts))):
            pass


def _fetch_part(store: Store, key: str, pack: Pack, file: int, number: int) -> None:
    name, part = _part_key(key, pack.launch, number), pack.parts[number]
    try:
        data = through_faults(WITHIN_S)(store.get, name)
    except ObjectMissing as error:
        raise PackUnusable(f"{name} is missing") from error
    if len(data) != part.size_bytes or hashlib.sha256(data).hexdigest() != part.sha256:
        raise PackUnusable(f"{name} is damaged")
    _write_at(file, data, number * PART_BYTES)


def _write_at(file: int, data: bytes, offset: int) -> None:
    with memoryview(data) as view:
        done = 0
        while done < len(view):
            done += os.pwrite(file, view[done:], offset + done)


def upload(store: Store, key: str, launch: int, archive: Path) -> Pack | None:
    """
    Store an archive as the pack of `key`; None where another instance was first, and its pack stays.

    Raises:
        StoreError
    """
    pieces = list(_pieces(archive.stat().st_size))
    with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        parts = tuple(pool.map(partial(_upload_part, store, key, launch, archive), range(len(pieces))))
    pack = Pack(launch=launch, parts=parts)
    data = msgspec.json.encode(pack)
    if through_faults(WITHIN_S)(lambda: store.put_if_absent(_description_key(key), data)) or find(store, key) == pack:
        return pack
    for number in range(len(parts)):
        store.delete(_part_key(key, launch, number))
    return None


def _upload_part(store: Store, key: str, launch: int, archive: Path, number: int) -> Part:
    with archive.open("rb") as file:
        data = os.pread(file.fileno(), PART_BYTES, number * PART_BYTES)
    through_faults(WITHIN_S)(lambda: store.put(_part_key(key, launch, number), data))
    return Part(len(data), hashlib.sha256(data).hexdigest())


def _pieces(size_bytes: int) -> Iterator[int]:
    yield from range(0, size_bytes, PART_BYTES)


def discard(store: Store, key: str) -> None:
    """Take a pack away that nobody can use, so that the next instance may store a whole one."""
    store.delete(_description_key(key))


def _description_key(key: str) -> str:
    return f"{FOLDER}/{key}.json"


def _part_key(key: str, launch: int, number: int) -> str:
    return f"{FOLDER}/{key}/{launch}/{number:06d}"
