"""
Removes the run's secrets from the events and statuses that an agent writes.

Each event and status passes through `cleaned` just before it is written.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any, TypeVar, cast

import msgspec

Clean = Callable[[str], str]
Written = TypeVar("Written")

NAMES = frozenset(
    (
        *("prefix", "manifest_blake3", "borrows", "key", "blake3", "sha256", "word", "instance_id", "address"),
        *("phase", "kind", "how", "why"),
    )
)
"""
Fields of events in which no secrets are searched for, because they contain only names, addresses, digests, or words
that spotrun chose.
"""


def cleaned(written: Written, clean: Clean) -> Written:
    """Return the event or status with `clean` applied to all its texts, including the keys of mappings."""
    return cast(Written, _cleaned(written, clean))


def _cleaned(value: Any, clean: Clean) -> Any:
    if isinstance(value, str):
        return value if isinstance(value, Enum) else clean(value)
    if isinstance(value, dict):
        return {_cleaned(key, clean): _cleaned(item, clean) for key, item in value.items()}
    if isinstance(value, tuple):
        return tuple(_cleaned(item, clean) for item in value)
    if isinstance(value, msgspec.Struct):
        fields = {name: getattr(value, name) for name in value.__struct_fields__ if name not in NAMES}
        return msgspec.structs.replace(value, **{name: _cleaned(item, clean) for name, item in fields.items()})
    return value
