"""A cluster's answers, read; and what is asked of it. The queue is on paper (tests/support/slurm_queue.py)."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from spotrun.cli.app import app
from spotrun.clouds.notices import Blind
from spotrun.clouds.slurm import listener, notices
from spotrun.clouds.slurm.cloud import CLOUD
from spotrun.clouds.slurm.commands import Answer, Programs, environment
from spotrun.clouds.slurm.config import SlurmConfig, config_of
from spotrun.clouds.slurm.driver import SlurmDriver
from spotrun.clouds.slurm.queue import LEFT_TO_SLURM, LIST
from spotrun.clouds.slurm.start import LISTENER, UNENDED, Assignment, made, sweep
from spotrun.clouds.slurm.submission import submission
from spotrun.errors import (
    AccessDenied,
    CloudError,
    CloudNotInstalled,
    CloudUnavailable,
    InsufficientCapacity,
    LaunchTokenSpent,
    QuotaExceeded,
    SpecInvalid,
)
from spotrun.instance import EndedBy, Instance, InstanceState, LaunchRequest
from spotrun.policy.lives import TIME_TO_LIVE
from spotrun.run import events as ev
from spotrun.runner.creation import prepare_run
from spotrun.spec.file import SpecFileInvalid, load_spec
from tests.support.decisions import decided, events_of
from tests.support.histories import History
from tests.support.launch_requests import requested
from tests.support.manual_clock import ManualClock
from tests.support.slurm_jobs import CHEAP, PARTITIONS, SURE
from tests.support.slurm_queue import Partition, SlurmQueue

UID = "0123456789"
JOB = """\
train: {run: "true"}
resources: {cloud: slurm}
slurm:
  partitions:
    - {name: cheap, capacity: spot, usd_per_node_hour: 0.10, max_time: 12h}
    - {name: sure, capacity: on_demand, usd_per_node_hour: 0}
