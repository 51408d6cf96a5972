"""
Packs what a run's `setup` command has installed into an archive in the run's folder. The run's next instance unpacks
the archive instead of running the command.

    environments/KEY.json              describes the parts of one archive; written once, after all parts
    environments/KEY/LAUNCH/000000     a part: 32 MiB of the archive

KEY identifies the inputs of the set-up (spotrun.agent.machine.environment). An archive with its description is called a
packed set-up. The description is written last, with put-if-absent. So a packed set-up is either complete or missing,
and if two instances pack the same set-up, the archive of the first is used. A packed set-up stays in the run's folder
until `spotrun checkpoints prune` removes it after the run's end.
"""

from __future__ import annotations

import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Annotated

import msgspec

from spotrun.errors import ObjectMissing, SpotrunError
from spotrun.run.bounds import Count, OutOfBounds, decode
from spotrun.run.events import PACK_PART_BYTES as PART_BYTES
from spotrun.store.port import CopiesItself, Store
from spotrun.store.retrying import through_faults

FOLDER = "environments"
SIDE_BY_SIDE = 8
WITHIN_S = 300.0
"""Maximum seconds of system time for which calls to the store are retried after faults."""


class SetupUnusable(SpotrunError):
    """The stored archive is damaged, so the `setup` command has to run."""


class PackedPart(msgspec.Struct, frozen=True):
    size_bytes: Annotated[int, msgspec.Meta(ge=1, le=PART_BYTES)]
    sha256: str


class PackedSetup(msgspec.Struct, frozen=True, kw_only=True):
    """A packed set-up in the store. `launch` is the launch whose instance packed it."""

    launch: Count
    parts: Annotated[tuple[PackedPart, ...], msgspec.Meta(min_length=1)]

    @property
    def size_bytes(self) -> int:
        return sum(part.size_bytes for part in self.parts)


def find(store: Store, key: str) -> PackedSetup | None:
    """
    Return the packed set-up of `key`; None if no such set-up is stored.

    Raises:
        SetupUnusable: its description is damaged.
        StoreError: the store cannot be read.
    """
    try:
        return decode(through_faults(WITHIN_S)(store.get, _description_key(key)), PackedSetup)
    except ObjectMissing:
        return None
    except OutOfBounds as error:
        raise SetupUnusable(f"{_description_key(key)} does not describe a packed set-up") from error


def fetch(store: Store, key: str, packed: PackedSetup, archive: Path) -> None:
    """
    Download the packed set-up to the file `archive`. Each part is compared with its checksum before it is written.

    Raises:
        SetupUnusable: a part is missing, or differs from what was stored.
        StoreError: the store cannot be read.
    """
    with archive.open("wb") as file, ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        for _ in pool.map(partial(_fetch_part, store, key, packed, file.fileno()), range(len(packed.parts))):
            pass


def _fetch_part(store: Store, key: str, packed: PackedSetup, file: int, number: int) -> None:
    name, part = _part_key(key, packed.launch, number), packed.parts[number]
    try:
        data = through_faults(WITHIN_S)(store.get, name)
    except ObjectMissing as error:
        raise SetupUnusable(f"{name} is missing") from error
    if len(data) != part.size_bytes or hashlib.sha256(data).hexdigest() != part.sha256:
        raise SetupUnusable(f"{name} is damaged")
    _write_at(file, data, number * PART_BYTES)


def _write_at(file: int, data: bytes, offset: int) -> None:
    with memoryview(data) as view:
        done = 0
        while done < len(view):
            done += os.pwrite(file, view[done:], offset + done)


def upload(store: Store, key: str, launch: int, archive: Path) -> PackedSetup | None:
    """
    Store an archive as the packed set-up of `key`. If another instance has already stored one, keep that and return
    None.

    Raises:
        StoreError: the archive was not stored.
    """
    offsets = range(0, archive.stat().st_size, PART_BYTES)
    with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        parts = tuple(pool.map(partial(_upload_part, store, key, launch, archive), range(len(offsets))))
    packed = PackedSetup(launch=launch, parts=parts)
    data = msgspec.json.encode(packed)
    if through_faults(WITHIN_S)(lambda: store.put_if_absent(_description_key(key), data)) or find(store, key) == packed:
        return packed
    for number in range(len(parts)):
        store.delete(_part_key(key, launch, number))
    return None


def _upload_part(store: Store, key: str, launch: int, archive: Path, number: int) -> PackedPart:
    with archive.open("rb") as file:
        data = os.pread(file.fileno(), PART_BYTES, number * PART_BYTES)
    through_faults(WITHIN_S)(lambda: store.put(_part_key(key, launch, number), data))
    return PackedPart(len(data), hashlib.sha256(data).hexdigest())


def discard(store: Store, key: str) -> None:
    """Remove a damaged packed set-up, so that the next instance can store a complete one."""
    store.delete(_description_key(key))


def copy_all(source: Store, target: Store) -> int:
    """
    Copy each complete packed set-up from another run's folder. Return how many were copied.

    Raises:
        StoreError: a packed set-up could not be copied.
    """
    copied = 0
    for described in [each.key for each in source.list(f"{FOLDER}/") if each.key.endswith(".json")]:
        key = described.removeprefix(f"{FOLDER}/").removesuffix(".json")
        with suppress(SetupUnusable, ObjectMissing):
            if (packed := find(source, key)) is None or find(target, key) is not None:
                continue
            for number in range(len(packed.parts)):
                name = _part_key(key, packed.launch, number)
                if not (isinstance(target, CopiesItself) and target.copy_from(source, name)):
                    target.put(name, source.get(name))
            copied += target.put_if_absent(described, msgspec.json.encode(packed))
    return copied


def _description_key(key: str) -> str:
    return f"{FOLDER}/{key}.json"


def _part_key(key: str, launch: int, number: int) -> str:
    return f"{FOLDER}/{key}/{launch}/{number:06d}"
