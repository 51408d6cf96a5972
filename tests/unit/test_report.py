"""What people and machines are shown of the account."""

from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import StrEnum
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table

from spotrun.account.outcome import status_word
from spotrun.account.summary import RunSummary, summarise
from spotrun.notify.news import news_of
from spotrun.report import compare, machine_readable, overview, terminal
from spotrun.report.describe import describe
from spotrun.report.folding import fold
from spotrun.report.gaps import in_words
from spotrun.report.machine_readable import json_object
from spotrun.report.tables import FiguresTable, dollars, percent, short_duration
from spotrun.run.events import Cause, CommittedFiles, RunFailed, RunStopped, SetUp, StopRequested, TrainingStarted
from tests.support.histories import FREE_STORAGE, History, random_runs
from tests.support.summaries import calm_on_demand, stormy

KEYS = {
    "epoch", "cost_usd", "spot_usd", "on_demand_usd", "storage_usd", "requests_usd", "egress_usd", "wall_s",
    "productive_s", "downtime_s", "interruptions", "steps_redone", "counterfactual_usd", "paid_s", "goodput",
    "usd_per_productive_hour",
}  # fmt: skip
INTERRUPTION_KEYS = {
    "attempt", "cause", "members", "at", "offering", "notice_lead_s", "detection_s", "commit_age_s", "steps_lost",
    "to_first_step_s",
}  # fmt: skip
CAUSES = {"detect", "wait", "boot", "setup", "restore", "rework", "stall"}
DOLLARS = sorted(key for key in KEYS if key.endswith("_usd"))
quickly = settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))


def printed(show: object, width: int = 80, **options: object) -> str:
    """What `show` (a summary, or several to compare) looks like on a console that is no terminal."""
    console = Console(file=io.StringIO(), width=width, **options)  # type: ignore[arg-type]
    if isinstance(show, RunSummary):
        terminal.show(show, console)
    else:
        compare.show(show, console)  # type: ignore[arg-type]
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_report_shows_setup_where_there_was_any():
    seconds = {2: SetUp(seconds=41.0, how="run", packed_bytes=312_000_000), 9: SetUp(seconds=3.1, how="unpacked")}
    summary = replace(stormy(), setups=seconds, ordinals={2: 1, 9: 2})
    assert "Setup: attempt 1 run in 41s (312.0 MB), attempt 2 unpacked in 3.1s." in printed(summary)
    assert "Setup" not in printed(stormy())
    first, later = machine_readable.report(summary)["setups"]
    assert first == {"attempt": 2, "how": "run", "seconds": 41.0, "packed_bytes": 312_000_000}
    assert (later["how"], later["seconds"]) == ("unpacked", 3.1)


# -- for machines ------------------------------------------------------------------------------------------------------


def test_the_report_for_machines_has_the_promised_keys():
    figures = machine_readable.report(stormy())
    wanted = {"run", "state", "time_scale", "epochs", "unfinished", "total", "interruptions", "setups", "assumptions"}
    assert set(figures) == wanted | {"not_carried", "other_losses"}
    assert (figures["run"], figures["state"]) == ("demo-0123456789", "completed")
    assert [epoch["epoch"] for epoch in figures["epochs"]] == [1, 2, 3]
    for account in [*figures["epochs"], figures["unfinished"]]:
        assert set(account) == KEYS
        assert set(account["downtime_s"]) == CAUSES
    assert set(figures["total"]) == KEYS | {"savings"}
    assert 0 < figures["total"]["savings"] < 1
    assert [set(each) for each in figures["interruptions"]] == [INTERRUPTION_KEYS] * 2


