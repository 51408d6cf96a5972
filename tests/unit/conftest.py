"""What the tests that call commands in their own process have in common."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.called_spotrun import spotrun as spotrun


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store that is there and empty; the folder of the test is the current one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SPOTRUN_LOCAL_CLOUD", str(tmp_path / "cloud"))
    monkeypatch.setenv("SPOTRUN_STORE", str(tmp_path / "runs"))
    (tmp_path / "runs").mkdir()
    return tmp_path / "runs"
