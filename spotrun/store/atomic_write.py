"""Replaces files on this machine in one step."""

from __future__ import annotations

import os
import secrets
from pathlib import Path


def write_atomically(path: Path, data: bytes, mode: int | None = None) -> None:
    """
    Replace the file in one step: a reader sees either the old bytes or the new bytes. The file is not flushed to disk,
    so a crash of the machine may lose it. The file gets the permissions `mode`; None stands for those of any new file.

    The bytes are first written into a temporary file in the same folder. No other user who may write into this folder
    can guess its name and put a link there, and an existing file or link is never opened.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    file = temporary.open("xb")
    try:
        with file:
            file.write(data)
            if mode is not None:
                os.fchmod(file.fileno(), mode)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
