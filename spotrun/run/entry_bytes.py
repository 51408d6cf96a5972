"""Encodes an entry as the object that is stored: JSON, with a checksum and, in most runs, a signature."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import msgspec

from spotrun.errors import LedgerDamaged
from spotrun.run.bounds import OutOfBounds, decode
from spotrun.run.events import Entry

Sign = Callable[[bytes], str]
"""A function that signs the JSON of an entry, and returns the signature in hex."""

_encoder = msgspec.json.Encoder(decimal_format="string")
_SEAL, _AFTER_SEAL = b'{"sha256":"', b'",'
_SEAL_SIZE = len(_SEAL) + 64 + len(_AFTER_SEAL)


def encode_entry(entry: Entry, sign: Sign | None = None) -> bytes:
    """
    Encode an entry as the JSON object to store. Its first field is the sha256 of everything after this field: the
    signature (if `sign` is given), then the entry's own fields.

    Without the sha256, a flipped bit could change a price or a step unnoticed. It could also turn a valid entry into a
    void one. Processes that had read the entry before the damage would then count it, and processes that read it later
    would not.
    """
    body = entry_json(entry)
    return seal(body if sign is None else signed(body, sign(body)))


def seal(body: bytes) -> bytes:
    """Insert the sha256 of a JSON object as its first field."""
    assert body.startswith(b"{")
    return _seal_of(body) + body[1:]


def _seal_of(body: bytes) -> bytes:
    return _SEAL + hashlib.sha256(body).hexdigest().encode() + _AFTER_SEAL


_SIGNATURE = b'{"signature":"'
_SIGNATURE_SIZE = len(_SIGNATURE) + 128 + len(_AFTER_SEAL)


def signed(body: bytes, signature: str) -> bytes:
    """Insert a JSON object's Ed25519 signature, in hex, as its first field."""
    assert body.startswith(b"{")
    return _SIGNATURE + signature.encode() + _AFTER_SEAL + body[1:]


def parted(data: bytes) -> tuple[str, bytes]:
    """
    Split the stored object of an entry into its signature and the JSON that was signed. The signature is "" if there is
    none.
    """
    body = unsealed(data) or b""
    if not body.startswith(_SIGNATURE):
        return "", body
    signature = body[len(_SIGNATURE) : _SIGNATURE_SIZE - len(_AFTER_SEAL)]
    return signature.decode("latin-1"), b"{" + body[_SIGNATURE_SIZE:]


def entry_json(entry: Entry) -> bytes:
    """Encode an entry as JSON without the checksum, for people and their programs."""
    return _encoder.encode(entry)


def decode_entry(data: bytes) -> Entry | None:
    """
    Decode the stored object of an entry. Return None if its checksum is right but its content is not an entry: such an
    entry is void.

    Raises:
        LedgerDamaged: the bytes do not match their checksum. No writer stores such an object, so the entry was damaged
            after it was stored. A reader is not allowed to skip it, because other programs may have read it before it
            was damaged.
    """
    if not is_whole(data):
        raise LedgerDamaged("an entry does not match its checksum", hint=RESTORE)
    try:
        return decode(parted(data)[1], Entry)
    except OutOfBounds:
        return None


RESTORE = "restore the entry from a backup or an earlier object version; until then, no program appends to it"


def is_whole(data: bytes) -> bool:
    """Return True if a stored object matches the checksum that it contains, even if the object is not an entry."""
    return unsealed(data) is not None


def unsealed(data: bytes) -> bytes | None:
    """Return the JSON object without the checksum that `seal` added; None if `data` does not match the checksum."""
    body = b"{" + data[_SEAL_SIZE:]
    return body if data.startswith(_seal_of(body)) else None
