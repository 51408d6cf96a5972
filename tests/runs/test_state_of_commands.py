"""The state of commands: real agents and programs that know nothing of them, killed and taken away."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from spotrun.checkpoint.outputs import read_listing
from spotrun.folder.stored_files import Listing
from spotrun.run import events as ev
from spotrun.spec.file import load_spec
from tests.support.agent_bench import AgentRun, Node, Start
from tests.support.eventually import eventually
from tests.support.histories import gone
from tests.support.repository import EXAMPLES, JOBS

PYTHON = shlex.quote(sys.executable)
NOTICE_S = 600
"""Ten seconds of this machine: half of them for the last checkpoint of a command that got SIGTERM."""
UNSAVED = {
    "ignore": "the command had not ended when its time after SIGTERM was over",
    "crash": "the command ended with code 1 after SIGTERM",
    "none": "the command does not catch SIGTERM",
}
PAIRS = {"pairs.py": (JOBS / "pairs.py").read_text()}


@pytest.fixture(autouse=True)
def _short_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPOTRUN_REST_FLOOR_S", "0.15")


def command(run: str, *state: str) -> dict[str, Any]:
    return {"train": {"run": run, "state": list(state or ("out/",))}, "files": PAIRS}


def pairs(*words: str, until: int = 100_000) -> dict[str, Any]:
    return command(f"exec {PYTHON} -S pairs.py out {until} {' '.join(words)}")


def begins(run: AgentRun, node: Node) -> list[int]:
    log = run.log(node)
    assert "MIXTURE" not in log
    return [int(number) for number in re.findall(r"begins at (\d+)", log)]


def newest(run: AgentRun) -> Listing:
    commit = run.state.latest_commit()
    assert commit is not None
    assert commit.outputs is not None
    return read_listing(run.store, commit.outputs)


def taken(run: AgentRun, node: Node) -> None:
    """The cloud has taken the instance without a word."""
    node.close()
    run.write(gone(node.launch, run.clock.now(), instance_id=node.instance_id))


def committed_at_notice(run: AgentRun) -> int:
    """The number of a checkpoint by an instance that the cloud takes afterwards, long before its time is over."""
    node, before = run.launch(), len(run.seen(ev.CheckpointCommitted))
    node.notice(36_000)
    run.wait_for(ev.CheckpointCommitted, before + 1)
    taken(run, node)
    newest = run.state.latest_commit()
    assert newest is not None
    return newest.number


def count_in(run: AgentRun, commit: int | None) -> int:
    """What the files of a checkpoint count."""
    found = run.state.commit(commit or 0)
    listing = read_listing(run.store, found.outputs)
    texts = {file.path: b"".join(run.store.get(piece.key) for piece in file.pieces) for file in listing.files}
    assert texts["out/first"] == texts["out/second"]
    return int(texts["out/first"].split()[0])


def test_a_command_goes_on_with_its_state_on_another_instance(start: Start):
    run = start(**pairs())
    first = run.launch()
    run.wait_for(ev.CheckpointCommitted, 2)
    taken(run, first)
    second = run.launch()
    resumed = run.wait_for(ev.ResumedFrom, 2)
    first_attempt = run.state.launches[first.launch].attempt
    commits = [commit for commit in run.state.commits if commit.event.attempt == first_attempt]
    assert resumed.commit == commits[-1].number
    kept = count_in(run, resumed.commit)
    eventually(lambda: begins(run, second) == [kept])
    event = commits[-1].event
    assert (event.step, event.epoch, event.size_bytes, event.has_image) == (0, 0, 0, False)
    assert event.files is not None
    assert event.files.files == 2
    began = run.seen(ev.TrainingStarted)
    assert began[0].began_at is not None
    assert not run.state.voids


def test_a_command_that_ends_well_has_its_last_state_in_a_final_checkpoint(start: Start):
    run = start(**pairs("rests=0.1", until=8))
    node = run.launch()
    node.powers_off()
    completed = run.wait_for(ev.RunCompleted)
    final = run.state.commit(completed.final_commit or 0)
    assert final is not None
    assert final.event.final
    assert count_in(run, completed.final_commit) == 8
    assert begins(run, node) == [0]


def test_a_notice_is_used_to_the_last_and_what_is_saved_after_sigterm_is_kept(start: Start):
    run = start(**pairs())
    first = run.launch()
    run.wait_for(ev.CheckpointCommitted)
    noticed_at = run.clock.now()
    first.notice(NOTICE_S)
    first.powers_off()
    drained = run.wait_for(ev.AttemptDrained)
    assert count_in(run, drained.final_commit) > 1000
    assert (drained.stopped_at - noticed_at).total_seconds() > NOTICE_S / 6, (
        "half of the window, less what a busy machine loses"
    )
    final = run.state.commit(drained.final_commit or 0)
    assert final is not None
    assert final.event.final
    second = run.launch()
    eventually(lambda: begins(run, second) == [count_in(run, drained.final_commit)])
    second.notice(3 * NOTICE_S)  # a busy machine needs more than 10 s of its own time for a new state
    second.powers_off()
    assert run.wait_for(ev.AttemptDrained, 2).final_commit != drained.final_commit


@pytest.mark.parametrize("answer", ["ignore", "crash", "none"])
def test_files_of_a_command_that_dies_at_sigterm_are_in_no_checkpoint(start: Start, answer: str):
    run = start(**pairs(f"term={answer}", "rests=0.8"))
    first = run.launch()
    run.wait_for(ev.CheckpointCommitted)
    first.notice(120)
    first.powers_off()
    drained = run.wait_for(ev.AttemptDrained)
    assert count_in(run, drained.final_commit) < 1000
    assert drained.reason == f"interruption notice: {UNSAVED[answer]}"
    second = run.launch()
    eventually(lambda: begins(run, second) == [count_in(run, drained.final_commit)])


def test_a_slow_end_after_sigterm_is_waited_for(start: Start):
    """Two seconds of two that half of the notice are."""
    run = start(scale=20.0, **pairs("term=slow"))
    node = run.launch()
    run.wait_for(ev.CheckpointCommitted)
    node.notice(120)
    node.powers_off()
    assert count_in(run, run.wait_for(ev.AttemptDrained).final_commit) > 1000


def test_sigterm_reaches_a_program_that_a_shell_runs_and_the_shell_goes_no_further(start: Start):
    reader = "(trap '' TERM; exec cat)"  # without it, the program's last words might have no reader
    line = f"echo begun; {PYTHON} -S pairs.py out 100000 | {reader}; echo and on"
    run = start(**command(line))
    node = run.launch()
    run.wait_for(ev.CheckpointCommitted)
    node.notice(NOTICE_S)
    node.powers_off()
    assert count_in(run, run.wait_for(ev.AttemptDrained).final_commit) > 1000
    assert "and on" not in run.log(node)


def test_a_command_that_fails_is_started_where_it_stands_then_on_the_newest_checkpoint_then_on_the_one_before(
    start: Start, tmp_path: Path
):
    """Its checkpoints are those of two noticed instances: on the third one none is due while it fails."""
    fail = tmp_path / "fail"
    run = start(**pairs(f"fail={fail}"), checkpoint={"every": "10h", "keep_last": 9}, retry={"max_restarts": 3})
    older, newer = (count_in(run, committed_at_notice(run)) for _ in range(2))
    fail.touch()
    node = run.launch()
    run.wait_for(ev.AttemptEnded, within_s=120)
    resumed = run.seen(ev.ResumedFrom)[2:6]
    assert [each.in_place for each in resumed] == [False, True, False, False]
    assert [count_in(run, each.commit) for each in resumed] == [newer, newer, newer, older]
    assert resumed[3].skipped == (resumed[2].commit,)
    eventually(lambda: begins(run, node)[:4] == [newer, newer + 1, newer, older])


def test_a_command_that_is_killed_goes_on_with_its_newest_checkpoint(start: Start):
    run = start(**pairs())
    node = run.launch()
    run.wait_for(ev.CheckpointCommitted)
    os.kill(node.trainer_pid(), signal.SIGKILL)
    resumed = run.wait_for(ev.ResumedFrom, 2)
    assert not resumed.in_place
    eventually(lambda: begins(run, node)[1:] == [count_in(run, resumed.commit)])


def test_state_that_never_rests_is_reported_once(start: Start, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SPOTRUN_REST_FLOOR_S", "1")  # on a busy machine, the next line may come late
    line = "while :; do date >> out/log; sleep 0.05; done"
    run = start(**command(f"mkdir -p out; {line}"))
    node = run.launch()
    named = run.wait_for(ev.StateNotCarried)
    assert [one.place for one in named.places] == ["the state of the command"]
    assert "its files never stop changing: out/log is still being written" in named.places[0].what
    eventually(lambda: "its files never stop changing: out/log" in run.log(node))
    assert not run.state.commits


def test_state_whose_paths_do_not_exist_is_reported_once(start: Start):
    run = start(**command("mkdir results; exec sleep 999"))
    node = run.launch()
    named = run.wait_for(ev.StateNotCarried)
    assert [one.what for one in named.places] == ["nothing exists at out/: the state is empty"]
    eventually(lambda: run.log(node).count("nothing exists at out/: the state is empty; try: name the files") == 1)
    assert not run.state.commits


def test_file_open_for_writing_is_named_with_its_process(start: Start):
    held = "import time; f = open('out/held', 'w'); f.write('half'); f.flush(); time.sleep(999)"
    run = start(**command(f'mkdir -p out; exec {PYTHON} -S -c "{held}"'))
    run.launch()
    named = run.wait_for(ev.StateNotCarried)
    assert "out/held is open for writing in python" in named.places[0].what


def test_without_a_word_in_the_job_the_folder_of_the_variable_is_state(start: Start):
    line = 'test -f $SPOTRUN_STATE_DIR/a && { echo found; exit 0; }; echo 1 > "$SPOTRUN_STATE_DIR/a"; sleep 999'
    run = start(train={"run": line})
    first = run.launch()
    run.wait_for(ev.CheckpointCommitted)
    taken(run, first)
    second = run.launch()
    second.powers_off()
    assert "found" in run.log(second)
    run.wait_for(ev.RunCompleted)


def test_an_agent_that_is_killed_puts_the_newest_state_back(start: Start):
    run = start(**pairs())
    node = run.launch()
    run.wait_for(ev.CheckpointCommitted)
    os.kill(node.agent_pid() or 0, signal.SIGKILL)
    resumed = run.wait_for(ev.ResumedFrom, 2)
    assert not resumed.in_place
    eventually(lambda: begins(run, node)[1:] == [count_in(run, resumed.commit)])


def test_modes_links_and_empty_folders_are_there_again(start: Start):
    shape = "umask 077; mkdir -p out/empty out/deep; echo x > out/deep/a; ln -s deep out/newest; chmod 500 out/deep"
    look = "stat -c '%n %A' out/empty out/deep out/deep/a; readlink out/newest; cat out/newest/a"
    run = start(**command(f"if test -d out/deep; then {look}; exit 0; fi; {shape}; mkfifo out/pipe; sleep 999"))
    first = run.launch()
    run.wait_for(ev.CheckpointCommitted)
    assert [each.path for each in newest(run).left_out] == ["out/pipe"]
    taken(run, first)
    second = run.launch()
    second.powers_off()
    said = run.log(second)
    for line in ("out/empty drwx------", "out/deep dr-x------", "out/deep/a -rw-------", "deep\nx\n"):
        assert line in said


def test_damage_of_the_newest_state_falls_back_to_the_one_before(start: Start):
    run = start(**pairs())
    first = run.launch()
    run.wait_for(ev.CheckpointCommitted, 2)
    taken(run, first)
    commits = [commit for commit in run.state.commits if commit.usable]
    before = {piece.key for piece in pieces_of(run, commits[-2])}
    for piece in pieces_of(run, commits[-1]):
        if piece.key not in before:
            (Path(run.store.uri) / piece.key).write_bytes(b"damaged")
    second = run.launch()
    resumed = run.wait_for(ev.ResumedFrom, 2)
    assert (resumed.commit, resumed.skipped) == (commits[-2].number, (commits[-1].number,))
    eventually(lambda: begins(run, second) == [count_in(run, resumed.commit)])


def pieces_of(run: AgentRun, commit: Any) -> list[Any]:
    return [piece for file in read_listing(run.store, commit.outputs).files for piece in file.pieces]


def test_a_secret_in_the_state_keeps_it_from_the_store(start: Start, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TOKEN_OF_TEST", "s3cr3t-value-of-test")
    run = start(
        train={"run": "mkdir -p out; echo $TOKEN_OF_TEST > out/a; sleep 999", "state": ["out/"]},
        secrets=["TOKEN_OF_TEST"],
    )
    run.launch()
    named = run.wait_for(ev.StateNotCarried)
    assert "out/a cannot be stored: the file contains the value of a secret" in named.places[0].what
    assert not run.state.commits


def test_the_example_says_the_same_whatever_happens_to_it(start: Start, tmp_path: Path):
    script = (EXAMPLES / "command.sh").read_text()
    (tmp_path / "straight").mkdir()
    straight = subprocess.run(
        ["bash", "-c", script, "command.sh", "20", "0"],
        env={**os.environ, "SPOTRUN_STATE_DIR": str(tmp_path / "straight")},
        capture_output=True,
        text=True,
        check=True,
    )
    assert load_spec(EXAMPLES / "command.yaml").train.state_dir == "spotrun-state"
    run = start(
        train={"run": "./command.sh 20 2"}, files={"command.sh": script, "run": ""}, setup="chmod +x command.sh"
    )
    first = run.launch()
    run.wait_for(ev.CheckpointCommitted)
    first.notice(NOTICE_S)
    first.powers_off()
    second = run.launch()
    second.powers_off()
    run.wait_for(ev.RunCompleted)
    assert straight.stdout.splitlines()[-1] in run.log(second)
    assert "begins at round 0" not in run.log(second)
