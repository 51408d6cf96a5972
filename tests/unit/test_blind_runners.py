"""A runner that the cloud tells nothing: it shows signs of life, and people are told since when and the way out."""

from __future__ import annotations

import json
import os
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from spotrun.errors import LoginNeeded
from spotrun.folder.attendance import UNATTENDED_AFTER
from spotrun.folder.status_objects import RUNNER_KEY, Blindness, RunnerStatus, read_status, write_status
from spotrun.store.local import LocalStore
from tests.support.called_spotrun import Spotrun
from tests.support.played_run import PlayedRun
from tests.support.stored_runs import new_run

WHY = LoginNeeded("the login has expired", hint="log in again")


class Lists:
    """Calls to the cloud; its lists are refused while `refused`."""

    refused = False

    def __call__(self, name: str) -> None:
        if name == "instances" and self.refused:
            raise WHY


def status_of(played: PlayedRun) -> RunnerStatus:
    found = read_status(played.store, RUNNER_KEY, RunnerStatus)
    assert found is not None
    return found


def test_a_blind_runner_shows_signs_of_life_and_says_since_when_it_sees_nothing() -> None:
    played, lists = PlayedRun(), Lists()
    runner = played.runner(before=lists)
    played.settle(runner)
    assert status_of(played).blind is None
    lists.refused = True
    played.clock.advance(20)
    began = played.clock.now()
    for _ in range(20):
        assert runner.tick().blind == WHY.one_line
        played.clock.advance(15)
    assert status_of(played).blind == Blindness(since=began, why=WHY.one_line)
    assert played.clock.now() - status_of(played).at < UNATTENDED_AFTER, "no other runner has to take its place"
    lists.refused = False
    played.settle(runner)
    assert status_of(played).blind is None


def test_a_runner_whose_run_goes_on_is_blind_too_while_lists_are_refused() -> None:
    played, lists = PlayedRun(steps=10_000), Lists()
    played.cloud.rations_calls = True
    runner = played.runner(before=lists)
    while played.state.current is None:
        played.turn()
        runner.tick()
    for _ in range(6):
        played.turn()
        runner.tick()
    lists.refused, began = True, played.clock.now()
    for _ in range(12):
        played.turn()
        assert runner.tick().blind is None
    found = status_of(played).blind
    assert found is not None
    assert found.why == WHY.one_line
    assert found.since - began < timedelta(minutes=1)


@pytest.fixture
def unattended(runs: Path) -> Path:
    return new_run(runs, "resnet50", "0123456789")


def attend(folder: Path, blind: Blindness | None) -> None:
    status = RunnerStatus(at=datetime.now(UTC), pid=os.getpid(), host="elsewhere", sequence=1, blind=blind)
    assert write_status(LocalStore(folder), RUNNER_KEY, status) is None


def test_status_tells_since_when_the_runner_is_blind_and_the_way_out(unattended: Path, spotrun: Spotrun) -> None:
    since = datetime.now(UTC) - timedelta(minutes=7)
    attend(unattended, Blindness(since=since, why=WHY.one_line))
    (line,) = [
        each
        for each in " ".join(spotrun("status").out.split()).split("resnet50-0123456789")
        if "no answer from the cloud" in each
    ]
    words = rf"its runner has had no answer from the cloud since {since:%a %H:%M:%S} UTC, 7m\d\ds ago"
    assert re.search(words, line)
    assert "the login has expired; try: log in again" in line
    (row,) = json.loads(spotrun("status", "--json").out)
    assert row["blind_since"] == since.isoformat()
    attend(unattended, None)
    assert "no answer from the cloud" not in spotrun("status").out
    assert json.loads(spotrun("status", "--json").out)[0]["blind_since"] is None


def test_next_steps_of_a_run_without_a_runner_need_resume(unattended: Path, spotrun: Spotrun) -> None:
    words = "has no runner; after `spotrun resume resnet50-0123456789`, it "
    for verb in (("why", "resnet50"), ("status", "resnet50")):
        assert words in " ".join(spotrun(*verb).out.split()), verb
    attend(unattended, None)
    for verb in (("why", "resnet50"), ("status", "resnet50")):
        assert "has no runner" not in spotrun(*verb).out, verb
