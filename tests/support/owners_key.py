"""Keys of runs that need no store."""

from __future__ import annotations

import hashlib

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey


class OwnersKey:
    """Signs entries for the owner of a run. The same seed gives the same key."""

    def __init__(self, seed: int = 0) -> None:
        self._private = Ed25519PrivateKey.from_private_bytes(hashlib.sha256(str(seed).encode()).digest())
        self.public = self._private.public_key().public_bytes_raw().hex()

    def __call__(self, body: bytes) -> str:
        return self._private.sign(body).hex()
