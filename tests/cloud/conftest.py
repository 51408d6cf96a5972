"""What the tests of this room have in common."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.local_clouds import Bench


@pytest.fixture
def bench(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    """A place for local clouds, whose clock runs 60 times as fast as ours unless a test says how fast."""
    bench = Bench(tmp_path / "a cloud", monkeypatch, scale=getattr(request, "param", 60.0))
    yield bench
    bench.close()
