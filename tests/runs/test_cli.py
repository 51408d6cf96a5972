"""The door: what is refused, what it says, with which exit code; and that looking costs little."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from fractions import Fraction

import pytest
import torch
import typer
from msgspec.structs import replace
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption
from typer.testing import CliRunner

from spotrun.cli.app import app
from spotrun.errors import RunEnded, RunNotFound, SpotrunError, StoreError
from spotrun.folder.ledger import key_of
from spotrun.run import entry_bytes
from spotrun.run import events as ev
from spotrun.runner.creation import prepare_run
from spotrun.runs.attend import changed_script, fails_again, next_step
from spotrun.runs.background import leave_behind
from spotrun.runs.known import create_known
from spotrun.runs.open_run import open_run, who
from spotrun.spec.file import load_spec
from spotrun.store.opening import open_store
from tests.support.audit import instance_dollars
from tests.support.decisions import spec
from tests.support.eventually import eventually
from tests.support.histories import History
from tests.support.sandbox import Sandbox


def test_a_bad_file_gives_every_problem_with_its_line_and_starts_nothing(sandbox: Sandbox) -> None:
    path = sandbox.folder / "bad.yaml"
    path.write_text("name: Bad Name\ntrain: {script: nope.py}\nresources: {acelerators: V100}\nschedule: []\n")
    output = sandbox.call("launch", path, "-y", code=2)
    assert "bad.yaml:1" in output
    assert "bad.yaml:3" in output
    assert "did you mean accelerators" in output
    assert "not built yet" in output
    assert not sandbox.store.exists()


def test_dry_run_ticks_what_the_first_decision_requests(sandbox: Sandbox) -> None:
    def ticked(*options: str) -> str:
        output = sandbox.ask("launch", sandbox.job("dry"), "--dry-run", *options)
        return next(line for line in output.splitlines() if line.startswith("✓"))

    assert " spot " in ticked()
    assert "on-demand" in ticked("--on-demand")
    assert "on-demand" in ticked("--deadline", "8h"), "the work is unknown, so it begins on demand"
    small = sandbox.job("small")
    small.write_text(small.read_text() + "budget: {max_usd: 0.001}\n")
    assert "give a larger budget" in sandbox.ask("launch", small, "-y", code=2)
    assert not sandbox.store.exists()


def test_flags_that_exclude_one_another_are_refused(sandbox: Sandbox) -> None:
    assert "exclude" in sandbox.ask("launch", sandbox.job("both"), "-y", "--spot", "--on-demand", code=2)


def test_a_dry_run_shows_the_offerings_with_the_choice_ticked_and_rents_nothing(sandbox: Sandbox) -> None:
    output = sandbox.ask("launch", sandbox.job("dry"), "--dry-run")
    assert output.count("✓") == 1
    assert "simulated" in output
    assert not sandbox.store.exists()


def test_a_run_lies_where_the_flag_says_else_the_file_else_the_environment(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    written, silent = sandbox.job("written"), sandbox.job("silent")
    silent.write_text(silent.read_text().replace(f"uri: '{sandbox.store}', ", ""))
    checkpoint = sandbox.folder / "made.ckpt"
    torch.save({"state_dict": {}, "pytorch-lightning_version": "2.6.6", "epoch": 0, "global_step": 0}, checkpoint)
    monkeypatch.setenv("SPOTRUN_STORE", str(sandbox.folder / "environment"))
    sandbox.ask("checkpoints", "import", checkpoint, written)
    sandbox.ask("checkpoints", "import", checkpoint, silent)
    sandbox.ask("checkpoints", "import", checkpoint, silent, "--store", sandbox.folder / "flag")
    assert sorted(path.name[:7] for path in sandbox.store.iterdir()) == ["keys", "written"]
    for place in ("environment", "flag"):
        assert sorted(path.name[:6] for path in (sandbox.folder / place).iterdir()) == ["keys", "silent"]


def test_without_a_terminal_launch_asks_for_the_flag_instead_of_hanging(sandbox: Sandbox) -> None:
    assert "add -y" in sandbox.call("launch", sandbox.job("ask"), code=2)


def test_unavailable_accelerator_is_refused_before_anything_starts(sandbox: Sandbox) -> None:
    path = sandbox.job("none")
    path.write_text(path.read_text().replace("V100:1", "TPU9:8"))
    assert "V100:1" in sandbox.ask("launch", path, "-y", code=2)


def test_an_unknown_run_is_a_letter_and_not_a_traceback(sandbox: Sandbox) -> None:
    for verb, say in (
        ("report", sandbox.call),
        ("stop", sandbox.ask),
        ("logs", sandbox.ask),
        ("events", sandbox.ask),
        ("resume", sandbox.ask),
    ):
        output = say(verb, "ghost", code=3)
        assert output.startswith("error: no run 'ghost'")
        assert "Traceback" not in output


def test_status_of_an_empty_store_says_how_to_begin(sandbox: Sandbox) -> None:
    assert "spotrun launch" in sandbox.call("status")
    assert sandbox.ask_json("status") == []


def test_the_doctor_finds_this_machine_well(sandbox: Sandbox) -> None:
    output = sandbox.call("doctor")
    assert "one winner each" in output
    assert "FAILED" not in output


def test_run_of_another_version_is_shown_as_such_and_hides_no_other(sandbox: Sandbox) -> None:
    for version, uid in ((max(ev.READABLE_VERSIONS) + 1, "0123456789"), (ev.LEDGER_VERSION, "9876543210")):
        (entry,) = History(uid=uid, spec=spec().to_dict()).entries
        written = replace(entry, event=replace(entry.event, ledger_version=version))
        open_store(str(sandbox.folder / "shared" / f"demo-{uid}")).put(key_of(0), entry_bytes.encode_entry(written))
    shared = ("--store", sandbox.folder / "shared")
    for verb in ("report", "stop"):
        assert "use the spotrun that the run was launched with" in sandbox.ask(verb, "demo-0123456789", *shared, code=5)
    rows = {row["run"]: row["state"] for row in sandbox.ask_json("status", *shared)}
    assert rows == {"demo-9876543210": "created", "demo-0123456789": "unreadable"}


def test_a_plain_command_runs_to_its_end_and_is_billed(sandbox: Sandbox) -> None:
    path = sandbox.folder / "plain.yaml"
    path.write_text(
        f"name: plain\nrun: echo hello from $WHO\nenvs: {{WHO: the job}}\nworkdir: {sandbox.folder}\n"
        f"checkpoint: {{uri: '{sandbox.store}'}}\nlocal: {{time_scale: 60, boot: 10s}}\n"
    )
    sandbox.call("launch", path, "-y")
    assert "hello from the job" in sandbox.ask("logs", "plain")
    decisions = sandbox.ask("why", "plain").splitlines()
    assert "asked for: spot where possible" in decisions[0]
    assert "first launch: the cheapest of" in decisions[1]
    assert "run completed: its command succeeded" in decisions[-2]
    assert decisions[-1] == "Times are run time, 60 times as fast as the wall clock."
    found = sandbox.ask_json("why", "plain")
    assert [each["kind"] for each in found["decisions"]][:2] == ["wish", "spot"]
    assert found["next"] is None
    assert sandbox.ask_json("status")[0]["state"] == "completed"
    assert float(sandbox.ask_json("report", "plain")["total"]["cost_usd"]) > 0
    sandbox.ask("report", "plain", "--fail-if", "cost_usd > 1000")
    assert "and > 0 is a failure" in sandbox.ask("report", "plain", "--fail-if", "cost_usd > 0", code=10)
    assert "try: did you mean cost_usd?" in sandbox.ask("report", "plain", "--fail-if", "cost_us > 0", code=2)


def test_a_job_with_a_limit_of_its_own_ends_with_10_where_its_run_is_over_it(sandbox: Sandbox) -> None:
    path = sandbox.folder / "dear.yaml"
    path.write_text(
        f"name: dear\nrun: 'true'\nworkdir: {sandbox.folder}\ncheckpoint: {{uri: '{sandbox.store}'}}\n"
        "local: {time_scale: 60, boot: 10s}\nreport: {fail_if: cost_usd > 0 and interruptions < 1}\n"
    )
    assert "interruptions is 0, and < 1 is a failure" in sandbox.call("launch", path, "-y", code=10)
    assert sandbox.ask_json("status")[0]["state"] == "completed"
    assert "and < 1 is a failure" in sandbox.ask("resume", "dear", code=10)


def test_the_last_runs_of_a_name_are_compared_the_oldest_first(sandbox: Sandbox) -> None:
    ids = [open_run(prepare_run(load_spec(sandbox.job("night"), {}, ""), "test").create(), None).id for _ in range(3)]
    prepare_run(load_spec(sandbox.job("day"), {}, ""), "test").create()
    assert [run["run"] for run in sandbox.ask_json("compare", "night", "--last", "2")["runs"]] == ids[1:]
    assert [run["run"] for run in sandbox.ask_json("compare", "night", "--last", "7")["runs"]] == ids
    assert ids[0] in sandbox.ask("compare", "night", "--last", "7", "--md")
    page = sandbox.folder / "nights.html"
    assert sandbox.ask("compare", "night", "--last", "7", "--html", page) == f"wrote {page}\n"
    assert "Trend of the last 3" in page.read_text()
    assert "no run" in sandbox.ask("compare", "ghost", "--last", "7", code=3)
    assert "--last 7 night" in sandbox.ask("compare", "night", "day", "--last", "7", code=2)


def test_a_failing_script_fails_the_run_with_its_last_words_and_is_not_tried_for_ever(sandbox: Sandbox) -> None:
    job = sandbox.job("fails", args="--epochs, '2', --step-s, '0', --fail-at, '3'", extra="retry: {max_restarts: 5}\n")
    output = sandbox.call("launch", job, "-y", code=4)
    assert "planted failure at step 3" in output
    exits = [entry.event for entry in _entries(sandbox, "fails") if isinstance(entry.event, ev.TrainerExited)]
    assert len(exits) == 2, "the same step failing twice is the end, whatever the restart budget"
    assert sandbox.left_running() == []


def test_a_run_is_stopped_by_ctrl_c_and_carried_on_by_resume(sandbox: Sandbox) -> None:
    job = sandbox.job("halt", args="--epochs, '6', --step-s, '0.05'")
    launch = sandbox.start("launch", job, "-y")
    eventually(
        lambda: sandbox.store.exists() and list(sandbox.store.glob("halt-*/checkpoints/*/manifest.json")), within_s=90
    )
    launch.send_signal(signal.SIGINT)
    output, _ = launch.communicate(timeout=90)
    assert launch.returncode == 4, output
    state = sandbox.state("halt")
    assert state.terminal is not None
    assert state.terminal.outcome == "stopped"
    assert sandbox.left_running() == []

    sandbox.call("resume", "halt")
    state = sandbox.state("halt")
    assert state.terminal is not None
    assert state.terminal.outcome == "completed"
    assert len(state.epochs) == 6
    assert all(len(lines) == 1 for lines in sandbox.trace_by_step().values())
    assert sandbox.last_step() == 6 * 12 - 1


def test_a_detached_run_goes_on_while_it_is_watched_and_chaos_interrupts_it(sandbox: Sandbox) -> None:
    assert "a background runner takes care of" in sandbox.call(
        "launch", sandbox.job("away", args="--epochs, '8', --step-s, '0.05'"), "-y", "-d"
    )
    eventually(lambda: _training(sandbox, "away"), within_s=90)
    watching = sandbox.start("status", "-w")
    sandbox.call("chaos", "away", "--notice", "60s")
    seen, _ = watching.communicate(timeout=120)
    assert "stays on spot until a notice or a loss" in seen
    assert "completed | epochs 8" in seen.splitlines()[-1]
    state = sandbox.state("away")
    assert state.terminal is not None
    assert state.terminal.outcome == "completed"
    assert len(state.attempts) == 2
    eventually(lambda: sandbox.left_running() == [])


def test_a_resume_after_the_end_sees_to_the_instance_that_no_runner_saw_go(sandbox: Sandbox) -> None:
    launch = sandbox.start("launch", sandbox.job("alone", args="--epochs, '2', --step-s, '0.05'"), "-y")
    eventually(lambda: _training(sandbox, "alone"), within_s=90)
    launch.send_signal(signal.SIGKILL)
    launch.communicate()
    eventually(lambda: sandbox.state("alone").terminal is not None, within_s=120)
    assert not any(launch.gone for launch in sandbox.state("alone").launches.values())
    sandbox.call("resume", "alone")
    assert all(launch.gone for launch in sandbox.state("alone").launches.values())
    ours, clouds = instance_dollars(sandbox, "alone")
    assert abs(ours - clouds) < Fraction(1, 10**6)
    assert "is complete" in sandbox.ask("resume", "alone")


def test_a_resume_says_that_it_trains_the_script_of_the_launch(sandbox: Sandbox) -> None:
    script = sandbox.folder / "code" / "train.py"
    script.parent.mkdir()
    script.write_text("raise ValueError\n")
    run = open_run(prepare_run(load_spec(script, {"checkpoint.uri": sandbox.uri}), "test").create(), None)
    run.ledger.refresh()
    assert changed_script(run) is None
    script.write_text("print('mended')\n")
    said = changed_script(run)
    assert said is not None
    assert "trains the uploaded version; to train the changed code, launch again" in said
    script.unlink()
    assert changed_script(run) is None


def test_a_run_whose_budget_pays_for_no_instance_is_launched_again_not_resumed(sandbox: Sandbox) -> None:
    job = sandbox.job("poor")
    job.write_text(job.read_text() + "budget: {max_usd: 0.001}\n")
    create_known(prepare_run(load_spec(job), "test"))
    said = sandbox.ask("resume", "poor", code=RunEnded.exit_code)
    assert "a run keeps the budget of its launch: raise budget.max_usd in the job, launch again" in said
    assert "continue with" not in said


def test_resume_of_a_run_that_failed_by_its_own_code_says_that_it_trains_the_same_again(sandbox: Sandbox) -> None:
    run = create_known(prepare_run(load_spec(sandbox.job("wrong")), "test"))
    assert fails_again(run) is None
    run.ledger.append(lambda _: ev.RunFailed(cause=ev.Cause.USER_ERROR, detail="setup ended with exit code 3"))
    note = fails_again(run)
    assert note is not None
    assert "failed because of its own code (setup ended with exit code 3), and trains the same again" in note
    assert next_step(run, run.ledger.state) == (
        f"correct the job or its code, launch again; `spotrun resume {run.typed}` would train the uploaded code again"
    )
    run.ledger.append(lambda _: ev.ResumeRequested(by="test"))
    run.ledger.append(lambda _: ev.RunFailed(cause=ev.Cause.QUOTA, detail="none left"))
    assert fails_again(run) is None
    assert next_step(run, run.ledger.state).startswith(f"continue with `spotrun resume {run.typed}`, which trains ")


def test_background_runner_that_cannot_begin_is_reported(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    run = open_run(prepare_run(load_spec(sandbox.job("mute"), {}, ""), "test").create(), None)
    monkeypatch.setenv("PYTHONHASHSEED", "x")  # no Python begins with this one
    with pytest.raises(SpotrunError, match="ended immediately; its last output: Fatal Python error") as told:
        leave_behind(run)
    assert "spotrun resume" in str(told.value.hint)


@pytest.mark.parametrize("error", [KeyError, OSError])
def test_a_user_without_a_name_is_a_number(monkeypatch: pytest.MonkeyPatch, error: type[Exception]) -> None:
    def nameless() -> str:
        raise error("uid not found")

    monkeypatch.setattr("getpass.getuser", nameless)
    assert who().startswith(f"uid-{os.getuid()}@")


def test_tick_carries_a_run_on_without_any_runner(sandbox: Sandbox) -> None:
    launch = sandbox.start("launch", sandbox.job("ticked", args="--epochs, '1', --step-s, '0'"), "-y")
    eventually(lambda: list(sandbox.store.glob("ticked-*/ledger/00000001.json")), within_s=60)
    launch.kill()
    sandbox.call("tick", "ticked")
    eventually(lambda: "completed" in sandbox.ask("tick", "ticked"), within_s=120)
    assert sandbox.state("ticked").terminal is not None


def test_help_imports_typer_and_no_verb() -> None:
    """What `benchmarks/help.py` measures is spent on imports. A verb is imported when it is chosen."""
    quietly = "import contextlib, io\nwith contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):"
    theirs, ours = _imported("import typer"), _imported(f"{quietly} from spotrun.cli.app import app; app(['--help'])")
    known = {name.partition(".")[0] for name in theirs} | sys.stdlib_module_names
    own = {name for name in ours if name.partition(".")[0] not in known}
    door = {f"spotrun.cli{name}" for name in ("", ".app", ".plain_help")}
    boundary = {f"spotrun.runs{name}" for name in ("", ".boundary", ".signals", ".unread")}
    assert own <= {"spotrun", "spotrun.errors", "spotrun.version"} | door | boundary
    assert len(ours) > len(theirs) > 100  # or nothing was looked at


def test_the_list_of_verbs_says_what_their_own_help_begins_with() -> None:
    group = COMMANDS["spotrun"]
    for name, verb in group.verbs.items():
        command = group.commands[name]
        if not verb.same_as:
            assert (command.short_help or command.help) == verb.short, name
            assert command.help.splitlines()[0] == verb.short, name
        assert command.hidden == bool(verb.same_as)


def _commands(group: TyperGroup, path: str) -> Iterator[tuple[str, TyperCommand | TyperGroup]]:
    yield path, group
    for name, command in group.commands.items():
        words = f"{path} {name}"
        if isinstance(command, TyperGroup):
            yield from _commands(command, words)
        elif not command.hidden:
            assert isinstance(command, TyperCommand)
            yield words, command


COMMANDS = dict(_commands(typer.main.get_command(app), "spotrun"))


@pytest.mark.parametrize("words", COMMANDS)
def test_every_help_text_is_words_an_example_and_80_columns(words: str) -> None:
    shown = CliRunner().invoke(app, [*words.split()[1:], "--help"], terminal_width=80)
    assert shown.exit_code == 0, shown.output
    assert max(len(line) for line in shown.output.splitlines()) <= 80
    assert not re.search(r"<\w|list\[|\b(TEXT|INTEGER|FLOAT|BOOLEAN)\b", shown.output), "a type is no word"
    command = COMMANDS[words]
    if isinstance(command, TyperCommand):
        example = " ".join(shown.output.split()).partition("Example: ")[2]
        assert example.startswith(words)
        command.make_context(words, shlex.split(example.removeprefix(words)))  # or it exits with 2


def test_every_option_and_argument_is_explained_and_every_value_has_a_word() -> None:
    for words, command in COMMANDS.items():
        for each in command.params:
            assert isinstance(each, TyperArgument | TyperOption)
            if not each.hidden:
                assert each.help, f"{words}: {each.name} is not explained"
                assert each.metavar or getattr(each, "is_flag", False), (
                    f"{words}: {each.name} has no word for its value"
                )


def _imported(statement: str) -> set[str]:
    code = f"{statement}\nimport sys; print(*sys.modules)"
    return set(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split())


def _entries(sandbox: Sandbox, name: str) -> list[ev.Entry]:
    run = sandbox.run(name)
    run.ledger.refresh()
    return run.ledger.entries


def _training(sandbox: Sandbox, name: str) -> bool:
    if not list(sandbox.store.glob(f"{name}-*/ledger/00000000.json")):
        return False
    current = sandbox.state(name).current
    return current is not None and any(trainer.started_at for trainer in current.trainers)


def test_the_schema_is_json(sandbox: Sandbox) -> None:
    assert "properties" in json.loads(sandbox.call("validate", "--schema"))


def _said_to(output: int | str, *words: object, errors: int = subprocess.PIPE) -> tuple[int, str]:
    """The exit code and the errors of a command whose output goes there."""
    with open(output, "wb") as written:
        command = [sys.executable, "-m", "spotrun", *map(str, words)]
        ended = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=written, stderr=errors, text=True)
    return ended.returncode, ended.stderr


def _unread(*words: object) -> int:
    """The exit code of a command of which nothing reads the output or the errors."""
    reader, output = os.pipe()
    os.close(reader)
    return _said_to(output, *words, errors=subprocess.STDOUT)[0]


def test_a_reader_that_leaves_is_no_failure() -> None:
    reader, output = os.pipe()
    os.close(reader)
    assert _said_to(output, "--help") == (0, "")
    assert _unread("version") == 0


def test_launch_whose_output_nothing_reads_trains_to_its_end(sandbox: Sandbox) -> None:
    job = sandbox.folder / "unread.yaml"
    where = f"workdir: {sandbox.folder}\ncheckpoint: {{uri: '{sandbox.store}'}}\nlocal: {{time_scale: 60, boot: 5s}}\n"
    job.write_text(f"name: unread\nrun: 'true'\n{where}")
    assert _unread("launch", job, "-y") == 0
    ended = sandbox.state("unread").terminal
    assert ended is not None
    assert ended.outcome == "completed"
    assert _unread("status") == 0
    assert _unread("logs", "unread") == 0


def test_launch_that_fails_gives_its_exit_code_though_nothing_reads_its_output(sandbox: Sandbox) -> None:
    assert _unread("launch", sandbox.job("refused"), "-y", "--store", "/proc/refused") == StoreError.exit_code
    assert _unread("logs", "absent") == RunNotFound.exit_code


def test_output_that_cannot_be_written_is_one_clear_error() -> None:
    code, errors = _said_to("/dev/full", "--help")
    assert (code, errors) == (1, "error: the output cannot be written: No space left on device\n")


def test_bash_completes_once_the_completion_is_installed(sandbox: Sandbox) -> None:
    """`--install-completion` asks which shell has called it, so a real one does."""
    lines = (
        "spotrun --install-completion",
        'source "$HOME/.bash_completions/spotrun.sh"',
        "COMP_WORDS=(spotrun rep) COMP_CWORD=1",
        "_spotrun_completion spotrun",
        'echo "offered: ${COMPREPLY[*]}"',
    )
    path = f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}"
    environment = {**os.environ, "HOME": str(sandbox.folder), "PATH": path}
    command = ["bash", "--norc", "--noprofile", "-c", "\n".join(lines)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert "bash completion installed in" in done.stdout
    assert done.stdout.splitlines()[-1] == "offered: report"
    assert "spotrun.sh" in (sandbox.folder / ".bashrc").read_text()
