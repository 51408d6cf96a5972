"""
Stores the Lightning checkpoint from which a run starts, as one object with the checkpoint's digest in its name.
"""

from __future__ import annotations

import hashlib
import mmap
from pathlib import Path
from typing import TYPE_CHECKING

from spotrun.errors import SpotrunError

if TYPE_CHECKING:
    from spotrun.store.port import Store  # trainers import this module, so it needs only the standard library

VARIABLE = "SPOTRUN_START"
"""
Variable that tells a trainer the path of the start file. spotrun's callback uses the file only if the training starts
from scratch.
"""
NAME = "start.ckpt"
PIECE_BYTES = 16 << 20


def key_of(sha256: str) -> str:
    return f"start/{sha256}.ckpt"


def digest_of(path: Path) -> str:
    """Return a file's SHA-256, as `upload` does."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def upload(store: Store, path: Path) -> str:
    """Store a file under its SHA-256, and return the digest."""
    with path.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        with mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as data, memoryview(data) as view:
            store.put(key_of(sha256), view)
    return sha256


def fetch(store: Store, sha256: str, folder: Path) -> None:
    """
    Write the stored file to `folder` as `start.ckpt`: completely, or not at all.

    Raises:
        SpotrunError: the object's content does not match the digest in its name.
    """
    temporary = folder / f"{NAME}.part"
    digest = hashlib.sha256()
    temporary.unlink(missing_ok=True)
    with temporary.open("xb") as file:
        while piece := store.get(key_of(sha256), file.tell(), PIECE_BYTES):
            digest.update(piece)
            file.write(piece)
    if digest.hexdigest() != sha256:
        raise SpotrunError(f"the starting checkpoint {sha256[:12]} is damaged in the store", hint="launch a new run")
    temporary.replace(folder / NAME)


def environment(folder: Path) -> dict[str, str]:
    """Return the environment variable with the path of the start file in `folder`; {} if there is no such file."""
    path = folder / NAME
    return {VARIABLE: str(path)} if path.exists() else {}
