"""What `spotrun bench` makes of what an agent says: rates, verdicts, dollars, and what later runs know of it."""

from __future__ import annotations

import io
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from rich.console import Console

from spotrun.bench.meter import BLOCKS, WARM_UP_STEPS, Measurement, Meter
from spotrun.bench.page import bench_page
from spotrun.bench.report import Progress, as_json, cost_of, findings, time_of, view
from spotrun.bench.result import BenchRow, Prices, TrialOutcome, best, efficiency, fate_of
from spotrun.bench.scheduling import CENT, MAX_PARALLEL, next_ones, shares
from spotrun.bench.trials import Arguments, BenchTrial, spec_of, trials
from spotrun.bench.verdict import cpus_gain, device_gain, loading_gain, verdict
from spotrun.errors import SpecInvalid
from spotrun.folder.bench_record import FOLDER, BenchResult, benched, digest_of, keep, steps_of_the_first
from spotrun.folder.status_objects import AgentStatus, Gpu, TrainingStatus, Usage
from spotrun.market.world import World
from spotrun.policy.facts import Facts
from spotrun.policy.throughput import BENCH_DOUBT, speeds
from spotrun.report.unattended import left_alone
from spotrun.report.view import Screen
from spotrun.run import events as ev
from spotrun.run.events import BENCH, SWEEP
from spotrun.spec.arguments import Script
from spotrun.spec.file import load_spec
from spotrun.spec.kinds import NamedType
from spotrun.spec.model import RunSpec
from spotrun.spec.values import Accelerators
from spotrun.spec.varied_arguments import unvaried
from spotrun.store.opening import open_store
from tests.support.called_spotrun import Spotrun
from tests.support.called_spotrun import spotrun as spotrun
from tests.support.decisions import decided, events_of, instance, spec
from tests.support.histories import SPOT, START, History, offering
from tests.support.stored_runs import store_run

T4, V100 = "T4:1", "V100:1"
V100_KIND, T4_KIND = Accelerators("V100"), Accelerators("T4")
USAGE = Usage(
    cpus=16,
    cpu_share=0.97,  # most of it by other programs
    own_cpus=8,
    own_cpu_share=0.25,
    memory_bytes=16 << 30,
    memory_used_bytes=4 << 30,
    gpus=(Gpu(share=0.5, memory_bytes=16 << 30, memory_used_bytes=3 << 30),),
)


MEASURED = Measurement(steps=60, samples=960, seconds=6.0, low=9.0, high=11.0, data_wait=0.25)


def wanted(*kinds: str) -> RunSpec:
    return spec(resources={"accelerators": {"any_of": list(kinds)}})


def status(steps: int, *, step_s: float = 0.1, wait: float = 0.4, launch: int = 1, batch: int = 16) -> AgentStatus:
    trained = TrainingStatus(seconds=steps * step_s, waited_s=steps * step_s * wait, steps=steps, samples=steps * batch)
    return AgentStatus(
        launch=launch, phase="train", at=START, sequence=steps, epochs=2, batches=500, batch=50, step=50, usage=USAGE,
        trained=trained,
    )  # fmt: skip


def row(
    kind: str | None = "V100", *, spot: str = "1", seconds: float = 6.0, wait: float = 0.0, **trial: object
) -> BenchRow:
    what = None if kind is None else Accelerators(kind, int(str(trial.get("devices", 1))))
    return BenchRow(
        trial=BenchTrial(kind=what, **trial),  # type: ignore[arg-type]
        fate=TrialOutcome.MEASURED,
        prices=Prices(spot=Decimal(spot), on_demand=Decimal(spot) * 3),
        instance_type="p3.2xlarge",
        accelerators="" if what is None else str(what),
        measured=replace(MEASURED, seconds=seconds, data_wait=wait, steps_total=36_000.0),
        usd=Decimal("0.02"),
    )


# -- measuring ---------------------------------------------------------------------------------------------------------