"""


@pytest.fixture(autouse=True)
def _logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPOTRUN_SLURM_LOGS", str(tmp_path / "logs"))


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def queue(clock: ManualClock) -> SlurmQueue:
    return SlurmQueue(clock, [Partition("cheap", nodes=1), Partition("sure")])


def driver(queue: SlurmQueue, clock: ManualClock, **settings: Any) -> SlurmDriver:
    return SlurmDriver(SlurmConfig(partitions=PARTITIONS, **settings), clock, queue)


def request(launch: int = 1, partition: Any = CHEAP, uri: str = "/shared/runs/n-0123456789") -> LaunchRequest:
    return requested(partition.offering, launch, UID, run_uri=uri, time_to_live=timedelta(hours=10))


def job(folder: Path, text: str = JOB) -> Path:
    path = folder / "job.yaml"
    path.write_text(text)
    return path


# -- the queue ----------------------------------------------------------------------------------------------------


def test_job_that_waits_too_long_in_a_full_partition_ends_without_a_runner(
    queue: SlurmQueue, clock: ManualClock
) -> None:
    ours = driver(queue, clock, wait=timedelta(minutes=3))
    ours.launch(request(1))
    waiting = ours.launch(request(2))
    clock.advance(120)
    assert ours.describe(waiting.instance_id) == waiting
    assert waiting.state is InstanceState.PENDING
    assert waiting.billed_from is None
    clock.advance(90)
    gone = ours.describe(waiting.instance_id)
    assert gone is not None
    assert gone.never_ran
    assert gone.ended_by is EndedBy.CLOUD, "a pool without capacity"
    assert gone.prices == ()
    with pytest.raises(InsufficientCapacity, match="no node of cheap was free in time"):
        ours.launch(request(2))
    assert not any(call[0] == "scancel" for call in queue.calls)


@pytest.mark.parametrize("held", [True, False])
def test_job_that_slurm_cannot_schedule_is_cancelled_when_its_wait_is_over(
    queue: SlurmQueue, clock: ManualClock, held: bool
) -> None:
    queue.partitions["cheap"].settings["State"] = "UP" if held else "DOWN"
    waiting = driver(queue, clock).launch(request(1)) if not held else _held(queue, clock)
    clock.advance(299)
    assert driver(queue, clock, wait=timedelta(0)).describe(waiting.instance_id) == waiting, "its own wait counts"
    clock.advance(1 + LEFT_TO_SLURM.total_seconds())
    anybody = SlurmDriver(SlurmConfig(), clock, queue)
    anybody.instances()
    gone = anybody.describe(waiting.instance_id)
    assert gone is not None
    assert gone.never_ran
    assert gone.ended_by is EndedBy.CLOUD, "a pool without capacity: the next partition is asked"
    with pytest.raises(InsufficientCapacity, match="no node of cheap was free in time"):
        driver(queue, clock).launch(request(1))


def _held(queue: SlurmQueue, clock: ManualClock) -> Instance:
    ours = driver(queue, clock)
    first = ours.launch(request(2))
    waiting = ours.launch(request(1))
    queue.job(waiting.token).held = True
    ours.terminate(first.instance_id)
    return waiting


def test_job_that_begins_while_its_wait_is_cancelled_goes_on(queue: SlurmQueue, clock: ManualClock) -> None:
    queue.partitions["cheap"].settings["State"] = "DOWN"
    ours = driver(queue, clock)
    waiting = ours.launch(request())
    clock.advance(300 + LEFT_TO_SLURM.total_seconds())
    listed = queue.run(LIST)
    queue.partitions["cheap"].settings["State"] = "UP"
    queue.job(waiting.token).deadline += timedelta(hours=1)
    queue.answers["squeue"] = [listed]
    assert ours.instances() == [waiting]
    assert [each.state for each in queue.jobs] == ["RUNNING"]


def test_job_cancelled_in_the_queue_is_ended_by_its_user(queue: SlurmQueue, clock: ManualClock) -> None:
    queue.partitions["cheap"].settings["State"] = "DOWN"
    ours = driver(queue, clock)
    waiting = ours.launch(request())
    ours.terminate(waiting.instance_id)
    gone = ours.describe(waiting.instance_id)
    assert gone is not None
    assert gone.ended_by is EndedBy.USER


def test_a_job_whose_number_was_lost_on_its_way_is_found_by_its_name(queue: SlurmQueue, clock: ManualClock) -> None:
    queue.lost.add("sbatch")
    with pytest.raises(CloudUnavailable):
        driver(queue, clock).launch(request())
    assert driver(queue, clock).launch(request()).instance_id == "job-1"
    assert len(queue.jobs) == 1


def test_of_two_jobs_with_one_token_the_first_counts_and_the_other_is_cancelled(
    queue: SlurmQueue, clock: ManualClock
) -> None:
    words = submission(request(), SlurmConfig(partitions=PARTITIONS), CHEAP)
    queue.run(words)
    queue.run(words)
    ours = driver(queue, clock)
    assert [each.instance_id for each in ours.instances()] == ["job-1"]
    assert ours.launch(request()).instance_id == "job-1"
    assert [each.state for each in queue.jobs] == ["RUNNING", "CANCELLED"]


def test_a_second_job_of_a_spent_token_is_cancelled_too(queue: SlurmQueue, clock: ManualClock) -> None:
    ours = driver(queue, clock)
    ours.terminate(ours.launch(request()).instance_id)
    queue.run(submission(request(), SlurmConfig(partitions=PARTITIONS), CHEAP))
    with pytest.raises(LaunchTokenSpent):
        ours.launch(request())
    assert {each.state for each in queue.jobs} == {"CANCELLED"}


@pytest.mark.parametrize(
    ("state", "reason", "by"),
    [
        ("PREEMPTED", "None", EndedBy.CLOUD),
        ("CANCELLED", "None", EndedBy.USER),
        ("COMPLETED", "None", EndedBy.ITSELF),
        ("FAILED", "NonZeroExitCode", EndedBy.ITSELF),
        ("FAILED", "JobLaunchFailure", EndedBy.FAULT),
        ("TIMEOUT", "TimeLimit", EndedBy.TIME_TO_LIVE),
        ("NODE_FAIL", "NodeDown", EndedBy.FAULT),
        ("OUT_OF_MEMORY", "OutOfMemory", EndedBy.FAULT),
    ],
)
def test_slurm_s_own_word_says_who_ended_a_job(
    queue: SlurmQueue, clock: ManualClock, state: str, reason: str, by: EndedBy
) -> None:
    ours = driver(queue, clock)
    launched = ours.launch(request())
    clock.advance(100)
    queue.end(launched.token, state, reason)
    clock.advance(2)
    ended = ours.describe(launched.instance_id)
    assert ended is not None
    assert (ended.state, ended.ended_by) == (InstanceState.TERMINATED, by)
    assert ended.billed_from == launched.launched_at
    assert ended.ended_at is not None
    assert (ended.ended_at - launched.launched_at).total_seconds() == 100
    assert ended.end_reason.startswith(state)


def test_a_job_that_is_being_cleaned_up_is_stopping_and_a_new_word_is_a_living_job(
    queue: SlurmQueue, clock: ManualClock
) -> None:
    ours = driver(queue, clock)
    launched = ours.launch(request())
    for word, state in (("COMPLETING", InstanceState.STOPPING), ("LEVITATING", InstanceState.RUNNING)):
        queue.job(launched.token).state = word
        clock.advance(2)
        seen = ours.describe(launched.instance_id)
        assert seen is not None
        assert seen.state is state


def test_jobs_of_other_programs_are_none_of_ours_whatever_they_are_called(
    queue: SlurmQueue, clock: ManualClock
) -> None:
    rows = (
        "7|RUNNING|cheap|1|1|2|None|n1|a job|(null)",
        "8|RUNNING|cheap|1|1|2|None|n1|a|b|spotrun:0123456789?launch=1",
        "9|RUNNING|cheap|1|1|2|None|n1|x|spotrun:0123456789?launch=one&life=x",
        "10_[1-5]|PENDING|cheap|1|N/A|N/A|None||x|spotrun:",
        "",
    )
    queue.answers["squeue"] = [Answer(0, "\n".join(rows), "")]
    assert driver(queue, clock).instances() == []


def test_a_queue_that_cannot_be_seen_is_no_empty_one(queue: SlurmQueue, clock: ManualClock) -> None:
    for words in ("Socket timed out on send/recv operation", "something that nobody has read before"):
        queue.answers["squeue"] = [Answer(1, "", f"slurm_load_jobs error: {words}")]
        with pytest.raises(CloudUnavailable, match=words):
            driver(queue, clock).instances()


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ("Unable to contact slurm controller (connect failure)", CloudUnavailable),
        ("Invalid account or account/partition combination specified", AccessDenied),
        ("User's group not permitted to use this partition", AccessDenied),
        ("Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)", QuotaExceeded),
        ("Required partition not available (inactive or drain)", InsufficientCapacity),
        ("Invalid partition name specified", CloudError),
        ("Invalid generic resource (gres) specification", CloudError),
    ],
)
def test_each_refusal_of_sbatch_is_one_of_our_errors(
    queue: SlurmQueue, clock: ManualClock, words: str, error: type[CloudError]
) -> None:
    queue.answers["sbatch"] = [Answer(1, "", f"sbatch: error: Batch job submission failed: {words}")]
    with pytest.raises(CloudError, match="Slurm did not accept a job") as raised:
        driver(queue, clock).launch(request())
    assert type(raised.value) is error
    assert words in raised.value.message
    assert queue.jobs == []


def test_unsatisfiable_job_is_a_fault_of_the_request(queue: SlurmQueue, clock: ManualClock) -> None:
    ours = driver(queue, clock)
    ours.launch(request(1))
    ours.launch(request(2))
    queue.end(request(2).token, "FAILED", "BadConstraints")
    with pytest.raises(CloudError, match="Slurm has no node that fits job 2"):
        ours.launch(request(2))


def test_one_look_serves_all_that_ask_within_a_second(queue: SlurmQueue, clock: ManualClock) -> None:
    ours = driver(queue, clock)
    for _ in range(3):
        ours.instances(UID)
        ours.describe("job-1")
    assert len(queue.calls) == 1


# -- what is asked --------------------------------------------------------------------------------------------------


def test_nothing_of_a_job_is_in_a_script_and_no_secret_is_in_its_environment() -> None:
    odd = '/shared/$(touch x)/it\'s; "one"'
    words = submission(request(uri=odd), SlurmConfig(partitions=PARTITIONS, account="lab"), CHEAP)
    script = next(word for word in words if word.endswith("job.sh"))
    lines = [line for line in Path(script).read_text().splitlines() if not line.startswith("#")]
    assert lines == ['exec "$@"']
    assert odd in words[words.index(script) :], "as one argument, which no shell reads"
    assert {"--no-requeue", "--no-kill", "--dependency=singleton", "--account=lab", "--time=600"} <= {*words}
    own = {"PATH": "/bin", "AWS_SECRET_ACCESS_KEY": "s", "WANDB_API_KEY": "s", "AWS_PROFILE": "lab", "SPOTRUN_RUN": "x"}
    assert {*environment(own)} == {"PATH", "AWS_PROFILE", "SLURM_TIME_FORMAT"}


def test_an_instance_has_a_whole_node_or_the_part_that_the_job_names() -> None:
    from msgspec.structs import replace

    config = SlurmConfig(partitions=PARTITIONS)
    assert {"--exclusive", "--mem=0"} <= {*submission(request(), config, CHEAP)}
    part = replace(CHEAP, accelerators="V100:2", cpus=8, memory_gb=64)
    words = submission(request(), config, part)
    assert {"--gres=gpu:2", "--cpus-per-task=8", "--mem=64G"} <= {*words}
    assert "--exclusive" not in words
    assert "--gres=gpu:tesla:2" in submission(request(), config, replace(part, gres="gpu:tesla:2"))
    assert part.offering.instance_type == "node-V100x2-8c-64g"
    assert "_" not in replace(part, accelerators="rtx_6000:2").offering.instance_type, "nor in any cloud's type"
    assert CHEAP.offering.instance_type == SURE.offering.instance_type == "node"


def test_a_training_does_not_know_that_it_is_in_a_job_of_slurm_s(tmp_path: Path) -> None:
    assignment = Assignment.read(["/runs/n", UID, "7", "60", str(tmp_path), "init"], {"SLURM_JOB_ID": "12"})
    found = assignment.environment({"SLURM_NTASKS": "1", "SLURMD_NODENAME": "n1", "CUDA_VISIBLE_DEVICES": "0"})
    assert found == {
        "CUDA_VISIBLE_DEVICES": "0",
        "SPOTRUN_RUN": "/runs/n",
        "SPOTRUN_RUN_UID": UID,
        "SPOTRUN_LAUNCH": "7",
        "SPOTRUN_INSTANCE_ID": "job-12",
        "SPOTRUN_INSTANCE_DIR": str(tmp_path / f"spotrun-{os.getuid()}-12"),
    }


def test_the_folder_of_an_instance_that_was_killed_is_swept_and_no_other(tmp_path: Path) -> None:
    left, others = tmp_path / f"spotrun-{os.getuid()}-1", tmp_path / "spotrun-99999-1"
    for folder in (left, others):
        folder.mkdir()
    sweep(tmp_path)
    lock = made(tmp_path / f"spotrun-{os.getuid()}-2")
    sweep(tmp_path)
    assert {*tmp_path.iterdir()} == {others, tmp_path / f"spotrun-{os.getuid()}-2"}
    os.close(lock)
    sweep(tmp_path)
    assert [*tmp_path.iterdir()] == [others]


def test_no_instance_outlives_what_its_partition_lets_a_job_run(tmp_path: Path) -> None:
    spec = load_spec(job(tmp_path))
    market = tuple(each.offering for each in config_of(spec.slurm).partitions)
    lives = {}
    for offering in market:
        (intent,) = events_of(decided(History(), spec, market=(offering,)))
        assert isinstance(intent, ev.LaunchIntended)
        lives[offering.zone] = timedelta(seconds=intent.time_to_live_s)
    assert lives == {"cheap": timedelta(hours=12), "sure": timedelta(hours=24)}
    assert lives["sure"] < TIME_TO_LIVE


def test_requested_life_is_the_shortest_that_the_partition_allows(tmp_path: Path) -> None:
    spec = load_spec(job(tmp_path, JOB.replace("max_time: 12h", "max_time: 10m")))
    (intent,) = events_of(decided(History(), spec, market=(config_of(spec.slurm).partitions[0].offering,)))
    assert isinstance(intent, ev.LaunchIntended)
    assert intent.time_to_live_s == 600


def test_a_node_may_cost_nothing(tmp_path: Path) -> None:
    spec = load_spec(job(tmp_path))
    assert [each.usd_per_node_hour for each in config_of(spec.slurm).partitions] == [Decimal("0.10"), Decimal(0)]
    assert [each.saved for each in CLOUD.quotes(spec, ["node"]).quotes] == [None, None]


def test_a_cluster_sends_no_bill_to_compare_with(
    queue: SlurmQueue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.partitions["cheap"].settings |= {"PreemptMode": "CANCEL", "GraceTime": "120"}
    monkeypatch.setattr(Programs, "run", lambda _, words: queue.run(words))
    path = job(tmp_path, f"{JOB}checkpoint: {{uri: '{tmp_path}/runs'}}\n")
    uri = prepare_run(load_spec(path), "test").create()
    for given in ((), ("--cur", str(path))):
        said = CliRunner().invoke(app, ["bill", uri, *given])
        assert isinstance(said.exception, SpecInvalid)
        assert "slurm sends none" in said.exception.message


@pytest.mark.parametrize("nodes", [1, 2])
def test_plan_of_several_nodes_says_that_they_need_a_trusted_network(
    queue: SlurmQueue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nodes: int
) -> None:
    queue.partitions["cheap"].nodes = 2
    queue.partitions["cheap"].settings |= {"PreemptMode": "CANCEL", "GraceTime": "120"}
    monkeypatch.setattr(Programs, "run", lambda _, words: queue.run(words))
    path = job(tmp_path, f"{JOB}num_nodes: {nodes}\ncheckpoint: {{uri: '{tmp_path}/runs'}}\n")
    said = CliRunner().invoke(app, ["launch", str(path), "--dry-run"])
    assert said.exit_code == 0, said.output
    assert ("use a private network" in " ".join(said.output.split())) == (nodes > 1)


# -- the notice -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("told", "deadline"),
    [
        ("JobId=1 JobState=RUNNING EndTime=1795600148 PreemptTime=1795600136 Partition=cheap", 1795600148),
        ("JobId=1 JobState=RUNNING EndTime=1795600148 Partition=cheap", None),
        ("JobId=1 JobState=COMPLETING EndTime=1795600148 PreemptTime=1795600136", None),
        ("JobId=1 JobState=SIGNALING EndTime=1795600148 PreemptTime=1795600136", 1795600148),
        ("JobId=1 JobState=RESIZING EndTime=1795600148 PreemptTime=1795600136", 1795600148),
        ("JobId=1 JobState=CANCELLED EndTime=1795600148", None),
        ("JobId=1 JobState=RUNNING EndTime=1795600148 PreemptTime=None", None),
    ],
)
def test_a_signal_is_a_notice_where_slurm_says_that_it_takes_a_running_job(told: str, deadline: int | None) -> None:
    expected = None if deadline is None else datetime.fromtimestamp(deadline, UTC)
    runs = any(state in told for state in ("RUNNING", "SIGNALING", "RESIZING"))
    assert listener.read_job(told)[:2] == (runs, expected)


def test_a_controller_that_does_not_answer_leaves_ten_seconds() -> None:
    class Away:
        def run(self, words: object) -> Answer:
            raise CloudUnavailable("away")

    assert listener.asked("1", Away()) is None, "before any signal that is no notice"
    began = datetime.now(UTC)
    told = listener.after_signal("1", Away())
    deadline = told.deadline
    assert told.runs
    assert deadline is not None
    assert listener.LEFT_UNTOLD <= deadline - began < listener.LEFT_UNTOLD + timedelta(seconds=5)


def test_a_signal_before_the_step_listens_does_not_end_it() -> None:
    """A node may be taken in the first second of its job. The listener asks the controller at its beginning."""
    begins = subprocess.run([*UNENDED, "sh", "-c", "kill -TERM $$; echo lives"], capture_output=True, text=True)
    assert (begins.returncode, begins.stdout) == (0, "lives\n")
    assert LISTENER[-len(UNENDED) - 4 : -4] == UNENDED


def test_step_that_blocks_signals_receives_later_ones(tmp_path: Path) -> None:
    hears = "import signal as s; s.pthread_sigmask(s.SIG_BLOCK, {15}); print(1, flush=True); print(s.sigwait({15}))"
    step = subprocess.Popen([*UNENDED, sys.executable, "-c", hears], stdout=subprocess.PIPE, text=True)
    assert step.stdout is not None
    assert step.stdout.readline() == "1\n"
    step.terminate()
    assert "15" in step.communicate()[0].replace("Signals.SIGTERM", "15")


def test_notice_of_a_step_is_read_from_its_file_and_silence_is_no_answer(tmp_path: Path, clock: ManualClock) -> None:
    file = tmp_path / notices.FILE
    (source,) = notices.slurm_notices({"SPOTRUN_INSTANCE_DIR": str(tmp_path)}, clock)
    with pytest.raises(Blind, match="no step of this job is listening"):
        list(source.notices())
    notices.write(file, None)
    assert list(source.notices()) == []
    os.utime(file, (0, 0))
    with pytest.raises(Blind, match="has been silent"):
        list(source.notices())
    deadline = clock.now() + timedelta(seconds=12)
    notices.write(file, deadline)
    (notice,) = source.notices()
    assert (notice.kind, notice.deadline_at) == ("termination", deadline)
    assert notice.deadline_s == pytest.approx(clock.monotonic() + 12)


# -- jobs that cannot be run ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "says", "change"),
    [
        ("slurm.partitions", "names no partition", lambda text: text.partition("slurm:")[0]),
        ("resources.spot_policy", "none of slurm.partitions has capacity: spot",
         lambda text: text.replace("ity: spot", "ity: on_demand").replace("slurm}", "slurm, spot_policy: spot}")),
        ("resources.spot_policy", "has capacity: on_demand",
         lambda text: text.replace("on_demand", "spot").replace("slurm}", "slurm, spot_policy: on-demand}")),
        ("resources.region", "a cluster has no regions", lambda text: text.replace("slurm}", "slurm, region: r}")),
        ("resources.zone", "is not under slurm.partitions", lambda text: text.replace("slurm}", "slurm, zone: z}")),
        ("secrets.KEY", "does not reach instances on slurm", lambda text: f"{text}secrets: [KEY]\n"),
        ("num_nodes", "on cloud slurm at most 16 nodes train", lambda text: f"{text}num_nodes: 99\n"),
        ("num_nodes", "at least 1, not 0", lambda text: f"{text}num_nodes: 0\n"),
        ("slurm.wait", "must be at most 10m", lambda text: text.replace("slurm:\n", "slurm:\n  wait: 11m\n")),
        ("slurm.partitions[1].name", "is listed twice", lambda text: text.replace("name: sure", "name: cheap")),
        ("slurm.partitions[0].capacity", "must be spot or on_demand", lambda text: text.replace("ity: spot", "ity: s")),
        ("slurm.partitions[0].usd_per_node_hour", "must be 0 or more", lambda text: text.replace("0.10", "-1")),
        ("slurm.partitions[0].max_time", "at least 10m", lambda text: text.replace("max_time: 12h", "max_time: 599s")),
        ("slurm.scratch", "is not allowed here", lambda text: text.replace("slurm:\n", "slurm:\n  scratch: a b\n")),
    ],
)  # fmt: skip
def test_a_job_that_no_cluster_can_run_is_refused_with_its_place(
    tmp_path: Path, key: str, says: str, change: Any
) -> None:
    with pytest.raises(SpecFileInvalid) as raised:
        load_spec(job(tmp_path, change(JOB)))
    problems = raised.value.problems
    assert [(problem.key, bool(problem.suggestion)) for problem in problems] == [(key, True)], raised.value.message
    assert says in str(problems[0])


def test_a_machine_without_slurm_says_where_to_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(SpecInvalid, match="there is no scontrol on this machine") as refused:
        CLOUD.require_known(load_spec(job(tmp_path)))
    assert refused.value.key == ("resources", "cloud")
    with pytest.raises(CloudNotInstalled, match="there is no sbatch on this machine") as raised:
        Programs().run(["sbatch"])
    assert raised.value.hint is not None
    assert "login node" in raised.value.hint
