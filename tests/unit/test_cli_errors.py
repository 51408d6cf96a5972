"""What a command says to people and to programs when it cannot do what was asked, and which run a word means."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import typer
from msgspec.structs import replace
from typer.core import TyperArgument, TyperCommand, TyperGroup

from spotrun.cli.app import app
from spotrun.folder.ledger import NewestSeen, key_of
from spotrun.run.entry_bytes import encode_entry
from spotrun.runs.known_record import known_addresses
from spotrun.runs.open_run import OpenRun
from spotrun.store.local import LocalStore
from tests.support.called_spotrun import Said, Spotrun
from tests.support.histories import History
from tests.support.no_root_rights import no_root_rights
from tests.support.short_runs import bare
from tests.support.stored_runs import new_run, store_run

# -- errors under --json ---------------------------------------------------------------------------------------------


def _verbs(group: TyperGroup, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], TyperCommand]]:
    for name, command in group.commands.items():
        if isinstance(command, TyperGroup):
            yield from _verbs(command, (*path, name))
        elif isinstance(command, TyperCommand) and any("--json" in each.opts for each in command.params):
            yield (*path, name), command


WITH_JSON = dict(_verbs(typer.main.get_command(app)))  # type: ignore[arg-type]


def failing(command: TyperCommand) -> list[str]:
    """Arguments that this verb can read and cannot obey."""
    arguments = [each for each in command.params if isinstance(each, TyperArgument)]
    flags = {flag for each in command.params for flag in each.opts}
    words = [word for each in arguments for word in _wrong(each.metavar or "")]
    if words:
        return [*words, *(["--cur", "none.csv"] if "--cur" in flags else [])]
    for flag in ("--traces", "--cloud", "--store"):
        if flag in flags:
            return [flag, "nowhere"]
    raise AssertionError("say here how this verb can fail")


def _wrong(metavar: str) -> list[str]:
    if ".yaml" in metavar:
        return ["bad.yaml"]
    return ["ghost"] if metavar.strip("[").startswith("RUN") else []


@pytest.mark.parametrize("path", WITH_JSON, ids=" ".join)
def test_each_verb_with_json_gives_its_errors_as_json_and_ends_with_the_same_code(
    path: tuple[str, ...], runs: Path, spotrun: Spotrun
) -> None:
    Path("bad.yaml").write_text("name: bad\ntrain: {script: nope.py}\n")
    words = [*path, *failing(WITH_JSON[path])]
    people, program = spotrun(*words), spotrun(*words, "--json")
    assert people.code == program.code > 0
    assert people.out == ""
    assert program.err == people.err
    assert "Traceback" not in people.err
    _check_shape(program)
    misspelt = spotrun(*path, "--no-such-flag", "--json")
    assert (misspelt.code, misspelt.json["problems"][0]["key"]) == (2, "--no-such-flag")
    _check_shape(misspelt)


def _check_shape(said: Said) -> None:
    error = said.json
    assert set(error) == {"error", "exit_code", "problems"}
    assert error["exit_code"] == said.code
    assert error["problems"]
    assert error["error"] in said.err
    for each in error["problems"]:
        assert set(each) == {"file", "line", "column", "key", "problem", "fix"}
        assert each["problem"] in said.err
        assert each["fix"]


def test_a_bad_job_gives_each_problem_with_its_place(runs: Path, spotrun: Spotrun) -> None:
    Path("bad.yaml").write_text("name: ok\ntrain: {run: 'true'}\nresources:\n  acelerators: V100\n  max_price: x\n")
    said = spotrun("validate", "bad.yaml", "--json")
    assert said.code == 2
    first, second = said.json["problems"]
    assert said.json["error"] == "2 problems in bad.yaml"
    assert first == {
        "file": "bad.yaml",
        "line": 4,
        "column": 3,
        "key": "resources.acelerators",
        "problem": "unknown key",
        "fix": "did you mean accelerators?",
    }
    assert (second["line"], second["key"]) == (5, "resources.max_price")
    flag = spotrun("plan", "bad.yaml", "--deadline", "soon", "--json").json["problems"][-1]
    assert (flag["file"], flag["line"], flag["key"]) == (None, None, "--deadline")
    absent = spotrun("validate", "bat.yaml", "--json").json["problems"]
    assert [(each["file"], each["line"], each["fix"]) for each in absent] == [
        ("bat.yaml", None, "did you mean bad.yaml?")
    ]


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("plan", "job.yaml", "--work", "0h"), "--work: must be longer than 0s"),
        (("launch", "job.yaml", "--env", "=3", "--dry-run"), "--env '=3' has no name"),
        (("report", "demo", "--fail-if", ""), "--fail-if: expected a figure of the report"),
        (("launch", "job.yaml", "--budget", "free", "--dry-run"), "--budget: 'free' is not a number of US dollars"),
    ],
)
def test_error_names_the_flag_that_was_typed(words: tuple[str, ...], error: str, runs: Path, spotrun: Spotrun) -> None:
    Path("job.yaml").write_text("name: ok\ntrain: {run: 'true'}\n")
    store_run(runs, bare())
    assert error in spotrun(*words).err


def test_unavailable_accelerator_is_reported_with_its_line(runs: Path, spotrun: Spotrun) -> None:
    Path("job.yaml").write_text("name: ok\ntrain: {run: 'true'}\nresources:\n  accelerators: V101:1\n")
    (problem,) = spotrun("plan", "job.yaml", "--work", "1h", "--json").json["problems"]
    assert (problem["file"], problem["line"], problem["key"]) == ("job.yaml", 4, "resources.accelerators")
    assert "job.yaml" not in problem["problem"]
    assert "V100" in problem["fix"]


def test_an_error_after_the_answer_leaves_the_answer_alone(runs: Path, spotrun: Spotrun) -> None:
    store_run(runs, bare())
    said = spotrun("report", "demo", "--json", "--fail-if", "cost_usd >= 0")
    assert said.code == 10
    assert said.json["run"].startswith("demo-")
    assert "is a failure" in said.err


def test_json_of_the_script_is_not_ours(runs: Path, spotrun: Spotrun) -> None:
    assert spotrun("verify-resume", "none.py", "--", "--json").out == ""


# -- which run is meant ----------------------------------------------------------------------------------------------


def test_the_beginning_of_a_name_or_an_id_is_enough_if_it_fits_nothing_else(runs: Path, spotrun: Spotrun) -> None:
    new_run(runs, "mine", "7ee0000000")
    new_run(runs, "minor", "7ab0000000")
    new_run(runs, "resnet50", "0120000000")

    def meant(reference: str) -> str:
        said = spotrun("stop", reference)
        assert said.code == 0, said.err
        return said.out.split()[0]

    assert [meant(each) for each in ("mine-7ee", "7ee", "mine", "res", "resnet50-012")] == [
        "mine-7ee0000000",
        "mine-7ee0000000",
        "mine-7ee0000000",
        "resnet50-0120000000",
        "resnet50-0120000000",
    ]
    for several, listed in (("min", "mine, minor"), ("7", "mine-7ee0000000, minor-7ab0000000")):
        said = spotrun("report", several)
        assert (said.code, said.out) == (3, "")
        assert f"{several!r} is ambiguous: it may mean {listed}\n  try: type more" in said.err
    assert "did you mean resnet50?" in spotrun("logs", "resnet5o").err
    assert "did you mean mine-7ee0000000" in spotrun("logs", "mine-7fe0000000").err
    assert "try: `spotrun status` lists the runs" in spotrun("why", "zzz").err
    assert spotrun("report", "").code == 3


def test_prefix_means_the_newest_run_of_the_only_name_with_it(runs: Path, spotrun: Spotrun) -> None:
    ids = [new_run(runs, "mine", uid).name for uid in ("aaa0000000", "bbb0000000")]
    named = spotrun("compare", "mi", "--last", "5", "--json").json["runs"]
    assert sorted(run["run"] for run in named) == ids
    assert spotrun("stop", "m").code == 0
    assert f"may mean {', '.join(ids)}\n" in spotrun("stop", "mine-").err


def test_without_a_run_the_newest_of_this_folder_is_meant_and_named(
    runs: Path, spotrun: Spotrun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPOTRUN_KNOWN", str(runs.parent / "known"))
    here = {**bare().state.created.spec, "workdir": str(runs.parent)}
    for age, (uid, spec) in enumerate((("0" * 10, here), ("1" * 10, here), ("2" * 10, {**here, "workdir": "/else"}))):
        run = OpenRun(str(store_run(runs, History(uid=uid, name="demo", spec=spec))), "cli")
        run.known.remember()
        os.utime(run.known.path, (age, age))
        run.known.record(NewestSeen(0, "0"))
    for verb in ("why", "report", "logs", "events"):
        said = spotrun(verb)
        assert said.err.startswith("note: demo-1111111111 is the newest run of this folder\n"), verb
    for verb in ("stop", "down"):
        said = spotrun(verb)
        assert (said.code, said.out) == (2, "")
        assert "cannot ask for confirmation: there is no terminal" in said.err
    assert "demo-1111111111 has a request to stop" in spotrun("stop", "-y").out + spotrun("stop", "-y").out
    for folder in (runs.parent / "empty", runs.parent.parent):
        folder.mkdir(exist_ok=True)
        monkeypatch.chdir(folder)
        assert f"no run is known that was launched from {folder}\n" in spotrun("why").err
    run.known.record_launch(runs.parent.parent)
    assert "note: demo-2222222222 is the newest run of this folder\n" in spotrun("why").err


def test_a_damaged_run_is_found_by_its_beginning_too(runs: Path, spotrun: Spotrun) -> None:
    (new_run(runs, "mine", "7ee0000000") / "ledger/00000000.json").write_text("{}")
    for reference in ("mine", "mi", "mine-7ee"):
        assert spotrun("report", reference).code == 8


def test_two_folders_of_one_run_are_an_error_that_names_both(runs: Path, spotrun: Spotrun) -> None:
    new_run(runs, "other", "0120000000")
    first = new_run(runs, "mine", "7ee0000000")
    second = new_run(runs, "yours", "7ee0000000")
    for words in (("report", "mine"), ("stop", "7ee0000000"), ("logs", "min"), ("status",)):
        said = spotrun(*words)
        assert said.code == 5, words
        assert f"{first} and {second}" in said.err, words
    rows = spotrun("status", "--json").json
    assert sorted((row["run"], row["state"]) for row in rows) == [
        ("mine-7ee0000000", "copied"),
        ("other-0120000000", "created"),
        ("yours-7ee0000000", "copied"),
    ]
    assert spotrun("report", first).code == 0
    assert spotrun("report", "other").code == 0


def test_a_folder_that_calls_itself_by_another_name_is_no_run(runs: Path, spotrun: Spotrun) -> None:
    """Otherwise an object beside the runs could stand for one of them, with commands of its own."""
    shutil.copytree(new_run(runs, "mine", "7ee0000000"), runs / "backup")
    said = spotrun("report", runs / "backup")
    assert said.code == 5
    assert "a run's folder is called mine-7ee0000000" in said.err
    assert spotrun("report", "mine").code == 0
    said = spotrun("status", "--json")
    assert sorted((row["run"], row["state"]) for row in said.json) == [
        ("backup", "misnamed"),
        ("mine-7ee0000000", "created"),
    ]


def test_foreign_text_moves_no_cursor_in_json(runs: Path, spotrun: Spotrun) -> None:
    entry = History(uid="7ee0000000", name="mine").entries[0]
    hostile = "\x9b2J\u202e\u2028"
    LocalStore(runs / "mine-7ee0000000").put(key_of(0), encode_entry(replace(entry, writer=hostile)))
    said = spotrun("events", "mine", "--json")
    assert said.out.isascii()
    assert said.json["writer"] == hostile


# -- what can be known of a job before it is launched ------------------------------------------------------------------


def test_a_script_that_is_no_python_is_refused_with_its_line(runs: Path, spotrun: Spotrun) -> None:
    Path("syn.py").write_text("import os\ndef (:\n")
    Path("job.yaml").write_text("name: syn\ntrain:\n  script: syn.py\n")
    for verb in ("validate", "launch", "verify-resume"):
        said = spotrun(verb, "job.yaml")
        assert (said.code, said.out) == (2, ""), verb
        assert said.err.startswith("error: job.yaml:3: train.script: syn.py, line 2: "), verb
        assert "syn.py, line 2: " in spotrun(verb, "syn.py").err
    far = "train: {script: syn.py}\nresources: {cloud: aws}\ncheckpoint: {uri: 's3://bucket/runs'}\n"
    Path("far.yaml").write_text(far)
    said = spotrun("validate", "far.yaml")
    assert (said.code, said.out) == (0, "far.yaml is valid: far\n"), "another Python may read it"
    assert "note: syn.py, line 2: " in said.err
    assert "note: aws was not asked" in said.err
    assert "did you mean" not in said.err


def test_large_work_folder_is_refused_before_a_run_is_created(runs: Path, spotrun: Spotrun) -> None:
    Path("data/images").mkdir(parents=True)
    for name, size_bytes in (("data/images/a.bin", 90_000_000), ("data/b.bin", 20_000_000), ("c.bin", 1_000_000)):
        with open(name, "wb") as file:
            file.truncate(size_bytes)
    Path("job.yaml").write_text("run: 'true'\nresources: {cloud: local}\n")
    for words in (("validate", "job.yaml"), ("launch", "job.yaml", "--dry-run"), ("launch", "job.yaml", "-y")):
        said = spotrun(*words)
        assert (said.code, said.out) == (2, ""), words
        assert "has 111 MB to upload, of which data/ has 110 MB; at most 100 MB can be uploaded" in said.err
        assert "add the line /data/ to .spotrunignore; or write workdir_max_gb: 0.2\n" in said.err
    assert list(runs.iterdir()) == []
    Path("job.yaml").write_text("run: 'true'\nworkdir_max_gb: 0.2\n")
    assert spotrun("validate", "job.yaml").code == 0
    Path("job.yaml").write_text("run: 'true'\n")
    Path(".spotrunignore").write_text("/data/\n")
    assert spotrun("validate", "job.yaml").code == 0


def test_validate_takes_the_store_that_launch_gets(runs: Path, spotrun: Spotrun) -> None:
    Path("far.yaml").write_text("train: {run: 'true'}\nresources: {cloud: aws}\n")
    assert "checkpoint.uri" in spotrun("validate", "far.yaml").err
    assert spotrun("validate", "far.yaml", "--store", "s3://bucket/runs").out == "far.yaml is valid: far\n"


def test_problem_of_a_script_without_a_job_file_names_the_flag_and_no_line(runs: Path, spotrun: Spotrun) -> None:
    Path("train.py").write_text("")
    said = spotrun("launch", "train.py", "--cloud", "aws")
    assert (said.code, said.out) == (2, "")
    assert said.err.startswith("error: --store: ")
    assert "cannot be reached from instances on aws; add --store s3://BUCKET/runs, or" in said.err
    assert said.err.endswith("  try: correct the flag; --help shows all flags\n")
    Path("train.py").write_text("def (:")
    said = spotrun("launch", "train.py", "--store", "train.py")
    lines = said.err.splitlines()
    assert lines[0] == "error: 2 problems in train.py"
    assert [line.split(": ")[0].strip() for line in lines[1:3]] == ["train.script", "--store"]
    assert said.err.endswith("  try: `spotrun init train.py` writes a job file, in which keys can be set\n")


def test_validate_and_dry_run_list_all_mistakes_of_a_job_at_once(
    runs: Path, spotrun: Spotrun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NOWHERE", raising=False)
    Path("train.py").write_text("def (:\n")
    Path("job.yaml").write_text(
        "train: {script: train.py}\npolicy: {deadline: tomorrow}\nsecrets: [NOWHERE, ALSO_NOWHERE]\n"
        "report: {baseline: p9.huge}\nnotify: [{webhook: $NO_HOOK}]\nbudget: {warn_at: 0.5}\n"
    )
    for words, count in ((("validate", "job.yaml"), 7), (("launch", "job.yaml", "--dry-run"), 8)):
        said = spotrun(*words, "--store", "train.py/runs")
        assert said.code == 2
        lines = said.err.splitlines()
        assert lines[0] == f"error: {count} problems in job.yaml"
        for line, part in enumerate(
            (
                "job.yaml:1: train.script: train.py, line 1: ",
                "job.yaml:2: policy.deadline: 'tomorrow' is not",
                "job.yaml:3: secrets.NOWHERE: the variable NOWHERE is not set; export NOWHERE=VALUE",
                "job.yaml:3: secrets.ALSO_NOWHERE: ",
                "job.yaml:4: report.baseline: local does not offer p9.huge",
                *(("job.yaml:5: notify[0].webhook: notify: $NO_HOOK is not set",) if count == 8 else ()),
                "job.yaml:6: budget.warn_at: works only with max_usd",
                "--store: ",
            ),
            1,
        ):
            assert lines[line].startswith(f"  {part}"), said.err
    assert list(runs.iterdir()) == []


@pytest.mark.parametrize(
    ("setup", "run", "missing"),
    [
        ("bash setup.sh", "true", ["setup.sh"]),
        ("pip install -r requirements.txt", "python -u missing.py --epochs 2", ["requirements.txt", "missing.py"]),
        ("set -e\n# first\npython3 -m pip install -r a.txt -r b.txt", "./go.sh | tee log", ["a.txt", "b.txt", "go.sh"]),
        ("export A=1", "A=2 bash -eu nosuch.sh", ["nosuch.sh"]),
        ("git clone https://x/y && bash y/setup.sh", "python y/train.py", []),
        ("bash here.sh", "python made.py", []),
        ("echo 'pip' > made.sh; bash made.sh", "true", []),
        ("cd lib && bash setup.sh", "true", []),
        ("source activate base", "python -m module; python later.py", []),
        ("bash setup.sh || true", "true", []),
        ("[ -f setup.sh ] && bash setup.sh", "true", []),
        ("bash /opt/setup.sh", "true", []),
        ("bash $HOME/setup.sh", "true", []),
        ("pip install -r https://x/r.txt", "python -c 'print(1)' x.py", []),
        ("pip install torch", "python -W ignore here.py", []),
        ("true", "python ../up.py", []),
        ("cat > a.py <<EOF\n# it's\nEOF", "python a.py", []),
        ("cat > a.py <<EOF\nit's\nEOF", "python a.py", []),
        ("echo \\\nbash a.sh", "python here.py#1 x.py", ["here.py#1"]),
    ],
)
def test_file_that_a_command_names_has_to_be_in_the_work_folder(
    setup: str, run: str, missing: list[str], runs: Path, spotrun: Spotrun
) -> None:
    Path("here.sh").touch()
    Path("here.py").touch()
    Path("job.yaml").write_text(msgspec.json.encode({"setup": setup, "run": run}).decode())
    said = spotrun("validate", "job.yaml", "--json")
    found = [each["problem"] for each in said.json["problems"]] if said.code else []
    assert found == [f"no such file: {Path.cwd() / name}" for name in missing]


def test_store_that_cannot_be_written_is_refused_before_a_launch(runs: Path, spotrun: Spotrun) -> None:
    Path("job.yaml").write_text("run: 'true'\n")
    Path("file").touch()
    for words in (("validate", "job.yaml"), ("launch", "job.yaml", "--dry-run")):
        for store, says in (("/proc/runs", "/proc"), ("file/runs", "file is not a folder\n  try: name another folder")):
            said = spotrun(*words, "--store", store)
            assert (said.code, said.out) == (5, "")
            assert said.err.startswith("error: --store: ")
            assert says in said.err
    before = sorted(Path.cwd().iterdir())
    assert spotrun("validate", "job.yaml", "--store", "none/runs").code == 0
    assert sorted(Path.cwd().iterdir()) == before


@pytest.mark.parametrize("closed", ["above", "above/runs"])
def test_store_that_this_user_may_not_read_is_one_error_of_each_verb(
    closed: str, runs: Path, spotrun: Spotrun, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("above/runs").mkdir(parents=True)
    monkeypatch.setenv("SPOTRUN_STORE", str(Path("above/runs").absolute()))
    Path(closed).chmod(0)
    try:
        with no_root_rights():
            for words in (("report", "x", "--html", "x.html"), ("status",), ("logs", "x"), ("rm", "x", "-y")):
                said = spotrun(*words)
                assert said.code == 5
                assert said.err.startswith(f"error: {Path('above/runs').absolute()}: Permission denied\n  try: ")
    finally:
        Path(closed).chmod(0o700)


def test_known_run_that_this_user_may_not_read_is_left_out(
    runs: Path, spotrun: Spotrun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPOTRUN_KNOWN", str(runs.parent / "known"))
    for uid in ("0" * 10, "1" * 10):
        run = OpenRun(str(store_run(runs, History(uid=uid, name="demo"))), "cli")
        run.known.remember()
        run.known.record(NewestSeen(0, "0"))
    (runs.parent / "known" / ("0" * 10)).chmod(0)
    with no_root_rights():
        assert known_addresses() == [run.uri]
        (runs.parent / "known").chmod(0)
        assert known_addresses() == []
    (runs.parent / "known").chmod(0o700)


def test_resources_that_are_not_offered_are_the_mistake_of_the_job(runs: Path, spotrun: Spotrun) -> None:
    for wrong, says in (
        ("accelerators: V1000:1", "V100:1"),
        ("accelerators: H100:1", "in the simulated market of the local cloud; write cloud: aws or cloud: gcp"),
        ("memory: 32GB", "try: write memory: 32+ for at least that; there is "),
        ("region: us-esat-1", "did you mean us-east-1"),
    ):
        Path("job.yaml").write_text(f"name: far\nrun: 'true'\nresources:\n  {wrong}\n")
        for words in (("validate", "job.yaml"), ("launch", "job.yaml", "--dry-run")):
            said = spotrun(*words)
            assert said.code == 2, words
            assert "error: job.yaml:4: resources." in said.err, words
            assert says in said.err


@pytest.mark.parametrize(
    ("typed", "says"),
    [
        (
            "launch",
            "missing argument 'JOB.yaml|SCRIPT.py'\n  try: spotrun launch train.yaml --deadline 8h; ",
        ),
        ("report --html", "option '--html' requires an argument\n  try: --html FILE; "),
        (
            "compare x --last 0",
            "invalid value for '--last': Input should be greater than or equal to 1\n  try: --last N; ",
        ),
        ("stop x y", "spotrun stop takes one RUN at a time, and y is one more\n  try: spotrun stop resnet50; "),
        (
            "validate a.py b.yaml",
            "spotrun validate takes one JOB.yaml|SCRIPT.py at a time, and b.yaml is one more\n  try: spotrun validate ",
        ),
    ],
)
def test_command_line_that_cannot_be_read_is_an_error_like_others(spotrun: Spotrun, typed: str, says: str) -> None:
    said = spotrun(*typed.split())
    assert (said.code, said.out) == (2, "")
    assert said.err.startswith(f"error: {says}")
    assert said.err.endswith(" --help shows all options\n")


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("--store /tmp/x status", "spotrun status --store /tmp/x"),
        ("-y launch ok.yaml", "spotrun launch -y ok.yaml"),
        ("checkpoints --store /tmp/x prune demo", "spotrun checkpoints prune --store /tmp/x demo"),
    ],
)
def test_option_in_front_of_the_verb_is_shown_behind_it(spotrun: Spotrun, typed: str, meant: str) -> None:
    said = spotrun(*typed.split())
    assert (said.code, said.out) == (2, "")
    assert said.err.endswith(f"  try: options go behind the verb: {meant}\n")


@pytest.mark.parametrize(
    ("typed", "says", "hint"),
    [
        ("launch job.yaml --gpus 4", "the job names its resources", "write `resources: {accelerators: A10G:4}` in"),
        ("launch job.yaml --gpu=A100:8", "the job names its resources", "write `resources: {accelerators: A100:8}` in"),
        ("launch job.yaml --zone us-east-1a -y", "the job names", "write `resources: {zone: us-east-1a}` in"),
        ("plan job.yaml --instance-type g5.xlarge", "the job", "write `resources: {instance_type: g5.xlarge}` in"),
        ("plan job.yaml --on-demand", "the job names", "write `resources: {spot_policy: on-demand}` in the job file"),
        ("plan job.yaml --dry-run", "it is an option of spotrun launch", "leave it out; spotrun plan rents nothing"),
        ("plan job.yaml --detach", "it is an option of spotrun launch", "leave it out; spotrun plan --help shows"),
    ],
)
def test_option_that_a_command_lacks_is_no_argument_of_the_script(
    runs: Path, spotrun: Spotrun, typed: str, says: str, hint: str
) -> None:
    Path("job.yaml").write_text("run: 'true'\n")
    command, flag = typed.split()[0], typed.split()[2].partition("=")[0]
    said = spotrun(*typed.split())
    assert (said.code, said.out) == (2, "")
    assert said.err.startswith(f"error: spotrun {command} has no option {flag}; {says}")
    assert f"\n  try: {hint}" in said.err


def test_a_flag_is_suggested_only_if_it_is_like_the_one_that_was_typed(spotrun: Spotrun) -> None:
    assert "try: did you mean --follow?\n" in spotrun("logs", "x", "--fllow").err
    for words in (("logs", "x", "--json"), ("status", "--cloud")):
        assert "did you mean" not in spotrun(*words).err


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("launch train.py --epochs 3 -y", "launch train.py -y -- --epochs 3"),
        (
            "launch -y train.py --lr=-1e-3 --name a --note 'b c'",
            "launch -y train.py --name a -- --lr=-1e-3 --note 'b c'",
        ),
        ("sweep train.py --grid lr=1,2 --epochs 3 -- --amp", "sweep train.py --grid lr=1,2 -- --epochs 3 --amp"),
        ("run train.py -b 32 64", "run train.py -- -b 32 64"),
        ("init train.py --epochs 3", "init train.py -- --epochs 3"),
    ],
)
def test_argument_of_the_script_without_dashes_is_shown_behind_them(
    runs: Path, spotrun: Spotrun, typed: str, meant: str
) -> None:
    Path("train.py").write_text("")
    said = spotrun(*shlex.split(typed))
    assert (said.code, said.out) == (2, "")
    assert "; arguments of the script go behind --\n" in said.err
    assert said.err.endswith(f"  try: spotrun {meant}\n")
    assert "try: did you mean --env LR=1?\n" in spotrun("launch", "train.py", "-e", "LR=1").err
    assert "no such option: --max-prise" in spotrun("launch", "train.py", "--max-prise", "2").err


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("launch job.yaml foo -y", "spotrun launch job.yaml -y -- foo"),
        ("launch -n foo job.yaml foo bar -- --epochs 3", "spotrun launch -n foo job.yaml -- foo bar --epochs 3"),
        ("launch train.py job.yaml", "spotrun launch train.py -- job.yaml"),
        ("verify-resume train.py 3", "spotrun verify-resume train.py -- 3"),
        ("init train.py 3", "spotrun init train.py -- 3"),
        ("sweep train.py --grid lr=1e-3 1e-2 --budget 2 -y", "did you mean --grid lr=1e-3,1e-2?"),
        ("sweep train.py --grid lr=1,2 bs=3 --budget 2 -y", "did you mean --grid lr=1,2 --grid bs=3?"),
        ("bench job.yaml --types T4:1 A10G:1", "did you mean --types T4:1,A10G:1?"),
    ],
)
def test_word_before_the_dashes_never_becomes_an_argument_of_the_script(
    runs: Path, spotrun: Spotrun, typed: str, meant: str
) -> None:
    Path("train.py").write_text("")
    Path("job.yaml").write_text("train: {script: train.py}\n")
    said = spotrun(*shlex.split(typed))
    assert (said.code, said.out) == (2, "")
    assert "; arguments of the script go behind --\n" in said.err
    assert said.err.endswith(f"  try: {meant}\n")
    assert list(runs.iterdir()) == []


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("kill", "`spotrun stop RUN`, which saves a last checkpoint, or `spotrun down RUN`"),
        ("cancel", "`spotrun stop RUN`"),
        ("start", "`spotrun launch JOB.yaml`"),
        ("repot", "did you mean `spotrun report`?"),
        ("prun", "`spotrun --help` lists them"),
        ("up", "`spotrun launch JOB.yaml`"),
        ("help", "`spotrun VERB --help`"),
    ],
)
def test_word_that_is_no_verb_gets_the_right_one_and_never_one_that_deletes(
    spotrun: Spotrun, word: str, meant: str
) -> None:
    said = spotrun(word, "x")
    assert (said.code, said.out) == (2, "")
    assert said.err.startswith(f"error: spotrun has no command {word}\n  try: ")
    assert meant in said.err
    assert not any(f"spotrun {verb}`" in said.err for verb in ("rm", "prune", "reap"))
    for other in ("delete", "remove", "destroy"):
        assert "`spotrun rm RUN` deletes the folder of an ended run" in spotrun(other, "x").err


def test_usual_words_for_a_verb_are_aliases(runs: Path, spotrun: Spotrun) -> None:
    assert spotrun("list").out == spotrun("ls").out == spotrun("queue").out == spotrun("status").out
    assert "nope.py: no such file" in spotrun("run", "nope.py").err


def test_a_run_or_store_that_has_nothing_says_so(runs: Path, spotrun: Spotrun) -> None:
    assert "`spotrun init SCRIPT.py` writes a first JOB.yaml" in spotrun("status").out
    new_run(runs, "mine", "7ee0000000")
    assert spotrun("checkpoints", "ls", "mine").out == "mine-7ee0000000 has no checkpoints\n"
    assert spotrun("checkpoints", "verify", "mine").out == "mine-7ee0000000 has no usable checkpoints\n"
    assert spotrun("checkpoints", "ls", "mine", "--json").json == []
    said = spotrun("checkpoints", "export", "mine", "out.ckpt")
    assert said.err == (
        "error: mine-7ee0000000 has no checkpoint\n  try: `spotrun why mine-7ee0000000` says how far it has come\n"
    )
    assert "try: leave out 5: --watch has no value\n" in spotrun("status", "--watch", "5").err
    assert "try: `spotrun report mine` shows one run\n" in spotrun("compare", "mine").err


@pytest.mark.parametrize(
    ("asked", "meant"),
    [
        ("V101:1", "V100:1"),
        ("a10:4", "A10G:4"),
        ("H1000", "H100:1"),
        ("A100-80GB:8", ""),
        ("A100-80:8", "A100-80GB:8"),
        ("A100-40GB:8", "A100:8"),
        ("H100-80GB:8", "H100:8"),
        ("H100-MEGA:8", ""),
        ("h100:8", ""),
        ("MI300X:8", ""),
        ("L40S:1", ""),
    ],
)
def test_misspelled_accelerator_is_noted_without_a_call_to_a_cloud(
    runs: Path, spotrun: Spotrun, asked: str, meant: str
) -> None:
    Path("far.yaml").write_text(
        f"run: make\ncheckpoint: {{uri: 's3://bucket/runs'}}\nresources: {{cloud: aws, accelerators: {asked}}}\n"
    )
    said = spotrun("validate", "far.yaml")
    assert said.code == 0
    name = asked.partition(":")[0]
    note = f"spotrun knows no accelerator {name}: did you mean {meant}?"
    assert (note in " ".join(said.err.split())) is bool(meant), said.err


@pytest.mark.parametrize("verb", [("validate", "far.yaml"), ("launch", "far.yaml", "--dry-run")])
@pytest.mark.parametrize(
    ("mistake", "at"),
    [("nmae: x", "nmae"), ("budget: {max_usd: -3}", "budget.max_usd"), ("secrets: {A: 'env:NOT_SET'}", "secrets.A")],
)
def test_misspelled_accelerator_is_listed_with_the_other_mistakes(
    runs: Path, spotrun: Spotrun, verb: tuple[str, ...], mistake: str, at: str
) -> None:
    job = "run: make\ncheckpoint: {uri: 's3://bucket/runs'}\nresources: {cloud: aws, accelerators: A1000:1}\n"
    Path("far.yaml").write_text(f"{job}{mistake}\n")
    said = spotrun(*verb)
    assert said.code == 2
    told = " ".join(said.err.split())
    assert "far.yaml:3: resources.accelerators: spotrun knows no accelerator A1000; did you mean A100:1?" in told
    assert f"far.yaml:4: {at}: " in told


def test_a_limit_below_all_prices_is_a_mistake_of_the_job_and_the_fix_is_a_value(runs: Path, spotrun: Spotrun) -> None:
    job = "run: make\nresources: {cloud: local, accelerators: V100:1, spot_policy: on-demand}\n"
    Path("job.yaml").write_text(job)
    for verb in (("launch", "job.yaml", "-y"), ("launch", "job.yaml", "--dry-run")):
        said = spotrun(*verb, "--max-price", "2.50")
        assert said.code == 2
        assert said.err.startswith("error: --max-price: no suitable on-demand offering is within max_price\n")
        assert "try: write 3.06 or more, the current price of p3.2xlarge on-demand in local/" in said.err
    Path("job.yaml").write_text(job.replace("}", ", max_price: 2.50}"))
    for verb in (("launch", "job.yaml", "-y"), ("plan", "job.yaml", "--work", "1h", "--lifetimes", "20")):
        said = spotrun(*verb)
        assert said.code == 2
        assert said.err.startswith("error: job.yaml:2: resources.max_price: no suitable on-demand offering")
    assert spotrun("launch", "job.yaml", "--dry-run", "--max-price", "3.06").code == 0
    assert list(runs.iterdir()) == []


@pytest.mark.parametrize(
    ("says", "shown", "hidden"),
    [
        ("use_spot: true", " spot ", " on-demand "),
        ("spot_policy: spot", " spot ", " on-demand "),
        ("use_spot: false", " on-demand ", " spot "),
        ("spot_policy: on-demand", " on-demand ", " spot "),
    ],
)
def test_a_dry_run_shows_only_what_may_be_asked_for(
    runs: Path, spotrun: Spotrun, says: str, shown: str, hidden: str
) -> None:
    Path("job.yaml").write_text(f"run: make\nresources: {{cloud: local, accelerators: V100:1, {says}}}\n")
    said = spotrun("launch", "job.yaml", "--dry-run")
    assert said.code == 0
    table = said.out.partition("$/h")[2]
    assert shown in table
    assert hidden not in table


# -- a store that is not there ---------------------------------------------------------------------------------------


def test_a_store_that_is_not_there_is_an_error_where_runs_are_looked_for(
    runs: Path, spotrun: Spotrun, monkeypatch: pytest.MonkeyPatch
) -> None:
    new_run(runs, "mine", "7ee0000000")
    (runs / "file").write_text("")
    for words in (
        ("status",),
        ("report", "mine"),
        ("stop", "mine"),
        ("reap",),
        ("checkpoints", "ls", "mine"),
        ("doctor",),
    ):
        said = spotrun(*words, "--store", "rums")
        assert (said.code, said.out) == (5, "")
        assert said.err == "error: there is no folder rums\n  try: did you mean runs?\n"
    assert "is a file, not a folder of runs" in spotrun("status", "--store", runs / "file").err
    assert "spotrun looks in" in spotrun("status", "--store", "/nowhere/at/all").err
    assert not Path("rums").exists()
    monkeypatch.setenv("SPOTRUN_STORE", "new")
    assert "spotrun launch" in spotrun("status").out, "before the first launch it need not be there"
    assert "there is no folder new" in spotrun("report", "mine").err
    assert not Path("new").exists()


def test_the_checks_of_a_store_leave_no_folder_that_was_not_there(
    runs: Path, spotrun: Spotrun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPOTRUN_STORE", "home/.spotrun/runs")
    Path("home").mkdir()
    said = spotrun("doctor")
    assert (said.code, "these checks left no objects behind" in said.out) == (0, True)
    assert " GB free" in said.out
    assert list(Path("home").iterdir()) == []
    assert spotrun("doctor", "--store", runs).code == 0
    assert runs.exists(), "this one was there"
