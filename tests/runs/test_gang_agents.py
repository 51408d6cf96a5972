"""The agents of a gang: real agents and trainers that meet, a real store, a ledger written by hand."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from spotrun.clouds.local.processes import carrying
from spotrun.run import events as ev
from spotrun.run.events import Cause
from spotrun.run.gang import MemberName
from tests.support.agent_bench import AgentRun, Node
from tests.support.eventually import eventually
from tests.support.own_networks import Networks, permitted
from tests.support.repository import JOBS

STEPS = 60
EVERY = 5
WITHIN_S = 120.0
WAITING = "late-variables.waiting"

Start = Callable[..., AgentRun]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Begins gangs of two members that train for 60 steps, with a checkpoint after each fifth one."""
    runs: list[AgentRun] = []

    def begin(
        scale: float = 10.0,
        size: int = 2,
        setup: str = "",
        networks: Networks | None = None,
        hang_after: str = "",
        **job: Any,
    ) -> AgentRun:
        folder = tmp_path / str(len(runs))
        folder.mkdir()
        run = AgentRun(
            folder,
            {"steps": STEPS, "epoch_steps": 30, "step_s": 0.05} | job,
            scale=scale,
            num_nodes=size,
            networks=networks,
            checkpoint={"every": f"{EVERY} steps"},
            **({"setup": setup} if setup else {}),
            **({"policy": {"hang_after": hang_after}} if hang_after else {}),
        )
        runs.append(run)
        return run

    yield begin
    for run in runs:
        run.close()


def reaches(run: AgentRun, step: int) -> None:
    eventually(lambda: max((done for _, done in run.steps_done()), default=0) >= step, WITHIN_S)


def taken(run: AgentRun, node: Node) -> None:
    """The cloud takes it without a word, and the runner reads that at once."""
    node.is_taken()
    run.lost(node)


def completes(run: AgentRun, *nodes: Node) -> None:
    for node in nodes:
        node.powers_off(WITHIN_S)
    assert run.wait_for(ev.RunCompleted).step == STEPS
    assert not run.state.voids


def newest(run: AgentRun) -> int:
    """The step of the newest checkpoint."""
    return run.seen(ev.CheckpointCommitted)[-1].step


def holds_another(run: AgentRun) -> int:
    """Trains until another snapshot waits in memory beside the checkpoint of the step that is returned."""
    stored = run.wait_for(ev.CheckpointCommitted).step
    reaches(run, stored + 2 * EVERY)
    return stored


def redone(run: AgentRun) -> int:
    """Steps that a rank has done more than once."""
    by_step: dict[int, int] = {}
    for _, step in run.steps_done():
        by_step[step] = by_step.get(step, 0) + 1
    assert sorted(by_step) == list(range(1, STEPS + 1))
    return sum(count > 2 for count in by_step.values())


def gangs(run: AgentRun) -> list[tuple[str, ...]]:
    return [tuple(map(str, event.gang.names)) for event in run.seen(ev.AttemptStarted) if event.gang]


def waits_for_its_place(node: Node) -> int:
    """Wait until the trainer that the member has started in advance needs its place in the gang. Return its process."""
    eventually((node.folder / WAITING).exists, WITHIN_S)
    return node.trainer_pid()


def test_a_start_of_two_members_has_five_entries_and_a_commit_one(start: Start):
    run = start()
    completes(run, *run.launch_members(2))
    kinds = [type(entry.event).__name__ for entry in run.ledger.entries]
    begin = [*kinds[: kinds.index("TrainingStarted")]]
    assert begin == ["RunCreated", "LaunchIntended", "MemberReady", "MemberReady", "AttemptStarted", "ResumedFrom"]
    assert redone(run) == 0
    for commit in run.seen(ev.CheckpointCommitted):
        ((rank, world, step),) = [(shard.rank, shard.world, shard.step) for shard in commit.shards]
        assert (rank, world, step) == (0, 2, commit.step)


@pytest.mark.parametrize("victim", [0, 1])
def test_a_notice_costs_no_step(start: Start, victim: int):
    run = start(step_s=0.2)
    nodes = run.launch_members(2)
    reaches(run, 12)
    nodes[victim].notice(40)
    drained = run.wait_for(ev.AttemptDrained, within_s=WITHIN_S)
    assert run.seen(ev.NoticeSeen)[0].member == MemberName(1, victim)
    taken(run, nodes[victim])
    (third,) = run.launch_members(1)
    completes(run, nodes[1 - victim], third)
    assert gangs(run) == [("1.0", "1.1"), (f"1.{1 - victim}", f"{third.place}")]
    assert redone(run) == 0
    assert run.state.commit(drained.final_commit).event.final


