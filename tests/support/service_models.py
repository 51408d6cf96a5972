"""
The service models of botocore, read once per process.

Each session would read those of its services anew, which takes longer than the calls of most tests.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from botocore.loaders import JSONFileLoader

_load = JSONFileLoader.load_file


@cache
def _read_once(path: str) -> Any:
    return _load(JSONFileLoader(), path)


def read_once() -> None:
    JSONFileLoader.load_file = lambda _, path: _read_once(path)
