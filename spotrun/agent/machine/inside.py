"""
Opens a shell in an instance's container, with the training's environment variables.

    sudo FOLDER/enter                  FOLDER is the instance's folder; `enter`, which the agent wrote, calls this
    sudo FOLDER/enter COMMAND …        runs COMMAND instead of a shell

The shell is not part of the training, and does not connect to the agent. It stays open until the instance ends, even
if the trainer ends earlier.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, NoReturn

from spotrun import proc
from spotrun.agent.machine import process_groups
from spotrun.container import ENTRANCE
from spotrun.container.engine import FILE, MARK, entering, remembered, variables_of
from spotrun.errors import NotInstalled, SpotrunError
from spotrun.proc import ProcessMark
from spotrun.run.bounds import OutOfBounds, decode
from spotrun.trainer_link import AGENT

TRAINER = "trainer.json"
"""
Name of the file in the instance's folder that identifies the trainer's process (Assignment.trainer_mark, and
spotrun/agent/machine/process_groups.py).
"""
SHELL = ("/bin/sh", "-c", "if command -v bash >/dev/null; then exec bash; else exec sh; fi")
NOT_ITS_OWN = (AGENT, process_groups.TRAINER_VARIABLE, MARK)
"""
Variables that the shell does not inherit from the training. They mark a process as part of the training, so the agent
would end the shell together with the training.
"""
OF_THE_TERMINAL = ("TERM", "COLORTERM", "LANG")


class Entry(NamedTuple):
    command: list[str]
    environment: dict[str, str]


def write_entrance(folder: Path) -> None:
    """
    Write the script `enter` for users. When called, the script reads the training's secrets; it does not contain them.
    """
    path = folder / ENTRANCE
    python = shlex.join([sys.executable, "-P", "-m", __name__, str(folder)])
    path.write_text(f'#!/bin/sh\nexec {python} "$@"\n')
    path.chmod(0o755)


def entry(folder: Path, command: Sequence[str], outside: Mapping[str, str]) -> Entry:
    """
    Return the command line and the environment with which the caller can run `command` in an instance's container.
    `folder` is the instance's folder, and `outside` is the caller's environment.

    Raises:
        NotInstalled: the caller is not root.
        SpotrunError: the instance has no running container.
    """
    if os.geteuid() != 0:
        raise NotInstalled("only root may enter a container", hint=f"sudo {folder / ENTRANCE}")
    left = remembered(folder / FILE)
    holders = [] if left is None else proc.started_with(MARK, left.name)
    if not holders:
        raise SpotrunError("no container of this instance is running", hint="wait until its image is pulled")
    trainer = _trainer(folder / TRAINER)
    environment = variables_of(holders[0] if trainer is None else trainer)
    environment = {name: value for name, value in environment.items() if name not in NOT_ITS_OWN}
    environment |= {name: outside[name] for name in OF_THE_TERMINAL if name in outside}
    work = folder / "work"
    return Entry(entering(holders[0], command, work if work.is_dir() else folder), environment)


def _trainer(remembered_at: Path) -> int | None:
    """Return the process id of the trainer; None if it is not running."""
    try:
        mark = decode(remembered_at.read_bytes(), ProcessMark)
    except (OSError, OutOfBounds):
        return None
    return mark.pid if process_groups.mark(mark.pid) == mark else None


def main(folder: str, *command: str) -> NoReturn:
    """Replace this process with the command. If that fails, print the reason and exit."""
    try:
        found = entry(Path(folder), command or SHELL, os.environ)
    except SpotrunError as error:
        print(f"error: {error.message}\n  try: {error.hint}", file=sys.stderr)
        sys.exit(error.exit_code)
    os.execve(found.command[0], found.command, found.environment)  # noqa: S606  each word is one


if __name__ == "__main__":
    main(*sys.argv[1:])