@pytest.mark.exhaustive
@quickly
@given(random_runs())
def test_dollars_are_decimal_strings_that_sum_exactly(history: History):
    figures = json.loads(json.dumps(machine_readable.report(summarise(history.state, history.now)), allow_nan=False))
    parts = [*figures["epochs"], figures["unfinished"]]
    for key in DOLLARS:
        assert all(isinstance(part[key], str) for part in parts)
        assert sum(Decimal(part[key]) for part in parts) == Decimal(figures["total"][key]), key
    for part in [*parts, figures["total"]]:
        split = ("spot_usd", "on_demand_usd", "storage_usd", "requests_usd", "egress_usd")
        assert sum(Decimal(part[key]) for key in split) == Decimal(part["cost_usd"])
        assert part["productive_s"] + sum(part["downtime_s"].values()) == pytest.approx(part["wall_s"])


def test_the_csv_has_a_row_per_epoch_one_for_the_rest_and_one_for_the_total():
    summary = stormy()
    rows = list(csv.DictReader(io.StringIO(machine_readable.report_csv(summary))))
    assert [row["epoch"] for row in rows] == ["1", "2", "3", "end of run", "total"]
    assert set(rows[0]) == KEYS - {"downtime_s"} | {f"{cause}_s" for cause in CAUSES} | {"savings"}
    assert sum(Decimal(row["cost_usd"]) for row in rows[:-1]) == Decimal(rows[-1]["cost_usd"])
    assert [bool(row["savings"]) for row in rows] == [False] * 4 + [True]


def test_a_comparison_for_machines_measures_each_run_against_the_first():
    first, second = compare.as_json([stormy(), calm_on_demand()])["runs"]
    assert (first["ratio_to_first"], first["epochs"]) == (1.0, 3)
    ratio = Decimal(second["cost_usd"]) / Decimal(first["cost_usd"])
    assert second["ratio_to_first"] == pytest.approx(float(ratio), abs=1e-6)
    assert Decimal(second["usd_per_epoch"]) == pytest.approx(Decimal(second["cost_usd"]) / 3)
    assert set(first["downtime_s"]) == CAUSES
    rows = list(csv.DictReader(io.StringIO(compare.csv([stormy(), calm_on_demand()]))))
    assert [row["run"] for row in rows] == ["demo-0123456789", "calm-9876543210"]


def test_a_run_of_which_nothing_is_known_yet_can_be_reported_and_compared():
    history = History()
    summary = summarise(history.state, history.now)
    figures = machine_readable.report(summary)
    assert (figures["state"], figures["epochs"], figures["total"]["savings"]) == ("running", [], None)
    assert compare.as_json([summary])["runs"][0]["usd_per_epoch"] is None
    assert "total" in printed(summary)
    assert "cost per epoch" in printed([summary, summary])


def test_a_name_that_a_spreadsheet_would_run_is_only_text():
    assert "\"'=cmd()" in machine_readable.csv_text([{"name": '=cmd()"', "downtime_s": {}}], last="name")


def test_csv_has_the_columns_of_all_rows():
    rows = [{"name": "a", "downtime_s": {}}, {"name": "b", "own_usd": 1, "downtime_s": {"boot": 2.0}}]
    assert machine_readable.csv_text(rows, last="name") == "own_usd,boot_s,name\n,,a\n1,2.0,b\n"


# -- for people --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [80, 120])
def test_the_report_fits_and_nothing_in_it_is_cut(width: int):
    text = printed(stormy(), width)
    assert max(len(line) for line in text.splitlines()) <= width
    assert "…" not in text
    assert "\x1b" not in text


def test_the_widest_figures_fit_too():
    run = stormy()
    times, usd = dict.fromkeys(run.total.times, timedelta(minutes=59, seconds=59)), Decimal("1234.56")
    widest = replace(
        run.total, times=times, spot_usd=usd, on_demand_usd=usd, storage_usd=usd, interruptions=999, steps_redone=99_999
    )
    text = printed(replace(run, epochs=(), rest=widest, total=widest))
    assert max(len(line) for line in text.splitlines()) <= 80
    costs, figures = (line.split() for line in text.splitlines() if line.startswith("total"))
    assert costs[2:5] == ["$1234.56"] * 3
    assert figures[2:] == ["59m59s"] * (1 + len(CAUSES))


