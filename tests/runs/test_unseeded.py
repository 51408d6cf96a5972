"""A script that seeds nothing is the same script in each attempt: its splits, vocabularies, features and numbers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from spotrun.run import events as ev
from tests.support.agent_bench import AgentRun, Node
from tests.support.eventually import eventually
from tests.support.repository import JOBS

DRAWS = """
import random, subprocess, sys, time
import numpy
words = "".join(set("avocabularyoverasetoftexts"))
drawn = [random.random(), numpy.random.rand(), words]
if "other" in sys.argv:
    print(*drawn)
    sys.exit()
other = subprocess.run([sys.executable, __file__, "other"], capture_output=True, check=True, text=True).stdout
print("drawn", *drawn, other, flush=True)
time.sleep(1000)
"""


def test_an_unseeded_training_that_was_killed_equals_the_straight_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    command = [sys.executable, "-m", "spotrun", "verify-resume", str(JOBS / "unseeded.py"), "--json", "--at", "7,15"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=170, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    seen = json.loads(done.stdout)
    assert seen["identical"] is True
    assert [kill["victim"] for kill in seen["kills"]] == ["instance", "trainer"]
    assert seen["resumes_from_checkpoint"] == 2


def drawn(run: AgentRun, node: Node) -> list[str]:
    return [line for line in run.log(node).splitlines() if line.startswith("drawn")]


def test_a_plain_command_draws_on_the_next_instance_what_it_drew_on_the_first(tmp_path: Path) -> None:
    run = AgentRun(tmp_path, scale=30.0, train={"run": "python draws.py"}, files={"draws.py": DRAWS})
    try:
        first = run.launch()
        eventually(lambda: drawn(run, first))
        first.notice(60)
        first.powers_off()
        run.wait_for(ev.AttemptDrained)
        second = run.launch()
        eventually(lambda: drawn(run, second))
        assert drawn(run, first) == drawn(run, second)
        _, number, of_numpy, words, *other = drawn(run, first)[0].split()
        assert len({number, of_numpy, *other[:2]}) == 4, "what it starts draws numbers of its own"
        assert other[2:] == [words], "and sees sets in the same order"
    finally:
        run.close()
