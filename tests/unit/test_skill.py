"""The page for assistants names commands, flags and exit codes that there are."""

from __future__ import annotations

import re
import shlex

import pytest
import typer
import yaml
from typer.core import TyperCommand, TyperGroup

from spotrun import errors
from spotrun.cli.app import app
from tests.support.repository import ROOT

PAGE = (ROOT / "docs/skill/SKILL.md").read_text()
COMMANDS = sorted({found.strip() for found in re.findall(r"(?:\$ |`)spotrun ([^#`\n]+)", PAGE)})


def test_it_says_what_it_is_for_in_the_form_that_assistants_read() -> None:
    _, head, text = PAGE.split("---\n", 2)
    told = yaml.safe_load(head)
    assert told["name"] == "spotrun"
    assert 50 < len(told["description"]) < 1024
    assert len(PAGE) < 6_000, "one page"
    assert text.strip().startswith("# ")


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_that_it_names_is_there_with_its_flags(command: str) -> None:
    words = shlex.split(command)
    group = typer.main.get_command(app)
    while isinstance(group, TyperGroup):
        group = group.commands[words.pop(0)]
    assert isinstance(group, TyperCommand)
    known = {flag for param in group.params for flag in param.opts}
    assert {word for word in words if word.startswith("-")} <= known


def test_it_names_each_exit_code() -> None:
    told = {int(code) for code in re.findall(r"(?:^|[;:] |\n)(\d+) ", PAGE.partition("## Exit codes")[2])}
    codes = {each.exit_code for each in vars(errors).values() if isinstance(each, type) and hasattr(each, "exit_code")}
    assert told == {0, 130} | codes