@pytest.mark.parametrize("width", [60, 80, 120])
def test_on_a_narrow_terminal_further_columns_follow_below_and_no_figure_is_cut(width: int):
    nights = [stormy(name="nightly-resnet50", uid=f"{night:010}") for night in range(7)]
    for text in (printed(nights, width), printed(nights[0], width)):
        assert max(map(cell_len, text.splitlines())) <= width
        assert "…" not in text
    costs = [line.split()[1:] for line in printed(nights, width).splitlines() if line.startswith("cost  ")]
    assert [cost for line in costs for cost in line] == [dollars(run.total.cost_usd) for run in nights]


@pytest.mark.parametrize("width", [60, 80, 120, None])
def test_a_table_holds_each_text_whole_at_any_width(width: int | None):
    table = FiguresTable("Runs", ("run", "state", "step", "cost", "started\n(UTC)"), texts=(0, 1), gap=2)
    cells = ["模型" * 12 + "-8204b5586b", "training, unattended", "1234567", "$1234.56", "11-23 02:35"]
    for _ in range(2):
        table.add_row(cells)
    lines = [line for line, _ in table.lines(width)]
    assert width is None or max(map(cell_len, lines)) <= width
    for figure in cells[2:]:
        assert sum(figure in line for line in lines) == 2, figure
    for word in ("training,", "unattended"):
        assert sum(word in line for line in lines) >= 2
    assert width is not None or lines[-1].startswith(cells[0])


def test_the_id_of_a_run_breaks_after_a_dash():
    assert fold("resnet50-imagenet-8204b5586b", 14) == ["resnet50-", "imagenet-", "8204b5586b"]
    table = FiguresTable("", ("run", "state", "step", "cost", "started\n(UTC)"), texts=(0, 1), gap=2)
    table.add_row(["resnet50-on-demand-2222222222", "training, unattended", "1234567", "$1234.56", "11-23 02:35"])
    assert any(line.startswith("2222222222 ") or line == "2222222222" for line, _ in table.lines(60))


@pytest.mark.parametrize(("kept_h", "shown"), [("0.0001", False), ("0.5", True)])
def test_the_cost_of_an_hour_is_shown_only_after_some_minutes_of_work(kept_h: str, shown: bool):
    cost = Decimal("10.39") * Decimal(kept_h)
    row = {"run": "demo", "cost_usd": str(cost), "usd_per_kept_hour": "10.39"}
    assert any("$10.39 for each hour" in note for note in overview.notes([row])) == shown


def test_a_line_folds_between_words_and_counts_wide_characters():
    assert fold("11-22 02:10:05   7  the cloud takes it", 20, 4) == [
        "11-22 02:10:05   7",
        "    the cloud takes",
        "    it",
    ]
    assert fold("模型模型", 5) == ["模型", "模型"]
    assert fold("a longer line", None) == ["a longer line"]


def test_the_report_says_what_was_paid_saved_and_assumed():
    text = printed(stormy())
    first_line = text.splitlines()[0]
    assert first_line == "demo-0123456789: completed, simulated prices"
    assert "saved." in text
    for words in ("SIMULATED", "egress: none", "the price list of 2026-03-01"):
        assert words in stormy().assumptions
    assert "as fast" not in text
    assert "60 x as fast" in " ".join(printed(stormy(time_scale=60.0)).split())


def test_a_report_ends_with_its_figures_and_one_line_about_assumptions():
    text = printed(stormy())
    *_, verdict, goodput, last = text.splitlines()
    assert "saved." in verdict
    assert goodput.startswith("Goodput")
    assert last == "What these figures assume: docs/bill.md; for this run: --html or --json."


def test_real_prices_are_not_called_simulated():
    assert "simulated prices" not in printed(stormy(simulated=False))


@pytest.mark.parametrize("width", [80, 120])
def test_two_bills_stand_side_by_side(width: int):
    text = printed([stormy(), calm_on_demand()], width)
    assert max(len(line) for line in text.splitlines()) <= width
    assert "…" not in text
    rows = {line[:20].strip(): line[20:].split() for line in text.splitlines()}
    assert rows["ratio to the first"][0] == "1.00x"
    assert rows["interruptions"] == ["2", "-"]
    assert set(CAUSES) <= set(rows)
    assert text.count("Assumptions:") == 1