def test_the_beginning_is_left_out():
    meter = Meter(steps=60)
    meter.show(status(0))
    meter.show(status(WARM_UP_STEPS, step_s=9.0))  # a first step that compiles
    base = status(WARM_UP_STEPS, step_s=9.0).trained
    for more in range(6, 66, 6):
        now = TrainingStatus(
            seconds=base.seconds + more * 0.1,
            waited_s=base.waited_s + more * 0.04,
            steps=base.steps + more,
            samples=base.samples + more * 16,
        )
        assert not meter.enough
        meter.show(replace(status(more), trained=now))
    found = meter.measured
    assert meter.enough
    assert found is not None
    assert (found.steps, found.samples) == (60, 960)
    assert (found.steps_per_s, found.samples_per_s) == pytest.approx((10.0, 160.0))
    assert (found.data_wait, found.low, found.high) == pytest.approx((0.4, 10.0, 10.0))
    assert (found.gpu_share, found.gpu_memory_bytes) == (0.5, 3 << 30)
    assert found.steps_total == 50 / (50 / 500) * 2
    assert found.samples_total == pytest.approx(16_000)


def test_machine_that_other_programs_keep_busy_needs_no_more_vcpus():
    meter = Meter(steps=60)
    for steps in range(0, 90, 6):
        meter.show(status(steps))
    assert meter.measured is not None
    assert (meter.measured.cpus, meter.measured.cpu_share) == (8, 0.25)
    assert cpus_gain(meter.measured) is None
    assert "it keeps its CPUs 25% busy: first try more workers" in verdict(meter.measured)


def test_restarted_agent_is_measured_again():
    for later in (status(20, launch=2, step_s=0.2), status(5, step_s=0.2)):
        meter = Meter(steps=60)
        for steps in range(0, 50, 6):
            meter.show(status(steps))
        assert meter.measured is not None
        meter.show(later)
        assert meter.measured is None
        for steps in range(21, 90, 6):
            meter.show(status(steps, step_s=0.2, launch=later.launch))
        assert meter.measured is not None
        assert meter.measured.steps_per_s == pytest.approx(5.0)


def test_a_word_said_twice_counts_once_and_slow_steps_fill_blocks_too():
    meter = Meter(steps=BLOCKS)
    for steps in range(WARM_UP_STEPS, WARM_UP_STEPS + BLOCKS + 1):
        assert not meter.enough
        meter.show(status(steps, step_s=30.0))
        meter.show(status(steps, step_s=30.0))
    assert meter.enough
    assert meter.steps == BLOCKS


# -- what follows from it ----------------------------------------------------------------------------------------------


def test_amdahl_bounds_both_remedies():
    waits = replace(MEASURED, data_wait=0.5)
    assert (device_gain(waits), loading_gain(waits)) == (2.0, 2.0)
    two_parts = replace(MEASURED, data_wait=0.0)
    assert device_gain(two_parts) == float("inf")
    busy = replace(MEASURED, data_wait=0.8, cpus=8, cpu_share=0.97)
    assert cpus_gain(busy) == pytest.approx(1 / (0.2 + 0.8 * 8 / 16))
    assert cpus_gain(replace(busy, cpu_share=0.3)) is None


@pytest.mark.parametrize(
    ("wait", "cpu_share", "gpu_share", "said"),
    [
        (0.7, 0.95, None, "input-bound: a faster device gains at most 1.4×; 8 more vCPUs gain 1.5× if the loaders"),
        (0.7, 0.2, None, "faster loading gains at most 3.3× (it keeps its CPUs 20% busy: first try more workers"),
        (0.1, 0.2, None, "partly input-bound: a faster device gains at most 10.0×"),
        (0.01, 0.2, 0.97, "compute-bound: faster loading gains at most 1.0×, a faster device may gain more"),
        (0.01, 0.2, 0.4, "its GPUs compute 40% of the time: try a larger batch, or less Python"),
        (0.0, None, None, "compute-bound"),
        (1.0, None, None, "a faster device gains at most 1.0×; faster loading gains at most over 100×"),
    ],
)
def test_the_verdict(wait: float, cpu_share: float | None, gpu_share: float | None, said: str):
    measured = replace(MEASURED, data_wait=wait, cpus=8, cpu_share=cpu_share, gpu_share=gpu_share)
    assert said in verdict(measured)