@pytest.mark.parametrize("victim", [0, pytest.param(1, marks=pytest.mark.nightly)])
def test_remaining_member_trains_on_with_a_new_member(start: Start, victim: int):
    run = start()
    nodes = run.launch_members(2)
    reaches(run, 12)
    taken(run, nodes[victim])
    (third,) = run.launch_members(1)
    completes(run, nodes[1 - victim], third)
    assert gangs(run) == [("1.0", "1.1"), (f"1.{1 - victim}", f"{third.place}")]
    assert redone(run) >= 0
    assert run.seen(ev.TrainerExited) == []


@pytest.mark.parametrize("victim", [0, pytest.param(1, marks=pytest.mark.nightly)])
def test_trainer_that_was_started_between_two_attempts_trains_in_the_next(start: Start, victim: int):
    run = start()
    nodes = run.launch_members(2)
    run.wait_for(ev.CheckpointCommitted)
    taken(run, nodes[victim])
    warm = waits_for_its_place(nodes[1 - victim])
    (third,) = run.launch_members(1)
    completes(run, nodes[1 - victim], third)
    assert warm in {pid for pid, _ in run.steps_done()}


def test_members_that_will_replace_others_report_ready_once_their_trainers_are_warm(start: Start):
    run = start(step_s=0.5)
    nodes = run.launch_members(2)
    run.wait_for(ev.CheckpointCommitted)
    others = run.launch_members(2)
    run.wait_for(ev.MemberReady, 4)
    waiting = [(node.folder / WAITING).exists() for node in others]
    assert waiting == [True, True]
    assert not any((node.folder / WAITING).exists() for node in nodes)


@pytest.mark.nightly
def test_the_lead_saves_what_it_has_in_memory_before_the_attempt_ends(start: Start):
    """Commits are 30 s apart; a snapshot that waits for that is saved as soon as no newer one can follow."""
    run = start(scale=1.0)
    first, second = run.launch_members(2)
    reaches(run, 18)
    before = run.seen(ev.CheckpointCommitted)
    second.is_taken()
    saved = run.wait_for(ev.CheckpointCommitted, len(before) + 1)
    run.lost(second)
    (third,) = run.launch_members(1)
    completes(run, first, third)
    assert run.seen(ev.ResumedFrom)[-1].step == saved.step > before[-1].step


def test_the_lead_saves_what_it_has_in_memory_although_the_loss_ended_the_attempt(start: Start):
    """Nobody has trained behind it before the next attempt begins, and the lead says ready afterwards."""
    run = start(scale=1.0, step_s=0.2)
    first, second = run.launch_members(2)
    stored = holds_another(run)
    taken(run, second)
    (third,) = run.launch_members(1)
    completes(run, first, third)
    resumed = run.seen(ev.ResumedFrom)[-1]
    assert resumed.step > stored
    events = [entry.event for entry in run.ledger.entries]
    (lost,) = [at for at, event in enumerate(events) if isinstance(event, ev.InstanceGone)]
    ready = [at for at, event in enumerate(events) if isinstance(event, ev.MemberReady) and event.launch == 1]
    assert lost < resumed.commit < ready[-1]  # that of the first member; the new one may be ready before


def test_the_lead_begins_with_what_it_has_in_memory_and_keeps_no_more_of_it(start: Start):
    """The parts of its checkpoint are gone from the store, so it has read none of them."""
    run = start(scale=1.0, step_s=0.3)
    first, second = run.launch_members(2)
    reaches(run, 2 * EVERY + 1)
    for losses in (1, 2):
        taken(run, second)
        run.wait_for(ev.MemberReady, 2 * losses + 1, within_s=WITHIN_S)
        newest = run.state.latest_commit()
        for part in run.store.list(f"{newest.event.prefix}/part"):
            run.store.delete(part.key)
        (second,) = run.launch_members(1)
        resumed = run.wait_for(ev.ResumedFrom, losses + 1, within_s=WITHIN_S)
        assert (resumed.commit, resumed.skipped) == (newest.number, ())
        reaches(run, resumed.step + 2 * EVERY + 1)
        eventually(lambda: len(arenas_of(first)) == 1, WITHIN_S)
    completes(run, first, second)