def test_an_assumption_of_some_of_the_runs_names_them():
    fast, faster = (stormy(uid=each * 10, time_scale=scale) for each, scale in (("1", 20.0), ("2", 60.0)))
    said = compare.assumptions([fast, faster]).split("; ")
    assert f"times are run time, 20 x as fast as the wall clock ({fast.run})" in said
    assert f"times are run time, 60 x as fast as the wall clock ({faster.run})" in said
    assert "instance prices are SIMULATED, nobody bills them" in said


def test_compare_notes_bills_for_different_work_above_the_table():
    def run(uid: str, code: str = "a", **train: object) -> RunSummary:
        spec = {"train": {"script": "t.py", "args": ["--lr", "1"]} | train}
        return stormy(uid=uid * 10, spec=spec, script_sha256=code * 64)

    same, args, both, script, older = (
        run("1"),
        run("2", args=["--lr", "2"]),
        run("3", "b", args=["--lr", "2"]),
        run("4", script="other.py"),
        run("5", code=""),
    )
    shorter = replace(same, run="short", work=replace(same.work, epochs=1, steps=100))
    runs = [run("0"), same, args, replace(args, run="again"), both, script, older, shorter]
    assert "not the same work" not in printed([runs[0], same, older])
    said = printed(runs, 400).partition("Side by side")[0].split("\n\n")
    assert [line for line in said if line] == [
        "demo-2222222222, again are not the same work as demo-0000000000: other arguments.",
        "demo-3333333333 is not the same work as demo-0000000000: another version of the script, other arguments.",
        "demo-4444444444 is not the same work as demo-0000000000: another command.",
        "short is not the same work as demo-0000000000: 1 epoch instead of 3.",
    ]
    assert "not the same work as demo" in compare.markdown(runs).partition("|")[0].replace("\\", "")
    assert [each["unlike_first"] for each in compare.as_json(runs)["runs"]][-1] == "1 epoch instead of 3"


def test_a_comparison_names_the_nodes_where_a_run_has_several():
    alone, again = stormy(uid="1" * 10), stormy(uid="2" * 10)
    gang = replace(again, work=replace(again.work, nodes=4))
    assert "num_nodes" not in printed([alone, again])
    assert "num_nodes" not in compare.markdown([alone, again])
    assert re.search(r"num_nodes +1 +4\b", printed([alone, gang]))
    assert "is not the same work as demo-1111111111: num_nodes 4 instead of 1." in printed([alone, gang], 400)
    assert "num\\_nodes | 1 | 4" in compare.markdown([alone, gang])
    assert [each["num_nodes"] for each in compare.as_json([alone, gang])["runs"]] == [1, 4]


def test_run_with_scaled_time_is_marked_in_a_comparison():
    fast, real = stormy(uid="f" * 10, time_scale=20.0), stormy(uid="e" * 10)
    assert "demo-ffffffffff (20×)" in printed([real, fast])
    assert "demo-eeeeeeeeee (" not in printed([real, fast])
    assert "demo-ffffffffff" in compare.markdown([real, fast])
    assert "(20×)" in compare.markdown([real, fast]).replace("\\", "")
    assert [each["time_scale"] for each in compare.as_json([real, fast])["runs"]] == [1.0, 20.0]
    assert compare.trend([real, fast]).count("(20×)") == 3
    assert "×" not in compare.trend([fast, fast])
    rows = [
        {"run": "a", "state": "completed", "started_at": "2026-03-01T12:00", "time_scale": scale} for scale in (1, 20.0)
    ]
    text = printed_table(overview.table(rows))
    assert text.count("a (20×)") == text.count("×") == 1


def test_cost_of_more_than_ten_times_shows_no_saving():
    assert [percent(share) for share in (None, 0.75, -0.5, -9.99, -42.65)] == ["-", "75%", "-50%", "-999%", "-"]


