"""How long a line that the training prints takes until `spotrun logs -f` shows it, through a real bucket and no SSH."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import Queue

import pytest

from spotrun.agent.logs.console import SHIP_EVERY_S
from spotrun.cli.logs import FOLLOW_EVERY_S
from tests.support.agent_bench import AgentRun
from tests.support.object_stores import RunningServer

LINES = 2
WITHIN_S = SHIP_EVERY_S + FOLLOW_EVERY_S + 14.0
"""Of system time: the two waits on the way, and what a machine that does other things too may add."""


@pytest.fixture
def run(tmp_path: Path, servers: Callable[[str], RunningServer], monkeypatch: pytest.MonkeyPatch) -> Iterator[AgentRun]:
    """Its training prints what it reads from a pipe."""
    server = servers("s3")
    server.reach(monkeypatch)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    run = AgentRun(tmp_path, runs_uri=server.new_prefix(), scale=1.0, train={"run": f"cat {pipe}"})
    yield run
    run.close()


def test_a_line_is_shown_within_seconds_and_all_of_them_in_order(run: AgentRun, tmp_path: Path) -> None:
    node = run.launch()
    follow = [sys.executable, "-u", "-m", "spotrun", "logs", "-f", run.store.uri]
    with subprocess.Popen(follow, stdout=subprocess.PIPE, text=True) as reader, (tmp_path / "pipe").open("w") as pipe:
        assert reader.stdout is not None
        shown: Queue[str] = Queue()
        threading.Thread(target=lambda: [shown.put(line) for line in reader.stdout or ()], daemon=True).start()
        delays_s = []
        for number in range(LINES):
            began_s = time.monotonic()
            print(f"line {number}", file=pipe, flush=True)
            while f"line {number}\n" != shown.get(timeout=WITHIN_S + 60 * (number == 0)):
                pass
            delays_s.append(time.monotonic() - began_s)
        pipe.close()
        node.powers_off()
        assert reader.wait(60) == 0, "the follower ends with the run"
    print("seconds until a line was shown:", [round(seconds, 1) for seconds in delays_s[1:]])
    assert max(delays_s[1:]) < WITHIN_S
    assert [line for line in run.log(node).splitlines() if line.startswith("line")] == [
        f"line {n}" for n in range(LINES)
    ]