def test_scaling_is_against_one_device_with_the_same_batch():
    one, other = row(devices=1, batch=16), row(devices=1, batch=64)
    four = row(devices=4, batch=16, seconds=6.0 / 3.3)
    rows = [one, other, four]
    assert efficiency(four, rows) == pytest.approx(3.3 / 4)
    assert efficiency(one, rows) is None
    assert efficiency(four, [other, four]) is None
    assert efficiency(row("T4", devices=4, batch=16), rows) is None


def test_dollars_of_the_whole_job_and_shares_of_a_base():
    slow, fast = row("T4", spot="0.2", seconds=12.0), row("V100", spot="1")
    assert fast.hours() == pytest.approx(1.0)
    assert fast.usd_of_job(fast.prices.spot) == pytest.approx(1.0)
    assert fast.hours(samples=576_000 / 2) == pytest.approx(0.5)
    assert slow.per_usd(slow.prices.spot) == pytest.approx(160 / 2 * 3600 / 0.2)
    assert (time_of(fast, slow), cost_of(fast, slow)) == pytest.approx((0.5, 2.5))
    assert best([slow, fast]) is slow
    assert best([]) is None
    assert "cheapest: T4:1" in findings([slow, fast], None)[2]


def test_running_out_of_memory_is_a_row():
    for said in ("torch.OutOfMemoryError: CUDA out of memory. Tried", "ended by the OOM-killer: out of memory"):
        assert fate_of(said) is TrialOutcome.OUT_OF_MEMORY
    assert fate_of("ValueError: no such file") is TrialOutcome.FAILED


def test_rows_for_programs_and_as_a_page():
    lost = BenchRow(
        trial=BenchTrial(kind=T4_KIND, batch=4096),
        fate=TrialOutcome.OUT_OF_MEMORY,
        prices=Prices(),
        reason="CUDA out of memory <b>",
    )
    rows = [row(batch=16, wait=0.5), row("A100", batch=16), lost]
    told = as_json(rows, None, "V100:1")
    assert [each["fate"] for each in told["rows"]] == ["measured", "measured", "out of memory"]
    assert told["rows"][0]["gains_at_most"] == {"faster_device": 2.0, "faster_loading": 2.0, "8_more_vcpus": None}
    assert told["rows"][0]["cost_of_base"] == 1.0
    assert told["rows"][2]["measured"] is None
    page = bench_page(rows, "job", None, None)
    assert "out of memory &lt;b&gt;" in page
    assert bench_page([lost], "job", None, None)


# -- trials ------------------------------------------------------------------------------------------------------------


def script_job(tmp_path: Path, args: list[str], source: str = "", **more: object) -> RunSpec:
    (tmp_path / "train.py").write_text(source)
    return spec(workdir=str(tmp_path), train={"script": "train.py", "args": args}, **more)


def trained_with(job: RunSpec, trial: BenchTrial, names: Arguments | None = None) -> tuple[str, ...] | str | None:
    found = spec_of(job, Script(job), trial, names or Arguments(), timedelta(minutes=9), Decimal(2))
    return found.train.run or found.train.args


def test_each_type_with_each_batch_and_number_of_devices():
    job = wanted(T4, V100)
    named = [each.name for each in trials(job, (), (), (16, 64), ())]
    assert named == ["T4:1, batch 16", "T4:1, batch 64", "V100:1, batch 16", "V100:1, batch 64"]
    assert [each.name for each in trials(job, (V100_KIND,), (1, 4), (), ("16-mixed",))] == [
        "V100:1, 16-mixed",
        "V100:4, 16-mixed",
    ]
    assert [each.name for each in trials(job, (NamedType("c5.xlarge"),), (2,), (), ())] == ["c5.xlarge, 2 devices"]
    assert len(trials(job, (T4_KIND, T4_KIND), (), (), ())) == 1


