"""
The names of instances. A name contains the instance's run, launch, capacity type and instance type. Once an instance is
deleted, Google no longer shows its labels: what remains are the operations on it, and they show only its name.
"""

from __future__ import annotations

import re
from typing import NamedTuple
from zlib import crc32

from spotrun.clouds.error_kinds import Unsupported
from spotrun.instance import LaunchRequest
from spotrun.offering import CapacityType

OURS = "spotrun-"
ANOTHER_TYPE = "`spotrun offers --cloud gcp` lists the available types"
NAME_MAX = 63
"""Maximum length of a name, in characters: https://cloud.google.com/compute/docs/naming-resources"""
_PATTERN = re.compile(
    r"spotrun-([a-z0-9]{1,20})-([0-9]{1,9})-([0-9a-f]{8})-([sd])-((?=.{1,40}$)[a-z0-9]+(?:-[a-z0-9]+)*)"
)
_LETTERS = {CapacityType.SPOT: "s", CapacityType.ON_DEMAND: "d"}
_CAPACITY_TYPES = {letter: kind for kind, letter in _LETTERS.items()}


class Name(NamedTuple):
    """
    A name such as `spotrun-UID-LAUNCH-CRC-s-TYPE`. CRC is the token's checksum. `s` stands for spot; on-demand
    instances have `d` in its place.
    """

    run_uid: str
    launch: int
    token_crc: str
    capacity_type: CapacityType
    instance_type: str

    def __str__(self) -> str:
        return f"{self.of_token}{_LETTERS[self.capacity_type]}-{self.instance_type}"

    @property
    def of_token(self) -> str:
        """
        The beginning of the name of every instance that may belong to this launch's token. The rest of the name depends
        on the pool.
        """
        return f"{OURS}{self.run_uid}-{self.launch}-{self.token_crc}-"

    @property
    def token(self) -> str:
        """
        The launch's token, if the checksum in the name shows that it is the default token. Otherwise "", because the
        name does not contain the token itself.
        """
        usual = f"{self.run_uid}-{self.launch}"
        return usual if _crc(usual) == self.token_crc else ""


def name_for(request: LaunchRequest) -> Name:
    """
    Return the name for a request's instance. Raise Unsupported if the instance type cannot be part of a name, because
    of its characters or its length: then Google has no such machine type.
    """
    pool = request.offering.pool
    name = Name(request.run_uid, request.launch, _crc(request.token), pool.capacity_type, pool.instance_type)
    if read_name(str(name)) != name or len(str(name)) > NAME_MAX:
        raise Unsupported(f"Google has no machine type called {pool.instance_type}", hint=ANOTHER_TYPE)
    return name


def read_name(text: str) -> Name | None:
    """Parse a name; return None if it is not one of spotrun's."""
    found = _PATTERN.fullmatch(text)
    if found is None:
        return None
    return Name(found[1], int(found[2]), found[3], _CAPACITY_TYPES[found[4]], found[5])


def _crc(token: str) -> str:
    return f"{crc32(token.encode()):08x}"
