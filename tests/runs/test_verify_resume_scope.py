"""
What `spotrun verify-resume` compares, checked by an independent recorder: each script of tests/support/jobs/kept.py
writes down by itself what it has in the end. Where two such records differ, verify-resume must say so.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.kept_kinds import CARRIED, IDENTICAL, UNSEEN, WITHIN_S, combinations, differing, not_named, verify
from tests.support.repository import JOBS

pytestmark = pytest.mark.timeout(WITHIN_S + 20)
SEED = int(os.environ.get("SPOTRUN_TEST_SEED", "20261123"))
"""Another seed draws other combinations; `make battery NAME=kinds` draws many."""


@pytest.fixture(autouse=True)
def _one_thread_and_a_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("TMPDIR", str(tmp_path))


def test_all_carried_state_is_identical_and_listed() -> None:
    said, records = verify(CARRIED)
    assert said["first_difference"] is None
    assert said["identical"] is True
    assert differing(records) == []
    counts = {each["what"]: each["count"] for each in said["compared"]}
    assert counts["steps"] == 30
    assert counts["validations"] == 3
    assert counts["results"] == 2
    assert counts["files"] > 5
    assert counts["state"] > 100
    named = {each["name"]: each["why"] for each in said["not_compared"]}
    assert "before any interruption" in named["__main__.STARTED"]


@pytest.mark.parametrize("kinds", combinations(4, SEED), ids=",".join)
@pytest.mark.nightly
def test_where_the_scripts_own_record_differs_it_is_never_called_identical(kinds: list[str]) -> None:
    said, records = verify(kinds)
    wrong = not_named(said, records)
    if wrong:
        assert said["identical"] is False, wrong
    else:
        assert said["identical"] is True or set(kinds) & UNSEEN, said["first_difference"]


def test_a_file_that_differs_is_named_with_the_line() -> None:
    said, records = verify(["outside", "copied"])
    assert differing(records) == ["copied"]
    found = said["first_difference"]
    assert (found["kind"], found["name"]) == ("files", "copied.txt")
    assert found["where"].startswith("line ")
    assert found["straight"] != found["interrupted"]


@pytest.mark.nightly
def test_an_object_that_differs_is_named_by_its_place() -> None:
    said, records = verify(["text"])
    assert differing(records) == ["text"]
    found = said["first_difference"]
    assert found["kind"] == "state"
    assert found["name"].endswith("kept.text")
    assert found["straight"] != found["interrupted"]


@pytest.mark.nightly
def test_one_kill_takes_the_instance_after_the_best_epoch_and_its_file_is_there() -> None:
    said, records = verify([], kills=1)
    assert said["identical"] is True
    assert differing(records) == []
    (kill,) = said["kills"]
    assert kill["victim"] == "instance"


def test_each_of_two_processes_is_compared_with_itself() -> None:
    said, records = verify(["plain", "history"], "6,12", "--devices", "2")
    assert said["first_difference"] is None
    assert said["identical"] is True
    assert differing(records) == []
    assert [kill["victim"] for kill in said["kills"]] == ["instance", "trainer"]
    assert {each["what"]: each["count"] for each in said["compared"]}["ranks"] == 2


@pytest.mark.nightly
def test_each_of_several_fits_and_the_files_of_a_resumed_optimizer_are_the_same() -> None:
    """The optimizer's memory after a resume is that of its whole checkpoint, and torch.save writes all of it."""
    command = [sys.executable, "-m", "spotrun", "verify-resume", str(JOBS / "folds.py"), "--json", "--at", "8,22,30"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WITHIN_S, check=False)
    assert done.returncode == IDENTICAL, done.stdout + done.stderr
    counts = {each["what"]: each["count"] for each in json.loads(done.stdout)["compared"]}
    assert (counts["steps"], counts["validations"], counts["results"]) == (48, 6, 3)
