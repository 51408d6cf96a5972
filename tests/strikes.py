"""Signals to the processes of runs on the local cloud: to a trainer, to an agent, to a whole instance."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

from tests.eventually import eventually
from tests.local_runs import Site, environment_of, processes_now

FOUND_WITHIN_S = 60


def strike(site: Site, run: str, victim: str, number: signal.Signals = signal.SIGKILL) -> None:
    """Signal the victim of the attempt that trains; one that has just gone by itself will do."""
    if victim == "instance":
        current = eventually(lambda: site.state(run).current, within_s=FOUND_WITHIN_S)
        site.run(run).cloud.interrupt(current.instance_id, None)
        return
    pid = eventually(lambda: next(processes_of(site, victim), None), within_s=FOUND_WITHIN_S)
    os.kill(pid, number)


def processes_of(site: Site, victim: str) -> Iterator[int]:
    """The "agent" or "trainer" processes on the instances of this site."""
    for pid in processes_now():
        if str(site.folder) not in environment_of(pid).get("SPOTRUN_INSTANCE_DIR", ""):
            continue
        words = _command_line(pid)
        is_agent = "spotrun.agent" in words
        if (victim == "agent" and is_agent) or (victim == "trainer" and any("tiny.py" in word for word in words)):
            yield pid


def uploading(site: Site) -> bool:
    """Whether an agent of this site is sending a checkpoint right now."""
    return any(_status(path).get("upload") for path in (site.folder / "cloud" / "instances").glob("*/status.json"))


def _status(path: Path) -> dict[str, object]:
    try:
        found = json.loads(path.read_text())
    except (OSError, json.JSONDecodeError):
        return {}
    assert isinstance(found, dict)
    return found


def _command_line(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
    except OSError:
        return []