def arenas_of(node: Node) -> set[int]:
    """The memories for snapshots that its agent has, by their inodes."""
    folder = Path(f"/proc/{node.agent_pid()}/fd")
    found = [each for each in folder.iterdir() if "spotrun-arena" in os.readlink(each)]
    return {each.stat().st_ino for each in found}


def test_member_reports_once_that_only_the_files_of_the_lead_are_kept(start: Start):
    run = start(writes=True, step_s=0.1)
    nodes = run.launch_members(2)
    reaches(run, 12)
    (lost,) = run.wait_for(ev.StateNotCarried, 1, within_s=WITHIN_S).places
    assert (lost.place, lost.what.partition(";")[0]) == (
        "of-rank-1.txt on member 1.1",
        "only the lead's files are stored",
    )
    os.kill(nodes[1].trainer_pid(), signal.SIGKILL)
    completes(run, *nodes)
    assert len(run.seen(ev.ResumedFrom)) == 2
    assert len(run.seen(ev.StateNotCarried)) == 1
    told = [run.log(node).count("will be lost: only the lead's files are stored") for node in nodes]
    assert told == [0, 1]
    assert "of-rank-1.txt of this member" in run.log(nodes[1])


@pytest.mark.nightly
def test_two_of_three_members_are_lost_at_once(start: Start):
    run = start(size=3)
    nodes = run.launch_members(3)
    reaches(run, 12)
    taken(run, nodes[0])
    taken(run, nodes[2])
    others = run.launch_members(2)
    completes(run, nodes[1], *others)
    assert len(gangs(run)) == 2
    assert gangs(run)[1][0] == "1.1"


@pytest.mark.parametrize("victim", [pytest.param(0, marks=pytest.mark.nightly), 1])
def test_a_trainer_that_is_killed_is_started_again_on_all_members(start: Start, victim: int):
    run = start()
    nodes = run.launch_members(2)
    reaches(run, 12)
    os.kill(nodes[victim].trainer_pid(), signal.SIGKILL)
    completes(run, *nodes)
    (exited,) = run.seen(ev.TrainerExited)
    assert exited.cause is Cause.OUT_OF_MEMORY
    assert ("on 1.1" in exited.detail) == (victim == 1)
    assert len(gangs(run)) == 1
    assert redone(run) <= 2 * EVERY


@pytest.mark.parametrize("victim", [0, pytest.param(1, marks=pytest.mark.nightly)])
def test_an_agent_that_is_killed_goes_on_in_its_attempt(start: Start, victim: int):
    run = start()
    nodes = run.launch_members(2)
    reaches(run, 12)
    pid = nodes[victim].agent_pid()
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    completes(run, *nodes)
    assert len(gangs(run)) == 1
    assert redone(run) >= 0


def test_a_member_that_freezes_ends_the_attempt_and_is_named(start: Start):
    run = start()
    first, second = run.launch_members(2)
    stored = holds_another(run)
    for process in carrying("SPOTRUN_INSTANCE_ID", second.instance_id):
        os.kill(process.pid, signal.SIGSTOP)
    ended = run.wait_for(ev.AttemptEnded, within_s=WITHIN_S)
    assert (ended.cause, ended.missing) == (Cause.EXTERNAL, (MemberName(1, 1),))
    assert newest(run) > stored, "what was in memory was saved while all stood still"
    taken(run, second)
    (third,) = run.launch_members(1)
    completes(run, first, third)
    assert redone(run) <= 2 * EVERY


@pytest.fixture
def networks() -> Iterator[Networks]:
    if not permitted():
        pytest.skip("networks of one's own take root")
    networks = Networks(2)
    yield networks
    networks.close()


def test_a_member_that_the_others_do_not_reach_is_named_although_it_reaches_the_store(start: Start, networks: Networks):
    """Both agents write that they live. First the network breaks while they train, then they cannot meet."""
    run = start(networks=networks)
    first, second = run.launch_members(2)
    stored = holds_another(run)
    networks.pull_out(1)
    for count in (1, 2):
        ended = run.wait_for(ev.AttemptEnded, count, within_s=WITHIN_S)
        assert (ended.cause, ended.missing) == (Cause.EXTERNAL, (MemberName(1, 1),))
        assert "1.1 cannot be reached on the network" in ended.detail
        assert newest(run) > stored
    networks.plug_in(1)
    completes(run, first, second)
    assert redone(run) <= 2 * EVERY
    assert run.seen(ev.TrainerExited) == [], "it was not the script"


