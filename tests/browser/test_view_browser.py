"""`spotrun view` in a real browser: a page follows its run, keeps the reader's place, and says when it cannot go on."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from spotrun.store.local import LocalStore
from tests.support import pages
from tests.support.decisions import spec
from tests.support.eventually import eventually
from tests.support.report_samples import stormy
from tests.support.short_runs import trained
from tests.support.stored_runs import new_run, store_run

if reason := pages.missing():
    pytest.skip(reason, allow_module_level=True)

RUN = "demo-0123456789"


@contextmanager
def viewed(*words: object) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """The address that `spotrun view` prints, and its process."""
    command = [sys.executable, "-m", "spotrun", "view", *map(str, words)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": "."}) as process:
        try:
            assert process.stdout is not None
            found = re.fullmatch(
                r"serving (http://127\.0\.0\.1:\d+/\S{22}/\S*); Ctrl-C ends it\n", process.stdout.readline()
            )
            assert found is not None
            yield found[1], process
        finally:
            process.kill()


def test_a_page_follows_its_run_and_keeps_the_place_of_the_reader(tmp_path: Path) -> None:
    history = trained(2, spec=spec().to_dict())
    folder = store_run(tmp_path, history)
    with (
        pages.chromium() as browser,
        viewed(RUN, "--store", tmp_path) as (address, process),
        pages.visit(browser, address, pages.PHONE) as seen,
    ):
        page = seen.page
        epochs = page.get_by_role("region", name="Epochs")
        rows = epochs.locator("tbody tr")
        assert rows.count() == 2
        sort = epochs.get_by_role("button", name="epoch", exact=True)
        page.get_by_text("Show the").click()
        sort.click(click_count=2)
        epochs.evaluate("each => each.scrollLeft = 90")
        page.evaluate("scrollTo(0, 700)")
        history.step += 100
        history.after(3600).epoch(2)
        history.commit()
        history.put_into(LocalStore(folder))
        eventually(lambda: rows.count() == 3)
        assert page.evaluate("scrollY") == 700
        assert epochs.evaluate("each => each.scrollLeft") == 90
        assert rows.locator("th").all_inner_texts() == ["3", "2", "1"]
        assert page.locator("details[open]").count() == 1
        assert sort.evaluate("each => each === document.activeElement")
        assert (seen.findings(), seen.errors, seen.violations) == ([], [], [])
        assert not page.get_by_role("status").is_visible()
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
        page.get_by_text("spotrun view no longer answers").wait_for()
        assert rows.count() == 3
        assert seen.findings() == []


def test_the_list_shows_new_runs_and_leads_to_their_pages(tmp_path: Path) -> None:
    new_run(tmp_path, "first", "1")
    with (
        pages.chromium() as browser,
        viewed("--store", tmp_path) as (address, _),
        pages.visit(browser, address) as seen,
    ):
        assert seen.page.locator("tbody a").all_inner_texts() == ["first-1"]
        store_run(tmp_path, stormy(spec=spec().to_dict()))
        seen.page.get_by_role("link", name=RUN).click()
        seen.page.get_by_role("heading", name="Course of the run").wait_for()
        seen.page.get_by_role("link", name="All runs").click()
        seen.page.get_by_role("heading", name="Runs in").wait_for()
        assert (seen.findings(), seen.errors, seen.violations) == ([], [], [])