def test_the_value_goes_where_the_script_has_it(tmp_path: Path):
    trial = BenchTrial(kind=V100_KIND, batch=64)
    for args, expected in (
        (["--batch-size", "16", "--lr", "1"], ("--batch-size", "64", "--lr", "1")),
        (["--batch_size=16"], ("--batch_size=64",)),
        (["data.batch_size=16"], ("data.batch_size=64",)),
    ):
        assert trained_with(script_job(tmp_path, args), trial) == expected
    in_source = script_job(tmp_path, [], 'parser.add_argument("--bs", type=int)')
    assert trained_with(in_source, trial) == ("--bs", "64")
    assert trained_with(in_source, trial, Arguments(batch="--my-batch")) == ("--my-batch", "64")
    with pytest.raises(SpecInvalid, match=r"train\.py has no argument called --batch-size") as refused:
        trained_with(script_job(tmp_path, ["--lr", "1"]), trial)
    assert refused.value.hint == "give its name: --batch-arg --my-name"


def test_command_must_have_the_varied_argument_once():
    trial = BenchTrial(kind=V100_KIND, batch=64)
    command = "torchrun train.py --batch-size 16 --lr 0.1 && echo"
    assert trained_with(spec(train={"run": command}), trial) == "torchrun train.py --batch-size 64 --lr 0.1 && echo"
    for wrong in ("python train.py", "a --batch-size 1; b --batch-size=2"):
        with pytest.raises(SpecInvalid, match=r"the command under run (lacks|has) this argument"):
            trained_with(spec(train={"run": wrong}), trial)


def test_devices_are_those_of_the_type_and_an_argument_only_where_there_is_one(tmp_path: Path):
    two = BenchTrial(kind=Accelerators("V100", 2), devices=2)
    assert trained_with(script_job(tmp_path, []), two) == ()
    assert trained_with(script_job(tmp_path, ["--devices", "1"]), two) == ("--devices", "2")
    with pytest.raises(SpecInvalid, match="--devices"):
        trained_with(script_job(tmp_path, []), BenchTrial(kind=NamedType("c5.xlarge"), devices=2))


def test_the_run_is_short_calm_and_limited(tmp_path: Path):
    policy = {"deadline": "8h", "strategy": "on_demand_only"}
    job = script_job(tmp_path, [], policy=policy, budget={"max_usd": 40}, local={"time_scale": 20})
    found = spec_of(job, Script(job), BenchTrial(kind=V100_KIND), Arguments(), timedelta(minutes=9), Decimal(2))
    assert (found.name, found.max_duration, found.budget.max_usd) == (f"{job.name}-bench", timedelta(minutes=9), 2)
    assert (found.policy.deadline, found.local.time_scale, found.retry.max_restarts) == (None, 1.0, 0)
    assert found.checkpoint.uri == job.checkpoint.uri
    assert RunSpec.from_dict(found.to_dict()) == found, "as the run reads it"


# -- what later runs know ----------------------------------------------------------------------------------------------


def known(kind: str, step_s: float, samples: float | None = 16.0) -> BenchResult:
    return BenchResult(kind=kind, step_s=step_s, samples=samples, work_s=3600.0, at=START, run="job-bench-0123456789")


def test_the_record_is_that_of_exactly_this_job(tmp_path: Path):
    store, job = open_store(str(tmp_path)), wanted(T4, V100)
    keep(store, job, known(T4, 0.4))
    keep(store, job, known(T4, 0.3))
    keep(store, job, known(V100, 0.1))
    assert {kind: each.step_s for kind, each in benched(store, job).items()} == {T4: 0.3, V100: 0.1}
    train = job.train.model_copy(update={"run": "python other.py"})
    assert benched(store, job.model_copy(update={"train": train})) == {}
    assert benched(store, job.model_copy(update={"name": "other"})) == {}


