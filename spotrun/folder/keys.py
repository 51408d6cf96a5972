"""
Stores the key with which a run's owner signs entries of the ledger (protocol 31).

The public half of the key is in entry 0. The private half is an object in the store, outside the run's folder. So every
runner can read the private half, on any machine. Instances cannot read it, because an instance's role gives access only
to the folder of its run.

The keys are Ed25519 keys, as in RFC 8032.

    keys/UID-PUBLIC     the private half; its name contains the public half in hex
    keys/UID            the same, for a run that an earlier version of spotrun created

If two processes create the same run at the same time, each of them makes a key. The two objects have different names,
because a name contains the key's public half. So neither process overwrites the other's key, and each signs only with
the key that it made.

This module also has `Signer`, for a key that is not in any store. A night's function in the cloud has such a key: it
signs the records that it writes, and later recognizes its own records by the signature.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import cache, cached_property, partial
from typing import TYPE_CHECKING

from spotrun.errors import ObjectMissing, SpotrunError
from spotrun.store.key_readers import KEYS
from spotrun.store.port import Store
from spotrun.store.retrying import persist

if TYPE_CHECKING:  # this import takes longer than most commands
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

FOLDER = KEYS
KEY_SIZE = 64
"""Number of hex digits in a stored key."""


class KeyMissing(SpotrunError):
    """Raised if this process can read the run, but lacks the key with which the run's owner signs."""


def key_of(run_uid: str, public_key: str = "") -> str:
    """Return the name of a run's key in the store. Without `public_key`, return the name that earlier versions used."""
    return f"{FOLDER}/{run_uid}" + (f"-{public_key}" if public_key else "")


def make(runs: Store, run_uid: str) -> str:
    """
    Make a key for a new run, and store it in the store of runs.

    Returns:
        The public half.

    Raises:
        StoreError: the key could not be stored.
    """
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    private = Ed25519PrivateKey.generate()
    public_key = private.public_key().public_bytes_raw().hex()
    made = private.private_bytes_raw().hex().encode()
    persist(lambda: runs.put_if_absent(key_of(run_uid, public_key), made))  # a retry finds the same key
    return public_key


def remove(runs: Store, run_uid: str) -> None:
    """
    Delete all keys of a run: the owner's key, and the keys of other processes that tried to create the same run at the
    same time and failed.
    """
    old = key_of(run_uid)
    for stored in persist(lambda: runs.list(old)):
        if stored.key == old or stored.key.startswith(f"{old}-"):
            persist(partial(runs.delete, stored.key))


class Signer:
    """
    Signs a program's records, so that the program can later recognize them as its own. `key` is an Ed25519 private key
    in hex.
    """

    def __init__(self, key: str) -> None:
        self._key = key

    def sign(self, body: bytes) -> str:
        """Return the signature of these bytes, in hex."""
        return self._private.sign(body).hex()

    def has_signed(self, signature: str, body: bytes) -> bool:
        return is_signed(self._public, signature, body)

    @cached_property
    def _private(self) -> Ed25519PrivateKey:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        return Ed25519PrivateKey.from_private_bytes(bytes.fromhex(self._key))

    @cached_property
    def _public(self) -> str:
        return self._private.public_key().public_bytes_raw().hex()


class OwnersKey:
    """
    Signs for the owner of a run. The key is read only when a signature is needed, because most commands only read the
    run.
    """

    def __init__(self, runs: Callable[[], Store], run_uid: str, public_key: str) -> None:
        self._runs = runs
        self._uid = run_uid
        self._public_key = public_key
        self._signs: Callable[[bytes], bytes] | None = None

    def __call__(self, body: bytes) -> str:
        """
        Return the signature of an entry's JSON, in hex.

        Raises:
            KeyMissing: the key is missing, or belongs to another run.
            StoreError: the key cannot be read.
        """
        if self._signs is None:
            self._signs = self._read()
        return self._signs(body).hex()

    sign = __call__

    def has_signed(self, signature: str, body: bytes) -> bool:
        """Return True if the owner has signed `body`. This needs only the public half of the key."""
        return is_signed(self._public_key, signature, body)

    def read_again(self) -> None:
        """
        Read the key from the store, even if this process has read it before, to check that it still exists.

        Raises:
            KeyMissing: the key no longer exists, or belongs to another run.
            StoreError: the key cannot be read.
        """
        self._signs = self._read()

    def _read(self) -> Callable[[bytes], bytes]:
        store, missing = self._runs(), True
        for key in (key_of(self._uid, self._public_key), key_of(self._uid)):
            with suppress(ObjectMissing):
                private = _private(persist(partial(store.get, key, 0, KEY_SIZE + 1)))
                if private is not None and private.public_key().public_bytes_raw().hex() == self._public_key:
                    return private.sign
                missing = False
        where = f"{store.uri}/{key_of(self._uid, self._public_key)}"
        if missing:
            raise KeyMissing(
                f"{where} is missing, so no process can write as the owner of this run",
                hint="restore the key from a backup; a copy of a run has none, and can only be read",
            )
        raise KeyMissing(f"{where} is not the key of this run", hint="restore the key from a backup")


def _private(data: bytes) -> Ed25519PrivateKey | None:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    try:
        return Ed25519PrivateKey.from_private_bytes(bytes.fromhex(data.decode("ascii")))
    except ValueError:
        return None


def is_signed(public_key: str, signature: str, body: bytes) -> bool:
    """Return True if the owner of `public_key` has signed `body`."""
    from cryptography.exceptions import InvalidSignature

    try:
        _public(public_key).verify(bytes.fromhex(signature), body)
    except (InvalidSignature, ValueError):
        return False
    return True


@cache
def _public(public_key: str) -> Ed25519PublicKey:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    return Ed25519PublicKey.from_public_bytes(bytes.fromhex(public_key))
