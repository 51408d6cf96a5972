"""Fixtures that several files share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.local_runs import Site


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """A place to launch runs from; whatever is left of them goes with the test."""
    place = Site(tmp_path, monkeypatch)
    yield place
    place.close()
