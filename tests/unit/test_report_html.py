"""The HTML report: one file, whole and harmless whatever the names in the ledger are."""

from __future__ import annotations

import re
from base64 import b64encode
from datetime import timedelta
from decimal import Decimal
from hashlib import sha256

import pytest
from hypothesis import HealthCheck, given, settings

from spotrun.account.summary import summarise
from spotrun.errors import SpecInvalid
from spotrun.report import compare, machine_readable
from spotrun.report.html.chart import overlaps
from spotrun.report.html.comparison import RUNS_MAX, comparison_page
from spotrun.report.html.listings import costs, epochs
from spotrun.report.html.made_with import job_yaml
from spotrun.report.html.metric import at_commits, over_time, points, training_loss
from spotrun.report.html.page import POINTS
from spotrun.report.html.prices import price_curve
from spotrun.report.terminal import by_members
from spotrun.run.events import Revision
from spotrun.run.gang import Layout
from spotrun.spec.model import RunSpec
from spotrun.spec.yaml import read_yaml
from tests.support.gang_history import GangHistory
from tests.support.histories import START, History, random_runs
from tests.support.parsed_page import Page
from tests.support.report_samples import HOSTILE, compared, hostile, learning, report_page, stormy
from tests.support.summaries import calm_on_demand

SIZE_MAX = 1_500_000


def test_it_is_well_formed_and_asks_for_nothing():
    parsed = Page(report_page(stormy()))
    for tag, attributes in parsed.tags:
        assert tag not in ("link", "img", "iframe", "object", "embed", "base", "form")
        assert not {"src", "href", "action", "style"} & set(attributes)
        assert not [name for name in attributes if name.startswith("on")]