def test_a_rank_that_hangs_shows_its_stacks_in_the_log_of_its_member(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("SPOTRUN_HANG_FLOOR_S", "1")
    run = start(hang_at={"1": 12}, once=str(tmp_path), hang_after="30s")
    nodes = run.launch_members(2)
    completes(run, *nodes)
    assert [exited.cause for exited in run.seen(ev.TrainerExited)] == [Cause.HANG]
    assert "in hangs_in_its_own_code" in run.log(nodes[1])


@pytest.mark.parametrize("rank", [pytest.param(0, marks=pytest.mark.nightly), 1])
def test_mistake_of_a_script_is_reported_with_its_member(start: Start, rank: int):
    run = start(fail_at={str(rank): 8})
    nodes = run.launch_members(2)
    ended = run.wait_for(ev.AttemptEnded, within_s=WITHIN_S)
    assert ended.cause is Cause.USER_ERROR
    assert f"rank {rank} has a mistake of its own" in ended.detail
    assert ("on 1.1" in ended.detail) == (rank == 1)
    for node in nodes:
        node.powers_off(WITHIN_S)


def test_member_without_work_ends_no_other(start: Start):
    """Whatever else ends well beside the lead has done its part."""
    run = start(alone=True, scale=60.0, step_s=0.2)
    for node in run.launch_members(2):
        node.powers_off(WITHIN_S)
    assert run.wait_for(ev.RunCompleted).step == STEPS
    assert run.seen(ev.TrainerExited) == []


def test_a_set_up_that_fails_names_its_member(start: Start):
    run = start(setup='test "$SPOTRUN_MEMBER" = 0 || exit 3')
    for node in run.launch_members(2):
        node.powers_off(WITHIN_S)
    ended = run.wait_for(ev.AttemptEnded)
    assert ended.cause is Cause.USER_ERROR
    assert "(on 1.1)" in ended.detail


def test_a_gang_of_commands_goes_on_with_the_state_of_its_lead(tmp_path: Path):
    go_on = tmp_path / "go-on"
    counts = f"""for n in $(seq 5); do
        test "$(cat out/n 2>/dev/null || echo 0)" -ge $n || {{ echo $n > out/n.new; mv out/n.new out/n; sleep 1; }}
    done; until test -e {go_on}; do sleep 0.1; done"""
    (tmp_path / "run").mkdir()
    run = AgentRun(
        tmp_path / "run",
        train={"run": f"mkdir -p out; {counts}", "state": ["out"]},
        num_nodes=2,
        checkpoint={"every": "30s"},
    )
    try:
        first, second = run.launch_members(2)
        saved = run.wait_for(ev.CheckpointCommitted, within_s=WITHIN_S)
        assert not saved.has_image
        taken(run, second)
        (third,) = run.launch_members(1)
        run.wait_for(ev.ResumedFrom, 2, within_s=WITHIN_S)
        go_on.touch()
        for node in (first, third):
            node.powers_off(WITHIN_S)
        run.wait_for(ev.RunCompleted)
        assert run.seen(ev.ResumedFrom)[-1].commit is not None
        assert not run.state.voids
    finally:
        run.close()


def test_members_with_two_accelerators_each_are_four_ranks(tmp_path: Path):
    """Neither of them ends before both have said what they know."""
    says = "echo rank $SPOTRUN_NODE_RANK of $SPOTRUN_NUM_NODES, each with $SPOTRUN_NUM_GPUS_PER_NODE"
    waits = f"cd {tmp_path}; touch said-$SPOTRUN_NODE_RANK; until test -e said-0 -a -e said-1; do sleep 0.1; done"
    run = AgentRun(tmp_path, train={"run": f"{says}; {waits}"}, num_nodes=2, accelerators="A100:2")
    try:
        nodes = run.launch_members(2)
        for node in nodes:
            node.powers_off(WITHIN_S)
        (attempt,) = run.seen(ev.AttemptStarted)
        assert attempt.gang is not None
        assert ([seat.rank for seat in attempt.gang.members], attempt.gang.world) == ([0, 2], 4)
        for rank, node in enumerate(nodes):
            assert f"rank {rank} of 2, each with 2" in run.log(node)
    finally:
        run.close()


def test_no_member_trains_before_all_are_ready(start: Start):
    run = start()
    (first,) = run.launch_members(1)
    run.wait_for(ev.MemberReady)
    (second,) = run.launch_members(1)
    completes(run, first, second)
    assert gangs(run) == [("1.0", f"{second.place}")]


def test_a_stop_ends_all_members(start: Start):
    run = start()
    nodes = run.launch_members(2)
    reaches(run, 12)
    run.write(ev.StopRequested(by="test"))
    run.wait_for(ev.AttemptDrained, within_s=WITHIN_S)
    run.write(ev.RunStopped(reason="test"))
    for node in nodes:
        node.powers_off(WITHIN_S)


# -- with a real trainer, whose ranks meet in torch.distributed


@pytest.fixture
def lightning(tmp_path: Path) -> Iterator[Start]:
    runs: list[AgentRun] = []

    def begin(name: str, *args: str, accelerators: str = "") -> AgentRun:
        folder = tmp_path / name
        folder.mkdir()
        run = AgentRun(
            folder,
            scale=10.0,
            files={name: (JOBS / name).read_text() for name in ("quick.py", "fast_imports.py", "tiny.py")},
            train={"script": "quick.py", "args": ["--epochs", "2", "--step-s", "0.05", "--keep", *args]},
            num_nodes=2,
            accelerators=accelerators,
            checkpoint={"every": "2 steps"},
            envs={"TRACE": str(folder / "lines")},
        )
        runs.append(run)
        return run

    yield begin
    for run in runs:
        run.close()


def lines(run: AgentRun) -> list[str]:
    """What each rank has trained on in each step, its loss and its learning rate."""
    path = run.folder / "lines"
    return path.read_text().splitlines() if path.exists() else []


def goes_calmly(run: AgentRun) -> None:
    for node in run.launch_members(2):
        node.powers_off(WITHIN_S)


def loses_a_member(run: AgentRun, victim: int) -> Node:
    """The run to its end, with another member in the place of `victim`, which is taken in step 8. Returns that one."""
    nodes = run.launch_members(2)
    eventually(lambda: any(line.startswith("8 ") for line in lines(run)), WITHIN_S)
    taken(run, nodes[victim])
    (third,) = run.launch_members(1)
    for node in (nodes[1 - victim], third):
        node.powers_off(WITHIN_S)
    return third


def test_a_script_of_lightning_trains_the_same_bits_when_its_lead_is_lost(lightning: Start):
    """It keeps its best checkpoints: all ranks have to agree which they are, in the folder of the lead."""
    calm = lightning("calm")
    goes_calmly(calm)
    run = lightning("disturbed")
    third = loses_a_member(run, 0)
    assert gangs(run)[1] == ("1.1", third.place)
    assert (run.nodes[1].folder / WAITING).exists()
    assert len(lines(calm)) == len(set(lines(calm))) == 24
    assert set(lines(run)) == set(lines(calm))


@pytest.mark.nightly
def test_two_processes_on_each_of_two_members_train_the_same_bits_when_one_is_lost(lightning: Start):
    """Members are as many ranks as they have accelerators."""
    samples = ("--samples", "192", "--devices", "2")
    calm = lightning("calm", *samples, accelerators="A100:2")
    goes_calmly(calm)
    run = lightning("disturbed", *samples, accelerators="A100:2")
    loses_a_member(run, 1)
    assert [event.gang.world for event in run.seen(ev.AttemptStarted) if event.gang] == [4, 4]
    assert len(lines(calm)) == len(set(lines(calm))) == 48
    assert set(lines(run)) == set(lines(calm))


@pytest.mark.nightly
def test_a_script_that_says_another_number_of_nodes_is_refused(lightning: Start):
    run = lightning("refused", "--num-nodes", "1")
    nodes = run.launch_members(2)
    ended = run.wait_for(ev.AttemptEnded, within_s=WITHIN_S)
    assert 'num_nodes=int(os.environ["SPOTRUN_NUM_NODES"])' in ended.detail
    for node in nodes:
        node.powers_off(WITHIN_S)
