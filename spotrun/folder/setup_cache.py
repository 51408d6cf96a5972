"""
Packs what a run's `setup` command has installed into an archive in the run's folder. The run's next instance unpacks
the archive instead of running the command.

    environments/KEY.json              describes the parts of one archive; written once, after all parts
    environments/KEY/LAUNCH/000000     a part: 32 MiB of the archive

KEY identifies the inputs of the set-up (spotrun.agent.machine.environment). An archive with its description is called a
packed set-up. The description is written last, with put-if-absent. So a packed set-up is either complete or missing,
and if two instances pack the same set-up, the archive of the first is used. A packed set-up stays in the run's folder
until `spotrun checkpoints prune` removes it after the run's end.

The training can write these objects too. So an instance puts the digest of what it packs into the ledger before its
training begins, and only a packed set-up with such a digest is used outside of the run (protocol 31).
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Annotated

import msgspec

from spotrun.errors import ObjectMissing, SpotrunError
from spotrun.run.bounds import Count, OutOfBounds, decode
from spotrun.run.events import PACK_PART_BYTES as PART_BYTES
from spotrun.run.events import PackDigest
from spotrun.store.port import CopiesItself, Store
from spotrun.store.retrying import through_faults

FOLDER = "environments"
DESCRIPTION_MAX_BYTES = 1 << 20
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

    def digest(self, key: str) -> PackDigest:
        return PackDigest(key, hashlib.sha256(msgspec.json.encode(self)).hexdigest())


def find(store: Store, key: str) -> PackedSetup | None:
    """
    Return the packed set-up of `key`; None if no such set-up is stored.

    Raises:
        SetupUnusable: its description is damaged.
        StoreError: the store cannot be read.
    """
    try:
        return decode(
            through_faults(WITHIN_S)(lambda: store.get(_description_key(key), 0, DESCRIPTION_MAX_BYTES)), PackedSetup
        )
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
        data = through_faults(WITHIN_S)(lambda: store.get(name, 0, part.size_bytes + 1))
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


def describe(launch: int, archive: Path) -> PackedSetup:
    """Return the description of an archive that an instance of `launch` will upload."""
    with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        parts = pool.map(partial(_describe_part, archive), range(0, archive.stat().st_size, PART_BYTES))
        return PackedSetup(launch=launch, parts=tuple(parts))


def _describe_part(archive: Path, offset: int) -> PackedPart:
    data = _read_at(archive, offset)
    return PackedPart(len(data), hashlib.sha256(data).hexdigest())


def _read_at(archive: Path, offset: int) -> bytes:
    with archive.open("rb") as file:
        return os.pread(file.fileno(), PART_BYTES, offset)


def upload(store: Store, key: str, packed: PackedSetup, archive: Path) -> bool:
    """
    Store an archive, which `packed` describes, as the packed set-up of `key`. If another instance has already stored
    one, keep that and return False.

    Raises:
        StoreError: the archive was not stored.
    """
    with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        for _ in pool.map(partial(_upload_part, store, key, packed, archive), range(len(packed.parts))):
            pass
    data = msgspec.json.encode(packed)
    if through_faults(WITHIN_S)(lambda: store.put_if_absent(_description_key(key), data)) or find(store, key) == packed:
        return True
    for number in range(len(packed.parts)):
        store.delete(_part_key(key, packed.launch, number))
    return False


def _upload_part(store: Store, key: str, packed: PackedSetup, archive: Path, number: int) -> None:
    data = _read_at(archive, number * PART_BYTES)
    through_faults(WITHIN_S)(lambda: store.put(_part_key(key, packed.launch, number), data))


def discard(store: Store, key: str) -> None:
    """Remove a damaged packed set-up, so that the next instance can store a complete one."""
    store.delete(_description_key(key))


def stored_of(store: Store, packs: Iterable[PackDigest]) -> Iterator[tuple[PackDigest, PackedSetup]]:
    """
    Yield each packed set-up of `packs` that is stored with the right description, and its description.

    Raises:
        StoreError: the store cannot be read.
    """
    for pack in dict.fromkeys(packs):
        with suppress(SetupUnusable):
            packed = find(store, pack.key)
            if packed is not None and packed.digest(pack.key) == pack:
                yield pack, packed


def copy(source: Store, target: Store, packs: Iterable[PackDigest]) -> int:
    """
    Copy the packed set-ups of `packs` from another run's folder, unless one is damaged there. Return how many were
    copied. The parts may have been exchanged: the instance that fetches them compares them with the description.

    Raises:
        StoreError: a packed set-up could not be copied.
    """
    copied = 0
    for pack, packed in stored_of(source, packs):
        with suppress(ObjectMissing):
            for number, part in enumerate(packed.parts):
                name = _part_key(pack.key, packed.launch, number)
                if not (isinstance(target, CopiesItself) and target.copy_from(source, name)):
                    target.put(name, source.get(name, 0, part.size_bytes + 1))
            copied += target.put_if_absent(_description_key(pack.key), msgspec.json.encode(packed))
    return copied


def _description_key(key: str) -> str:
    return f"{FOLDER}/{key}.json"


def _part_key(key: str, launch: int, number: int) -> str:
    return f"{FOLDER}/{key}/{launch}/{number:06d}"
