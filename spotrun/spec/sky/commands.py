"""
Finds the SkyPilot variables and folders that the commands in `setup` and `run` use. They do not exist outside SkyPilot.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from spotrun.spec.sky.translation import Translation

SET_IN_RUN = frozenset(f"SKYPILOT_{name}" for name in ("NUM_NODES", "NODE_RANK", "NODE_IPS", "NUM_GPUS_PER_NODE"))
"""
SkyPilot's variables that spotrun sets only for a training (spotrun/agent/gang/rendezvous.py). The variable in
SET_EVERYWHERE, in contrast, is set for every command.
"""
SET_EVERYWHERE = "SKYPILOT_TASK_ID"
_VARIABLE = re.compile(r"(?<!\\)\$(?:\{[!#]?(\w+)([^}]*)\}|(\w+))", re.ASCII)
_COMMENT = re.compile(r"^[ \t]*#.*$", re.MULTILINE)
"""
A line that is only a comment. Comments at the end of other lines are not recognised, because that would require parsing
the command as a shell does.
"""
_WITH_DEFAULT = ("-", ":-", "+", ":+")


def look_into_commands(found: Translation) -> None:
    envs, secrets = found.data.get("envs"), found.data.get("secrets")
    given = {*envs} if isinstance(envs, dict) else set()
    hidden = {*map(str, secrets)} if isinstance(secrets, dict | list) else set()
    for name in ("setup", "run"):
        text = found.data.get(name)
        if isinstance(text, str):
            for message, suggestion in _unmet(name, _COMMENT.sub("", text), given, hidden):
                found.refuse((name,), message, suggestion)


def _unmet(command: str, text: str, given: set[str], hidden: set[str]) -> Iterator[tuple[str, str]]:
    """
    Yield a problem, with a suggestion, for each folder or variable that a command needs but spotrun does not provide.
    """
    if "sky_workdir" in text:
        yield "there is no ~/sky_workdir: commands begin in the work folder", "remove the cd, or write a relative path"
    for name in dict.fromkeys(_needed_variables(text)):
        if command == "setup" and name in hidden:
            yield f"{name} is a secret, which only the training has", "move the line that needs it into run"
        if not name.startswith("SKYPILOT_") or name in given or name == SET_EVERYWHERE:
            continue
        if command == "setup":
            yield f"setup does not know its node, so ${name} is empty", "move the line that needs it into run"
        elif name not in SET_IN_RUN:
            yield f"spotrun does not set ${name}", f"write ${{{name}:-…}} with a default value, or set it in envs"


def _needed_variables(text: str) -> Iterator[str]:
    for braced, rest, plain in _VARIABLE.findall(text):
        if not rest.startswith(_WITH_DEFAULT):
            yield braced or plain
