"""Commands called in this process, as the console script calls them. That takes milliseconds."""

from __future__ import annotations

import json
import sys
from typing import Any, NamedTuple

import pytest

from spotrun.cli.app import main


class Said(NamedTuple):
    """How a command ended, and what it printed."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


class Spotrun:
    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch, self._capsys = monkeypatch, capsys

    def __call__(self, *words: object) -> Said:
        self._monkeypatch.setattr(sys, "argv", ["spotrun", *map(str, words)])
        with pytest.raises(SystemExit) as end:
            main()
        assert isinstance(end.value.code, int)
        return Said(end.value.code, *self._capsys.readouterr())


@pytest.fixture
def spotrun(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Spotrun:
    """Calls a command in this process. Rooms whose tests do so import it."""
    return Spotrun(monkeypatch, capsys)