@pytest.mark.parametrize("data", [b"", b"{", b'{"kind": "T4:1"}', b"[" * 100_000])
def test_unreadable_measurement_is_skipped(tmp_path: Path, data: bytes):
    store, job = open_store(str(tmp_path)), wanted(T4, V100)
    keep(store, job, known(V100, 0.1))
    (path,) = store.list(FOLDER + "/")
    store.put_status(path.key, data)
    assert benched(store, job) == {}


def test_more_devices_train_more_in_a_step():
    kinds = (Accelerators("V100"), Accelerators("V100", 4), T4_KIND)
    found = {each.kind: each for each in (known("V100:1", 0.1), known("V100:4", 0.11, samples=64.0))}
    assert steps_of_the_first(kinds, found) == pytest.approx({"V100:1": 0.1, "V100:4": 0.0275})
    assert steps_of_the_first(kinds, {}) == {}


def test_a_choice_goes_by_the_bench_until_it_has_measured():
    history, job = History(), wanted(T4, V100)
    state = replace(history.state, created=replace(history.state.created, benched={T4: 1.0, V100: 0.8}))
    there = tuple(replace(offering(SPOT, "1"), accelerators=kind) for kind in (T4, V100))
    found = speeds(Facts(state, job, World(offerings=there, instances=()), history.now))
    assert found[V100_KIND].times == pytest.approx(1.25)
    assert found[V100_KIND].spread == BENCH_DOUBT / 2


# -- what plan knows of it ---------------------------------------------------------------------------------------------


@pytest.fixture
def planned_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A job that trains with batches of 16, on the local cloud, where time passes twice as fast."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("")
    path = tmp_path / "net.yaml"
    path.write_text(
        "name: net\ntrain: {script: train.py, args: [--batch-size, '16']}\ncheckpoint: {uri: runs}\n"
        "resources: {accelerators: 'V100:1'}\nlocal: {time_scale: 2, boot: 20s}\n"
    )
    return path


def kept_for(path: Path, batch: int, **facts: Any) -> None:
    """A bench of the job with that batch."""
    job = load_spec(path, {}, "runs", ["--batch-size", str(batch)])
    asked = digest_of(unvaried(job))
    found = replace(known(V100, 0.5), job=asked, otherwise=f"batch {batch}", args=job.train.args, **facts)
    keep(open_store("runs"), job, found)


@pytest.mark.exhaustive
def test_plan_goes_by_the_start_and_the_doubt_of_a_bench(planned_job: Path, spotrun: Spotrun):
    kept_for(planned_job, 16, start_s=40.0, doubt=0.23)
    said = spotrun("plan", "net.yaml", "--lifetimes", 1)
    assert (
        f"note: how long the work is (within 23%) and how long a start takes was measured on {START:%Y-%m-%d}, "
        "by the bench job-bench-0123456789" in said.err
    )
    words = " ".join(said.out.split())
    assert "2h00m of work" in words, "an hour here is two of a run whose time passes twice as fast"
    assert "a changeover (boot, set-up, restore) takes 1m40s or 1.2 x less or more, as measured by a bench" in words
    assert "the work is known within 23%" in words
    kept_for(planned_job, 16, doubt=0.01)
    words = " ".join(spotrun("plan", "net.yaml", "--lifetimes", 1).out.split())
    assert "takes 6m or 1.2 x less or more, not measured yet" in words
    assert f"the work is known within {BENCH_DOUBT:.0%}" in words, "it was one instance, for minutes"


@pytest.mark.exhaustive
def test_a_bench_with_another_batch_is_named_with_what_to_type(planned_job: Path, spotrun: Spotrun):
    kept_for(planned_job, 64)
    said = spotrun("plan", "net.yaml")
    assert said.code == SpecInvalid.exit_code
    assert "the training time of this job is not known" in said.err
    line = f"the bench of {START:%Y-%m-%d} trained with batch 64: `spotrun plan net.yaml -- --batch-size 64` uses it"
    assert f"try: {line}; or give --work 3h" in said.err
    assert "2h00m of work" in spotrun("plan", "net.yaml", "--lifetimes", 1, "--", "--batch-size", 64).out
    planned_job.write_text(planned_job.read_text().replace("'16'", "'16', --lr, '1'"))
    assert "batch 64" not in spotrun("plan", "net.yaml").err, "that job trains something else"


