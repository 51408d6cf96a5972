"""Commands called in this process, as the console script calls them. That takes milliseconds."""

from __future__ import annotations

import contextlib
import io
import json
import sys
from pathlib import Path
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


def call(patch: pytest.MonkeyPatch, *words: str) -> Said:
    """A command, for what is no test: a battery has no `capsys`."""
    out, err = io.StringIO(), io.StringIO()
    patch.setattr(sys, "argv", ["spotrun", *words])
    patch.setattr(sys, "stdin", io.StringIO())
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            main()
    except SystemExit as end:
        return Said(end.code if isinstance(end.code, int) else 1, out.getvalue(), err.getvalue())
    raise AssertionError("the command returned")


class Spotrun:
    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch, self._capsys = monkeypatch, capsys

    def __call__(self, *words: object) -> Said:
        self._monkeypatch.setattr(sys, "argv", ["spotrun", *map(str, words)])
        with pytest.raises(SystemExit) as end:
            main()
        assert isinstance(end.value.code, int)
        return Said(end.value.code, *self._capsys.readouterr())

    def call(self, *words: object, code: int = 0) -> str:
        """As a sandbox calls it, but here: returns all that it printed."""
        said = self(*words)
        assert said.code == code, f"spotrun {words} gave {said.code}:\n{said.out}{said.err}"
        return said.out + said.err

    def call_json(self, *words: object) -> Any:
        return json.loads(self.call(*words, "--json"))


@pytest.fixture
def spotrun(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Spotrun:
    """Calls a command in this process. Rooms whose tests do so import it."""
    return Spotrun(monkeypatch, capsys)


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store that is there and empty; the folder of the test is the current one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SPOTRUN_LOCAL_CLOUD", str(tmp_path / "cloud"))
    monkeypatch.setenv("SPOTRUN_STORE", str(tmp_path / "runs"))
    (tmp_path / "runs").mkdir()
    return tmp_path / "runs"
