"""The table of docs/exactness-measured.md: what a row says of a result, and that each script has one."""

from __future__ import annotations

from typing import Any

from tests.batteries.script_rows import BEGIN, END, PAGE, row, rows_of, script, scripts, verdict, with_rows

EMA = script("ema")
SEEN: dict[str, Any] = {
    "steps": 40,
    "kills": [{"step": 9, "victim": "instance"}, {"step": 20, "victim": "trainer"}, {"step": 31, "victim": "instance"}],
    "batches_redone": 5,
    "first_difference": None,
    "compared": [{"what": "steps", "count": 40}, {"what": "weights", "count": 12}, {"what": "files", "count": 2}],
    "not_compared": [{"name": "file a|b", "why": "it names each run"}],
    "not_carried": [{"place": "module.env", "what": "gym.Env"}],
}
FOUND = {"kind": "state", "name": "module.beta", "where": None, "step": None, "resumed": True}


def test_each_script_has_one_row_and_each_row_its_script() -> None:
    assert list(rows_of(PAGE.read_text())) == [each.name for each in scripts()]


def test_a_row_says_what_was_compared_and_what_was_not() -> None:
    text = row(EMA, SEEN)
    assert (
        "| 40 | 3 (2 of the instance, 1 of the trainer); 5 batches redone | identical | 12 weights, 2 files |" in text
    )
    assert r"`file a\|b`: it names each run; the run said that no checkpoint holds `module.env (gym.Env)` |" in text


def test_a_difference_stays_in_the_table_with_its_place() -> None:
    assert verdict({"first_difference": FOUND}) == "**differs**: state `module.beta`"
    lost = FOUND | {"kind": "loss", "name": None, "where": "x", "step": 7, "resumed": False}
    assert verdict({"first_difference": lost}) == "**differs**: loss (x) at step 7, before any kill"


def test_an_error_of_verify_resume_is_a_row() -> None:
    seen = {"error": "the uninterrupted training failed: x", "problems": [{"fix": "train it alone first"}]}
    assert "| not verified |  | the uninterrupted training failed: x; try: train it alone first |" in row(EMA, seen)


def test_refused_script_is_called_refused() -> None:
    assert verdict({"error": "spotrun refuses the uninterrupted training: a tuner runs inside fit()"}) == "refused"


def test_row_of_the_page_stays_until_its_script_is_measured_again() -> None:
    page = f"before\n{BEGIN}\n{END}\nafter\n"
    once = with_rows(page, {"ema": SEEN})
    assert rows_of(once)["ema"] == row(EMA, SEEN)
    assert rows_of(once)["gan"] == row(script("gan"), None)
    again = with_rows(once, {"gan": SEEN})
    assert rows_of(again)["ema"] == row(EMA, SEEN)
    assert rows_of(again)["gan"] == row(script("gan"), SEEN)
    assert again.startswith("before\n")
    assert again.endswith("\nafter\n")