def test_a_command_that_was_benched_with_another_batch_is_shown(planned_job: Path, spotrun: Spotrun):
    text, given = planned_job.read_text(), "train: {script: train.py, args: [--batch-size, '16']}"
    planned_job.write_text(text.replace(given, "train: {run: sh train --batch-size 64}"))
    job = load_spec(planned_job, {}, "runs")
    planned_job.write_text(text.replace(given, "train: {run: sh train --batch-size 16}"))
    asked = digest_of(unvaried(job))
    found = replace(known(V100, 0.5), job=asked, otherwise="batch 64", command=str(job.train.run))
    keep(open_store("runs"), job, found)
    said = spotrun("plan", "net.yaml").err
    assert "with batch 64: to use it, set train: {run: 'sh train --batch-size 64'} in the job" in said


def test_jobs_that_differ_by_what_a_bench_varies_are_one(tmp_path: Path):
    for args in (["--batch-size", "16"], ["--batch_size=8"], ["data.batch_size=8", "--gpus", "2"], []):
        assert unvaried(script_job(tmp_path, ["--lr", "1", *args, "--quick"])).train.args == ("--lr", "1", "--quick")
    assert unvaried(script_job(tmp_path, [])).train.args == ()
    assert unvaried(spec(train={"run": "sh a --bs 4 --lr 1"})).train.run == "sh a  --lr 1"


def test_uneven_blocks_are_a_doubt():
    even, uneven = Meter(steps=60), Meter(steps=60)
    seconds = 0.0
    for steps in range(WARM_UP_STEPS, WARM_UP_STEPS + 61, 5):
        even.show(status(steps))
        seconds += 0.5 * (1.5 if steps % 10 else 0.5)
        uneven.show(replace(status(steps), trained=replace(status(steps).trained, seconds=seconds)))
    assert even.measured is not None
    assert uneven.measured is not None
    assert even.measured.doubt == pytest.approx(0.0, abs=1e-9)
    assert uneven.measured.doubt == pytest.approx(2 * 0.5 / 12**0.5, rel=0.01), "half of a step, by twelve blocks"


# -- several at once ---------------------------------------------------------------------------------------------------


def test_one_of_each_type_is_rented_at_once_unless_told_otherwise():
    kinds = [T4_KIND, T4_KIND, V100_KIND, V100_KIND]
    assert next_ones(kinds, [], None) == [0, 2]
    assert next_ones(kinds[1:], [V100_KIND], None) == [0]
    assert next_ones([T4_KIND], [T4_KIND], None) == []
    assert next_ones(kinds, [], 1) == [0]
    assert next_ones(kinds, [], 3) == [0, 2, 1], "of each type one first"
    assert next_ones([None, None], [None], 2) == [0]
    many = [Accelerators("V100", number) for number in range(1, 20)]
    assert len(next_ones(many, [], None)) == MAX_PARALLEL


@given(
    left=st.decimals(0, 1000, places=2),
    leasts=st.lists(st.none() | st.decimals("0.01", 50, places=2), min_size=1, max_size=6),
)
def test_concurrent_trials_never_spend_more_than_is_left(left: Decimal, leasts: list[Decimal | None]):
    found = shares(left, leasts)
    assert sum(found) <= left
    assert all(share >= (least or 0) for share, least in zip(found, leasts, strict=False))
    assert len(found) == len(leasts) or sum(least or CENT for least in leasts[: len(found) + 1]) > left


