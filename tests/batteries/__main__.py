"""
Lists the batteries, or runs one and records its result in batteries.toml.

    make battery                what each proves, how long it takes, and its last result
    make battery NAME=chaos     runs it (ARGS='…' are its arguments)
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
import tomllib
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn

from tests.support.repository import ROOT

TABLE = Path(__file__).with_name("batteries.toml")


def main(arguments: list[str]) -> int:
    """Run the battery that the first argument names, with the other arguments; list all batteries without one."""
    batteries = tomllib.loads(TABLE.read_text())
    if not arguments:
        _list(batteries)
        return 0
    name, *rest = arguments
    if name not in batteries:
        _refuse(f"there is no battery {name!r}", f"one of {', '.join(batteries)}")
    began_s = time.monotonic()
    code = subprocess.run(_command(batteries[name], rest), cwd=ROOT, env=_environment(), check=False).returncode
    if not rest:  # a run with arguments is shorter or longer than the battery
        record(name, f"{'passed' if code == 0 else f'failed ({code})'} in {(time.monotonic() - began_s) / 60:.0f} min")
    return code


def _list(batteries: dict[str, Any]) -> None:
    for name, battery in batteries.items():
        print(
            f"{name:13} {battery['minutes']:>4} min  {battery['proves']}\n{'':24}last: {battery.get('last', 'unknown')}"
        )


def _command(battery: dict[str, Any], arguments: list[str]) -> list[str]:
    if "pytest" in battery:
        return [sys.executable, "-m", "pytest", "-q", battery["pytest"], *arguments]
    return [sys.executable, "-m", battery["module"], *arguments]


def _environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}


def record(name: str, result: str) -> None:
    """Write a battery's last result, with the commit and the date, into the table. Keep all other lines."""
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--abbrev=8"], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.strip()
    last = f'last = "{result}, {commit or "no commit"}, {datetime.now(UTC):%Y-%m-%d}"\n'
    text = TABLE.read_text()
    section = re.search(rf"^\[{re.escape(name)}\]\n(?:[^\[\n].*\n)*", text, re.MULTILINE)
    assert section is not None, name
    kept = re.sub(r"^last = .*\n", "", section[0], flags=re.MULTILINE)
    TABLE.write_text(text[: section.start()] + kept + last + text[section.end() :])


def _refuse(problem: str, advice: str) -> NoReturn:
    print(f"error: {problem}\n  try: {advice}", file=sys.stderr)
    raise SystemExit(2)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
