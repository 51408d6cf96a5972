"""runs/program.py: a command that is printed can be typed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from spotrun.runs.program import program


def test_shell_without_spotrun_in_its_path_gets_the_full_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scripts = tmp_path / "a house" / ".venv" / "bin"
    scripts.mkdir(parents=True)
    monkeypatch.setattr(sys, "executable", str(scripts / "python"))
    monkeypatch.setenv("PATH", str(tmp_path / "elsewhere"))
    monkeypatch.chdir(scripts.parents[1])
    assert program() == "spotrun", "as it was started in another way"
    (scripts / "spotrun").touch(mode=0o755)
    assert program() == ".venv/bin/spotrun"
    monkeypatch.chdir("/")
    assert program() == f"'{scripts / 'spotrun'}'", "a background runner works there, and its log is read elsewhere"
    monkeypatch.setenv("PATH", str(scripts))
    assert program() == "spotrun"