def printed_table(table: Table) -> str:
    console = Console(file=io.StringIO(), width=80)
    console.print(table)
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_text_from_outside_moves_no_cursor_and_is_no_markup():
    hostile = "[red]x[/red]\x1b[2J\u202e:smile:"
    text = printed(stormy(name=hostile), force_terminal=True, color_system="truecolor")
    assert "[red]x[/red]" in text
    assert ":smile:" in text
    assert "\x1b[2J" not in text
    assert "\u202e" not in text


def test_the_report_can_be_printed_where_only_ascii_can():
    raw = io.BytesIO()
    console = Console(file=io.TextIOWrapper(raw, encoding="ascii", errors="strict"), width=80)
    terminal.show(stormy(), console)
    compare.show([stormy(), calm_on_demand()], console)


def test_a_comparison_in_markdown_has_the_figures_of_the_table_and_no_sign_of_its_own():
    hostile = "a|b](http://x) <img src=x> `c` **d**"
    text = compare.markdown([stormy(name=hostile), calm_on_demand()])
    rows = [re.split(r"(?<!\\) ?\| ?", line)[1:-1] for line in text.splitlines() if line.startswith("|")]
    assert {len(row) for row in rows} == {3}
    cost = next(row for row in rows if row[0] == "cost")
    assert cost[1:] == [dollars(run.total.cost_usd) for run in (stormy(), calm_on_demand())]
    assert not re.search(r"(?<!\\)[<>`*\[\]]", text)
    assert "Assumptions: " in text


@pytest.mark.exhaustive
@quickly
@given(random_runs())
def test_any_run_can_be_shown(history: History):
    summary = summarise(history.state, history.now)
    assert "total" in printed(summary)
    assert "cost" in printed([summary, summary])


@pytest.mark.parametrize(
    ("amount", "text"),
    [("0", "-"), ("0.00001", "<$0.0001"), ("0.0123", "$0.0123"), ("12.345", "$12.34"), ("54321.9", "$54322")],
)
def test_dollars_are_short(amount: str, text: str):
    assert dollars(Decimal(amount)) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "-"), (4.23, "4.2s"), (45, "45s"), (59.7, "1m00s"), (185, "3m05s"), (7800, "2h10m"), (442800, "5d03h")],
)
def test_durations_are_short(seconds: float, text: str):
    assert short_duration(timedelta(seconds=seconds)) == text


@given(st.floats(0, 86_400 * 999))
def test_no_duration_is_wider_than_its_column(seconds: float):
    assert len(short_duration(timedelta(seconds=seconds))) <= 7


def test_a_share_is_a_whole_percentage():
    assert [percent(share) for share in (None, 0.647, -0.0004, -0.25)] == ["-", "65%", "0%", "-25%"]


# -- in one word -------------------------------------------------------------------------------------------------------


def test_one_word_says_what_a_run_does():
    history = History()
    words = [status_word(history.state)]

    def then() -> None:
        words.append(status_word(history.state))

    launch = history.launch()
    then()
    history.close(launch)
    then()
    launch = history.launch()
    history.record(launch)
    history.start(launch)
    then()
    history.resume()
    history.training()
    then()
    history.exited()
    then()
    history.resume()
    history.training()
    history.notice()
    then()
    history.write(StopRequested(by="me"))
    then()
    history.drained(None)
    history.write(RunStopped(reason="as requested"))
    then()
    assert words == [
        "created", "starting", "waiting", "starting", "training", "starting", "leaving", "stopping", "stopped",
    ]  # fmt: skip


def test_a_run_that_failed_says_so():
    history = History()
    history.write(RunFailed(cause=Cause.QUOTA, detail="none"))
    assert status_word(history.state) == "failed"
    assert summarise(history.state, history.now).state == "failed"


