"""
Reads the lists of a script's stored files (spotrun/folder/stored_files.py). Finds the stored files that no checkpoint
needs any more.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from spotrun.checkpoint.restore import RETRY_FOR_S, read_verified
from spotrun.errors import CheckpointDamaged
from spotrun.folder.stored_files import FOLDER, Listing
from spotrun.run.bounds import OutOfBounds, decode
from spotrun.run.state import Commit, Outputs, RunState
from spotrun.store.port import Store


def read_listing(store: Store, outputs: Outputs, *, retry_for_s: float = RETRY_FOR_S) -> Listing:
    """
    Read a list of stored files. `outputs` is the ledger's entry that names the list.

    Raises:
        CheckpointDamaged: the list is missing, or differs from its digest in the ledger.
        StoreUnavailable: the store did not answer within `retry_for_s` seconds.
    """
    return listing_at(store, outputs.event.key, outputs.event.blake3, retry_for_s)


def listing_at(store: Store, key: str, digest: str, retry_for_s: float) -> Listing:
    data = bytearray()
    if not key.startswith(FOLDER):
        raise CheckpointDamaged(f"the ledger names {key} as a list of files, but such names begin with {FOLDER}")

    def take(at: int, piece: memoryview) -> None:
        data[at:] = piece

    read_verified(store, key, digest, None, take, retry_for_s)
    try:
        listing = decode(data, Listing)
    except OutOfBounds as error:
        raise CheckpointDamaged(f"{key} cannot be read: {error}") from error
    if (flaw := listing.flaw()) is not None:
        raise CheckpointDamaged(f"{key}: {flaw}")
    return listing


def verify_files(store: Store, commit: Commit) -> None:
    """
    Read all files of a checkpoint, one piece at a time, and compare each piece with its digest. Raises the same errors
    as `read_listing`.
    """
    if commit.outputs is None:
        return
    pieces = {piece.key: piece for file in read_listing(store, commit.outputs).files_of_all for piece in file.pieces}
    for key, piece in pieces.items():
        read_verified(store, key, piece.blake3, piece.size_bytes, lambda at, data: None, RETRY_FOR_S)


# -- which stored files can be deleted ------------------------------------------------------------------------------


def kept(state: RunState, retiring: Collection[int] = ()) -> list[Outputs]:
    """
    Return the lists of files that are still needed: the newest list, and the list of each kept checkpoint. If no list
    was stored with a checkpoint, its list is the last one stored before the next checkpoint. Checkpoints in `retiring`
    are about to be retired, and do not count as kept.

    All other lists can be deleted, because later entries of the ledger never name them.
    """
    held = [each.number for each in state.commits if each.retired_at is None and each.number not in retiring]
    found = [state.newest_outputs(), *(state.outputs_of(number) for number in held)]
    return list({outputs.number: outputs for outputs in found if outputs is not None}.values())


def named_keys(lists: Iterable[tuple[Outputs, Listing]]) -> set[str]:
    """Return the keys of these lists of files, and of all objects that the lists name."""
    return {key for outputs, listing in lists for key in (outputs.event.key, *listing.keys())}


def garbage(state: RunState, store: Store, keys: Collection[str], retiring: Collection[int] = ()) -> list[str]:
    """
    Return the keys whose objects can be deleted, because no list that `kept` returns names them. All `keys` must be
    below `outputs/`.

    Return no keys if the run has not ended, or if a kept list cannot be read, because it may name any object.
    """
    if state.terminal is None or not keys:
        return []
    try:
        named = named_keys([(outputs, read_listing(store, outputs)) for outputs in kept(state, retiring)])
    except CheckpointDamaged:
        return []
    return sorted(key for key in keys if key not in named)
