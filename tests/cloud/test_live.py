"""`make live`: the first day on each cloud, exactly as its page has it."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.batteries.live import RUN, USD_MAX, day_of
from tests.support.repository import ROOT


@pytest.mark.parametrize("cloud", ["aws", "gcp"])
def test_the_day_has_ten_commands_and_ends_with_the_removal_of_what_it_made(cloud: str) -> None:
    day, end = day_of(cloud)
    assert len(day) == 10
    assert all(typed.shown for typed in day if not typed.is_setup), "the page shows what is printed"
    assert end[0].command == f"spotrun rm {RUN} -y"
    assert all(typed.is_setup for typed in end[1:])


@pytest.mark.nightly
@pytest.mark.timeout(900)
@pytest.mark.parametrize("cloud", ["aws", "gcp"])
def test_the_first_day_prints_what_its_page_shows_and_leaves_nothing(cloud: str) -> None:
    command = [sys.executable, "-m", "tests.batteries.live", cloud, "--account", "test"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=800)
    assert done.returncode == 0, done.stdout + done.stderr
    usd = re.search(r"^the day cost \$([\d.]+) by its ledger$", done.stdout, re.M)
    assert usd is not None
    assert 0 < float(usd[1]) < float(USD_MAX) / 10