def test_a_command_without_checkpoints_is_not_said_to_train() -> None:
    history = History(spec={"train": {"run": "make"}})
    for lost in (True, False):
        launch = history.launch()
        history.after(10).record(launch)
        history.after(50).start(launch)
        history.resume()
        if lost:
            history.after(60).gone(launch)
    summary = summarise(history.after(60).state, history.now)
    assert [each.kind for each in news_of(history.entries)] == ["started", "interrupted"]
    told = [describe(entry) for entry in history.entries] + [news.sentence for news in news_of(history.entries)]
    assert not [sentence for sentence in told if "step" in sentence or "training" in sentence]
    (cells,) = (terminal.loss_cells(each, summary) for each in summary.losses)
    assert cells[-1] == "-"
    unended = replace(summary, total=replace(summary.total, counterfactual_usd=Decimal(0)))
    assert "the time of a command without checkpoints counts" in terminal.verdict(unended)
    assert "has not succeeded and has no checkpoints" in terminal.verdict(replace(unended, state="stopped"))
    assert "; nothing was trained that" in terminal.verdict(replace(unended, state="stopped", plain=False))
    history.completed(None)
    assert describe(history.entries[-1]) == "run completed: its command succeeded"


def test_events_do_not_repeat_the_advice_on_a_plain_script_that_launch_gives() -> None:
    history = History(spec={"train": {"run": "python plain.py"}})
    launch = history.launch()
    history.after(10).record(launch)
    history.after(50).start(launch)
    history.resume()
    history.write(
        TrainingStarted(
            attempt=history.attempt, incarnation=history.incarnation, step=0, began_at=history.now, unprotected=True
        )
    )
    told = describe(history.entries[-1])
    assert told.endswith("an interruption would lose all its work")
    assert len(told.split()) <= 25
    row = {
        "run": "demo",
        "state": "training",
        "started_at": "2026-01-01T00:00:00",
        "unprotected": True,
        "next": "trains",
    }
    (line,) = (line for line in overview.notes([row]) if "unprotected" in line)
    assert line.endswith("add train: {state: [out/]} to save the files that it writes into out/")


def test_sentences_name_no_step_of_a_command_and_no_missing_time() -> None:
    history = History()
    history.running()
    number = history.commit(step=0)
    assert ", 0s after the snapshot" in describe(history.entries[-1])
    history.step = 0
    history.completed(number)
    assert describe(history.entries[-1]) == "run completed: its command succeeded"
    gap = {"place": "the state of the command", "what": "files", "step": 0, "resumes": 0}
    assert in_words(gap) == "the state of the command: files"


def test_checkpoint_is_shown_with_the_size_of_its_files() -> None:
    history = History()
    launch = history.launch()
    history.after(10).record(launch)
    history.after(50).start(launch)
    history.resume()
    files = CommittedFiles(
        key="list", blake3="0" * 64, files=4, size_bytes=12_000_000, objects=1, sent_bytes=9, stored_bytes=9
    )
    history.commit(size_bytes=3_400_000, files=files)
    assert "3.4 MB and 4 files of 12.0 MB, " in describe(history.entries[-1])


def test_free_nodes_are_shown_by_their_hours() -> None:
    history = History()
    history.running(price="0")
    history.step += 100
    final = history.after(3450).commit(final=True)
    history.after(10).completed(final)
    summary = summarise(history.state, history.now)
    stored = summary.total.cost_usd
    assert stored > 0
    assert terminal.verdict(summary) == f"0.99 node-hours at no price, and {dollars(stored)} for what is stored."


def test_a_report_s_types_become_the_values_of_json() -> None:
    class Kind(StrEnum):
        SPOT = "spot"

    class Range(NamedTuple):
        low: Decimal
        high: Decimal | None

    told = json_object(
        at=datetime(2026, 3, 1, tzinfo=UTC),
        by_kind={Kind.SPOT: (Range(Decimal("0.5"), None), timedelta(seconds=1.5))},
        storage=FREE_STORAGE,
        left=None,
    )
    assert told["at"] == "2026-03-01T00:00:00+00:00"
    assert told["by_kind"] == {"spot": [{"low": "0.500000000", "high": None}, 1.5]}
    assert told["storage"]["usd_per_gb_month"] == "0.000000000"
    assert json_object(str, usd=Decimal("0.50")) == {"usd": "0.50"}