def test_its_policy_lets_in_its_own_style_and_script_and_nothing_else():
    parsed = Page(report_page(stormy()))
    policies = [a["content"] for tag, a in parsed.tags if a.get("http-equiv") == "Content-Security-Policy"]
    assert len(policies) == 1
    policy = policies[0] or ""
    assert policy.startswith("default-src 'none';")
    assert "unsafe" not in policy
    for tag in ("style", "script"):
        digest = b64encode(sha256("".join(parsed.texts[tag]).encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy


def test_every_drawing_says_what_it_shows_and_every_column_is_named():
    parsed = Page(report_page(stormy()))
    drawings = [a for _, a in parsed.tags if a.get("role") == "img"]
    assert len(drawings) == 5
    assert all(a["aria-label"] for a in drawings)
    assert all(a.get("scope") in ("col", "row") for tag, a in parsed.tags if tag == "th")


def test_the_table_of_epochs_sums_to_the_json_report():
    history = stormy()
    told = machine_readable.report(summarise(history.state, history.now))
    figures = [row for row in Page(report_page(history)).rows if row and row[0].get("data-value")]
    by_name = {row[0]["data-value"]: Decimal(row[1]["data-value"] or "") for row in figures}
    assert list(by_name) == ["1", "2", "3", "end of run", "total"]
    assert by_name.pop("total") == Decimal(told["total"]["cost_usd"]) == sum(by_name.values())
    assert [by_name[str(e["epoch"])] for e in told["epochs"]] == [Decimal(e["cost_usd"]) for e in told["epochs"]]


def test_each_row_of_epochs_has_all_parts_of_its_cost():
    page = Page(report_page(stormy()))
    rows = [row for row in page.rows if row and row[0].get("data-value")]
    assert len(rows) == 5
    heads = page.texts["button"]
    assert heads[:2] == ["epoch", "cost"]
    assert set(heads[1 : heads.index("all on demand")]) <= {*costs(own=False)}
    for row in rows:
        cost, *parts = (Decimal(cell["data-value"] or "") for cell in row[1 : heads.index("all on demand")])
        assert cost == sum(parts) >= 0


def test_columns_of_epochs_without_a_figure_are_left_out():
    page = Page(epochs(calm_on_demand()).text)
    heads, rows = page.texts["button"], page.cells[1:]
    assert not {"spot", "egress", "interruptions", "steps redone"} & {*heads}
    assert {"cost", "on-demand", "training"} <= {*heads}
    assert {len(row) for row in rows} == {len(heads)}
    assert all(any(row[column] != "-" for row in rows) for column in range(len(heads)))


def test_columns_of_compared_runs_without_a_figure_are_left_out():
    calm, stormed = calm_on_demand(), summarise(stormy().state, stormy().now)
    heads = Page(comparison_page([calm, calm], with_trend=False)).texts["button"]
    assert not {"spot", "egress", "interruptions", "steps redone"} & {*heads}
    assert "interruptions" in Page(comparison_page([calm, stormed], with_trend=False)).texts["button"]


def test_every_attempt_is_listed():
    history = stormy()
    cells = Page(report_page(history)).cells
    first = next(number for number, row in enumerate(cells) if row[:1] == ["attempt"]) + 1
    listed = [(row[0], row[4]) for row in cells[first : first + 3]]
    kinds = ("spot", "spot", "on-demand")
    assert listed == list(zip("123", kinds, strict=True))


def test_a_line_is_drawn_from_its_first_point_to_its_last():
    lines = [a["points"] or "" for tag, a in Page(report_page(stormy())).tags if tag == "polyline"]
    assert len(lines) == 3
    for line in lines[:2]:
        points = [tuple(map(float, pair.split(","))) for pair in line.split()]
        assert len(points) == POINTS
        assert points == sorted(points)


def test_hostile_names_are_shown_and_do_nothing():
    text = report_page(hostile())
    parsed = Page(text)
    assert [tag for tag, _ in parsed.tags].count("script") == 1
    assert "img" not in [tag for tag, _ in parsed.tags]
    assert "&lt;script&gt;alert(1)&lt;/script&gt;&quot;&#x27;&amp;" in text
    assert text.count("&lt;script&gt;") >= 5
    assert all(character.isprintable() or character == "\n" for character in text)


@pytest.mark.exhaustive
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(random_runs(skewed=True))
def test_any_run_at_any_moment_has_a_page(history: History):
    assert len(report_page(history).encode()) <= SIZE_MAX
    Page(report_page(history))


@pytest.mark.exhaustive
def test_a_long_run_stays_small_and_says_what_it_leaves_out():
    history = History()
    history.running()
    for epoch in range(1500):
        history.step += 10
        history.after(60).epoch(epoch)
        history.commit()
    text = report_page(history)
    assert len(text.encode()) <= SIZE_MAX
    assert "the last 500 of 1500" in text


def test_price_bars_are_scaled_to_the_on_demand_price():
    history = stormy()
    drawn = Page(price_curve(history.state, history.now).text)
    bars = [a for tag, a in drawn.tags if tag == "rect" and a["width"] != "100.00%"]
    heights = {each: {float(a["height"] or "") for a in bars if a["class"] == each} for each in ("spot", "on_demand")}
    assert heights == {"spot": {20.0}, "on_demand": {200.0}}  # $0.36 and $3.60
    widths = [float((a["width"] or "").rstrip("%")) for a in bars]
    assert len(widths) == 3
    assert 90 < sum(widths) < 100  # no instance before the first launch, nor between two
    (line,) = [a["points"] or "" for tag, a in drawn.tags if tag == "polyline"]
    assert [pair.split(",")[1] for pair in line.split()] == ["20.0", "20.0"]
    assert "$0.3600 to $3.6000 paid" in price_curve(history.state, history.now).text
    assert "Nothing has been billed" in report_page(History())


# -- what it was made with ---------------------------------------------------------------------------------------------


def job_of(**keys: object) -> dict[str, object]:
    return RunSpec.from_dict({"name": "demo", "workdir": "/w", "train": {"script": "train.py"}, **keys}).to_dict()


def test_the_job_is_shown_without_defaults_and_reads_back_as_it_was():
    stored = job_of(setup="a &&\n  b: c\n", envs={"A": "<b>"}, resources={"cloud": "local"}, local={"time_scale": 30})
    text = job_yaml(stored)
    assert RunSpec.from_dict(read_yaml(text).data).to_dict() == stored
    assert "aws" not in text
    assert "setup: |\n" in text
    assert job_yaml({"name": "of a newer spotrun"}) == ""


@pytest.mark.parametrize(
    "keys",
    [
        {"envs": {"WANDB_API_KEY": "hunter2hunter2"}},
        {"envs": {"A": "hf_hunter2hunter2"}},
        {"train": {"script": "train.py", "args": ["--api-key", "hunter2", "--epochs", "3"]}},
        {"train": {"script": "train.py", "args": ["--password=hunter2"]}},
        {"train": {"script": "train.py", "args": ["--password", "a hunter2"]}},
        {"train": {"run": "curl -H 'X-Api-Key: hunter2' host | python train.py --api-key=hunter2"}},
        {"train": {"run": "python train.py --hub-token hunter2 --epochs 3"}},
        {"setup": "export TOKEN=hunter2\npip install x"},
        {"setup": "pip install https://me:hunter2@host/x"},
    ],
)
def test_no_secret_is_in_the_job_that_is_shown(keys: dict[str, object]):
    text = job_yaml(job_of(**keys))
    assert "hunter2" not in text
    assert "***" in text
    assert "epochs" not in str(keys) or "3" in text


def test_versions_and_the_commit_are_listed_each_once():
    history = History(spotrun="0.2.0", revision=Revision(commit="ab" * 20, changed=True), spec=job_of())
    history.running()
    for torch in ("2.5.0", "2.5.0", HOSTILE):
        history.step += 1
        history.after(60).commit(versions={"spotrun": "0.2.0", "torch": torch})
    text = report_page(history)
    cells = Page(text).cells
    assert ["spotrun", "0.2.0"] in cells
    assert ["git commit", "ab" * 20 + ", and changes that are not committed"] in cells
    assert next(row[1] for row in cells if row[:1] == ["torch"]).startswith("2.5.0, then <script>")
    assert "name: demo\nworkdir: /w\n" in text
    assert [tag for tag, _ in Page(text).tags].count("script") == 1
    assert "cannot read the job" in report_page(stormy())


@pytest.mark.parametrize("framework", ["lightning 2.6.0", "transformers 5.1.0"])
def test_the_framework_and_its_version_are_listed(framework: str):
    history = History(spec=job_of())
    history.running()
    history.step += 1
    history.after(60).commit(versions={"torch": "2.5.0", "framework": framework})
    assert ["framework", framework] in Page(report_page(history)).cells


# -- a metric over dollars ---------------------------------------------------------------------------------------------


def test_a_metric_is_drawn_over_what_had_been_paid_when_it_was_reached():
    history = learning()
    found = points(history.state, history.now, "val_loss")
    assert [value for _, value in found] == [0.9, 0.4, 0.3]
    # two instances at $0.36/h, the second billed from 10 s after it was asked for: 390 s, then 10 min more each epoch
    first, second, third = (paid for paid, _ in found)
    assert second - first == pytest.approx(0.36 * 601 / 3600, rel=0.01)
    assert first < second < third < float(summarise(history.state, history.now).total.cost_usd)
    text = report_page(history, "val_loss")
    (line,) = [a["points"] for tag, a in Page(text).tags if tag == "polyline" and (a["points"] or "").count(",") == 3]
    across = [float(pair.split(",")[0]) for pair in (line or "").split()]
    assert across == sorted(across)
    assert "val_loss over dollars: 0.9 after $" in text


def test_a_metric_that_no_epoch_told_is_refused_with_those_that_are_known():
    history = learning()
    with pytest.raises(SpecInvalid) as caught:
        report_page(history, "val_los")
    assert caught.value.hint == "did you mean val_loss?"
    with pytest.raises(SpecInvalid, match="no epoch has logged"):
        report_page(stormy(), "val_loss")


def test_a_hostile_metric_is_a_name_only():
    history = learning(HOSTILE)
    parsed = Page(report_page(history, HOSTILE))
    assert [tag for tag, _ in parsed.tags].count("script") == 1


def saving(*metrics: dict[str, float]) -> History:
    """A commit a minute with each of these; an interruption after the second loses nothing but its instance."""
    history = History()
    launch = history.running()
    for number, each in enumerate(metrics):
        history.step += 10
        history.after(60).commit(metrics=each)
        if number == 1:
            history.after(600).gone(launch)
            history.running()
    return history


def test_the_loss_of_each_commit_that_survives_is_drawn_over_time():
    history = saving({"loss": 2.0}, {"val_loss": 1.0}, {"loss": 1.5}, {"loss": 1.0})
    history.resume(walk_back=1)
    found = at_commits(history.state, history.now, "loss")
    assert [value for _, value in found] == [2.0, 1.5]
    first, last = (seconds for seconds, _ in found)
    assert last - first > 600
    text = report_page(history)
    assert "<h2>loss over time</h2>" in text
    assert "loss over time: 2 after" in text
    assert "<h2>val_loss over time</h2>" not in report_page(learning(), "val_loss")


@pytest.mark.parametrize(
    ("names", "chosen"),
    [
        (["val_loss", "loss", "train_loss"], "train_loss"),
        (["loss", "train_loss_step", "train/loss"], "train/loss"),
        (["val_loss", "Train/Loss"], "Train/Loss"),
        (["test_loss", "nll_loss"], "nll_loss"),
        (["accuracy", "val_loss"], "val_loss"),
        (["accuracy"], None),
        ([HOSTILE + "loss"], HOSTILE + "loss"),
    ],
)
def test_the_loss_that_is_drawn_is_the_training_s_where_there_is_one(names: list[str], chosen: str | None):
    history = saving({}, *[dict.fromkeys(names, value) for value in (1e308, -1e308)])
    assert training_loss(history.state) == chosen
    text = report_page(history)
    assert ("over time" in text) == (chosen is not None)
    assert "nan" not in text
    assert [tag for tag, _ in Page(text).tags].count("script") == 1


def test_a_line_through_many_values_keeps_the_last_one_and_few_between():
    drawn = over_time("loss", [(float(number), 1.0) for number in range(2001)])
    line = re.search('polyline points="([^"]*)"', drawn.text)
    assert line is not None
    assert line[1].count(",") == 667
    assert "1 after 33m20s" in drawn.text


# -- several runs ------------------------------------------------------------------------------------------------------


def test_the_page_of_several_runs_has_the_figures_of_the_comparison_and_asks_for_nothing():
    runs = [stormy(), learning()]
    text = compared(*runs)
    parsed = Page(text)
    told = compare.as_json([summarise(each.state, each.now) for each in runs])["runs"]
    rows = [row for row in parsed.rows if len(row) > 6 and row[0].get("scope") == "row"]
    assert [Decimal(row[5]["data-value"] or "") for row in rows] == [Decimal(run["cost_usd"]) for run in told]
    assert [float(row[3]["data-value"] or "") for row in rows] == [
        pytest.approx(run["ratio_to_first"], abs=1e-6) for run in told
    ]
    for tag, attributes in parsed.tags:
        assert tag not in ("link", "img", "iframe", "object", "embed", "base", "form")
        assert not {"src", "href", "action", "style"} & set(attributes)
    drawings = [a for _, a in parsed.tags if a.get("role") == "img"]
    assert len(drawings) == 2
    assert all(a["aria-label"] for a in drawings)
    assert "Trend" not in text
    assert "Trend of the last 2" in compared(*runs, with_trend=True)


def test_hostile_runs_are_compared_and_do_nothing():
    text = compared(hostile(), stormy())
    assert [tag for tag, _ in Page(text).tags].count("script") == 1
    assert all(character.isprintable() or character == "\n" for character in text)


def test_many_runs_are_cut_and_counted():
    text = compared(*[History() for _ in range(RUNS_MAX + 5)])
    assert f"the last {RUNS_MAX} of {RUNS_MAX + 5}" in text
    assert len(text.encode()) <= SIZE_MAX


def test_overlap_is_when_two_instances_are_there():
    def at(minutes: float):
        return START + timedelta(minutes=minutes)

    assert overlaps([(at(0), at(10)), (at(8), at(20)), (at(20), at(30))]) == [(at(8), at(10))]


def test_an_elastic_gang_has_its_sizes_with_their_time_and_cost():
    """Four are paid for an hour and a restore of 15 s, and two of them for half an hour more."""
    history = GangHistory(4, least=2)
    names = history.training_gang(4)
    assert summarise(history.state, history.now).by_members == ()
    history.after(3600).commit_shards(layout=Layout.REPLICATED)
    for name in names[2:]:
        history.lost(name)
    history.ready(*names[:2])
    history.start_gang(names[:2])
    history.meet()
    history.training()
    summary = summarise(history.after(1800).state, history.now)
    assert [(each.members, each.productive, each.usd) for each in summary.by_members] == [
        (4, timedelta(hours=1), Decimal("1.446")),
        (2, timedelta(minutes=30), Decimal("0.36")),
    ]
    said = "4 members trained for 1h00m ($1.4460), 2 members for 30m00s ($0.3600)"
    assert by_members(summary.by_members) == said
    assert said in Page(report_page(history)).texts["p"]
    half = {"members": 2, "productive_s": 1800.0, "usd": "0.360000000"}
    assert machine_readable.report(summary)["by_members"][1] == half
