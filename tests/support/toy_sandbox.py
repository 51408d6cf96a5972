"""A sandbox whose spotruns know the third cloud of tests.support.toy_cloud."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support import toy_cloud
from tests.support.sandbox import Sandbox


@contextmanager
def toy_sandbox(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sandbox]:
    """Nothing of it is left running."""
    monkeypatch.setenv("PYTHONPATH", toy_cloud.install(folder / "site"))
    monkeypatch.setenv(toy_cloud.FOLDER_VARIABLE, str(folder / "box"))
    monkeypatch.syspath_prepend(folder / "site")
    sandbox = Sandbox(folder, monkeypatch)
    try:
        yield sandbox
    finally:
        sandbox.close()