def test_a_dearer_type_gets_more_of_the_budget():
    assert shares(Decimal(4), [Decimal("0.10"), Decimal("0.30")]) == [Decimal(1), Decimal(3)]
    assert shares(Decimal("0.35"), [Decimal("0.10"), Decimal("0.30")]) == [Decimal("0.35")]
    assert shares(Decimal("0.05"), [Decimal("0.10")]) == []


def test_each_that_is_measured_has_a_line_of_its_own(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    one = Progress(BenchTrial(kind=T4_KIND), 0, 3, 23, 60, None)
    other = Progress(BenchTrial(kind=V100_KIND, batch=16), 2, 3, 0, 60, "the instance boots")
    with view() as plainly:
        plainly.show([one])
        plainly.show([one, other])
    assert capsys.readouterr().err.splitlines() == ["1 of 3: T4:1", "3 of 3: V100:1, batch 16"]
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    console = Console(width=60, file=io.StringIO())
    with view() as live:
        assert isinstance(live, Screen)
        console.print(live.render([one, other]))
    assert isinstance(console.file, io.StringIO)
    shown = [line[2:].rstrip() for line in console.file.getvalue().splitlines()]
    assert shown == ["1 of 3: T4:1, 23 of 60 steps", "3 of 3: V100:1, batch 16, the instance boots"]


# -- a bench whose command was killed ----------------------------------------------------------------------------------


def test_an_instance_of_a_bench_lives_hardly_longer_than_it_and_is_not_replaced():
    """Of any other run it lives long enough for its successor; and a life of eight minutes would not pay its boot."""
    wanted = spec(max_duration="5m")
    (usual,) = events_of(decided(History(), wanted))
    history = History(part_of=BENCH)
    (intent,) = events_of(decided(history, wanted))
    assert isinstance(usual, ev.LaunchIntended)
    assert isinstance(intent, ev.LaunchIntended)
    assert (intent.time_to_live_s, usual.time_to_live_s) == (8 * 60, 20 * 60)
    number = history.write(intent)
    history.record(number)
    history.start(number)
    history.resume()
    history.training()
    here = instance(history, number)
    history.after(4 * 60 + 50)
    assert not events_of(decided(history, wanted, [here])), "no other is asked for, although its life nearly ends"
    history.after(11)
    (drain,) = events_of(decided(history, wanted, [here]))
    assert isinstance(drain, ev.DrainRequested)
    assert drain.reason == "max_duration is over"


def test_no_command_advises_to_resume_a_bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spotrun: Spotrun):
    monkeypatch.setenv("SPOTRUN_STORE", str(tmp_path))
    history = History(name="net-bench", part_of=BENCH, spec=spec().to_dict())
    history.running()
    store_run(tmp_path, history)
    for verb in ("status", "why"):
        said = " ".join(spotrun(verb, "net-bench").out.split())
        assert "the bench that created it is over: `spotrun down net-bench-0123456789` ends it" in said
        assert "resume" not in said
    alone = left_alone("net-bench", history.state)
    assert "i-1" in alone
    assert alone.endswith("The bench that created it is over: `spotrun down net-bench` ends it now")
    refused = spotrun("resume", "net-bench", "-y")
    assert refused.code == SpecInvalid.exit_code
    assert "`spotrun down net-bench-0123456789` ends any instance" in refused.err
    assert "ResumeRequested" not in spotrun("events", "net-bench").out


def test_a_trial_of_a_sweep_is_carried_on_by_the_command_of_the_sweep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spotrun: Spotrun
):
    monkeypatch.setenv("SPOTRUN_STORE", str(tmp_path))
    history = History(name="net-sweep-1", part_of=f"{SWEEP}net-sweep", spec=spec().to_dict())
    history.running()
    store_run(tmp_path, history)
    said = " ".join(spotrun("status", "net-sweep-1").out.split())
    assert "has no runner; after the command that began the sweep net-sweep is repeated, it" in said
    assert left_alone("net-sweep-1", history.state).endswith(
        "The command that began the sweep net-sweep continues it, `spotrun down net-sweep-1` ends it now"
    )
