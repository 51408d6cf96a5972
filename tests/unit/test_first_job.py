"""A script by itself where a job file goes, and `spotrun init`, which writes its first job file."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator
from typer.testing import CliRunner, Result

from spotrun.cli.app import app
from spotrun.errors import SpecInvalid
from spotrun.folder.travelling import travelling
from spotrun.spec.file import SpecFileInvalid, load_spec
from spotrun.spec.patterns import chooser
from spotrun.spec.schema import json_schema
from spotrun.spec.template import first_job, folders_made_in
from spotrun.spec.yaml import read_yaml
from tests.support.repository import ROOT


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("print()\n")
    return tmp_path


def call(*words: str) -> Result:
    return CliRunner().invoke(app, list(words))


def test_a_script_is_a_job_that_names_nothing_but_it(folder: Path) -> None:
    (folder / "src").mkdir()
    (folder / "src" / "My_Net.py").touch()
    spec = load_spec(Path("src/My_Net.py"), {"resources.max_price": "2.50", "checkpoint.uri": None}, "/runs")
    assert (spec.name, spec.workdir, spec.train.script) == ("my-net", folder / "src", "My_Net.py")
    assert (spec.resources.max_price, spec.checkpoint.uri) == (Decimal("2.5"), "/runs")
    (folder / "job.yaml").write_text("train: {script: train.py, args: [--epochs, no]}\n")
    assert load_spec(Path("job.yaml"), arguments=["--epochs", "2"]).train.args == ("--epochs", "2"), "`no` is replaced"
    (folder / "job.yaml").write_text("run: python train.py\n")
    with pytest.raises(SpecFileInvalid, match=r"job\.yaml:1: run: is a full command, so arguments cannot be added"):
        load_spec(Path("job.yaml"), arguments=["--epochs", "2"])


@pytest.mark.parametrize("verb", ["launch", "plan", "validate", "verify-resume", "init"])
@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("missing.py", "missing.py: no such file"),
        ("tain.py", "tain.py: no such file; did you mean train.py?"),
        ("missing.sh", "missing.sh: no such file"),
        (".", ".: is a folder, not a file"),
        (
            "book.ipynb",
            "book.ipynb: is a notebook, and spotrun trains scripts; `jupyter nbconvert --to script book.ipynb`",
        ),
    ],
)
def test_file_that_is_neither_job_nor_script_gets_a_one_line_error(
    folder: Path, verb: str, name: str, told: str
) -> None:
    (folder / "book.ipynb").write_text("{}")
    error = call(verb, name).exception
    assert isinstance(error, SpecInvalid)
    assert error.message.startswith(told)
    assert "\n" not in error.message
    assert error.hint


def test_init_writes_a_job_that_stays_valid_whatever_is_uncommented(folder: Path) -> None:
    said = call("init", "train.py", "--out", "plain.yaml").stdout
    assert "verify-resume" not in said, "nothing is in it that could be compared"
    note = said.splitlines()[-1]
    assert note.startswith("train.py names no framework that spotrun knows: unless it trains with Lightning")
    assert note.count(". ") == 1, "two sentences"
    assert note.endswith("add train: {state: [out/]}.")
    for imported in ("import torch", "from accelerate import Accelerator", "import torch.nn as nn"):
        (folder / "train.py").write_text(f"import os\n{imported}\n")
        note = call("init", "train.py", "--out", "plain.yaml", "--force").stdout.splitlines()[-1]
        loop = note.index("use spotrun's Loop (docs/loops.md); to continue from files")
        assert loop < note.index("add train: {state: [out/]}.")
    (folder / "train.py").write_text("from transformers import Trainer\n")
    said = call("init", "train.py", "--out", "hf.yaml").stdout
    assert "spotrun verify-resume hf.yaml" in said
    assert "from the beginning" not in said
    (folder / "train.py").write_text("import lightning\n")
    said = call("init", "train.py", "--", "--lr", "0.1", "--note", "say: #no", "yes").stdout
    assert "spotrun verify-resume train.yaml" in said
    assert "spotrun launch train.yaml" in said
    spec = load_spec(Path("train.yaml"))
    assert spec.train.args == ("--lr", "0.1", "--note", "say: #no", "yes")
    assert spec.resources.cloud == "local"
    whole = first_job(folder / "train.py", (), folder / "train.yaml").replace("\n  # ", "\n  ")
    lines = [
        line.removeprefix("# ") if line.startswith("# ") and line[2].islower() else line for line in whole.splitlines()
    ]
    assert lines[0] == "yaml-language-server: $schema=.spotrun.schema.json"
    (folder / "whole.yaml").write_text("\n".join(line for line in lines[1:] if not line.startswith("# ")))
    spec = load_spec(folder / "whole.yaml")
    assert (spec.train.args, spec.setup) == (("--epochs", "20"), "pip install -r requirements.txt")
    assert str(spec.resources.max_price), spec.policy.deadline
    assert spec.outputs.files == ("best.ckpt", "*.csv")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--cloud", "aws", "--store", "s3://Bad!/x"), "--store: Bad! cannot be the name of a bucket"),
        (
            ("--cloud", "aws", "--store", "s3://runs", "--instance-type", "t4g.large"),
            "--instance-type: t4g.large has Arm",
        ),
        (("--", "a\x07"), "train.yaml:7: train.args[0]: contains the control character"),
    ],
)
def test_init_that_refuses_names_what_was_typed(folder: Path, words: tuple[str, ...], told: str) -> None:
    error = call("init", "train.py", *words).exception
    assert isinstance(error, SpecFileInvalid)
    assert error.message.startswith(told)
    assert error.hint == "correct the command; it has written nothing"
    assert not (folder / "train.yaml").exists()


@pytest.mark.parametrize(
    ("shell", "made"),
    [
        ("mkdir -p results\npython train.py > results/log\n", ["results"]),
        ("set -e; mkdir one two/three && true", ["one", "two/three"]),
        ("python train.py >> logs/all.txt; ./tool -o out/model.bin --fast", ["logs", "out"]),
        ("mkdir -p out/epochs; echo 1 > out/n", ["out"]),
        ("if true; then mkdir -p 'a' \"b/\"; fi", ["a", "b"]),
        ("python train.py > log.txt; mkdir -p $HOME/x /tmp/y ../z\n# mkdir no\ntrue # > no/way", []),
        ("cd /tmp\nmkdir results", []),
    ],
)
def test_folders_that_a_shell_script_certainly_makes_are_found(shell: str, made: list[str]) -> None:
    assert folders_made_in(shell) == made


def test_init_names_no_state_that_it_has_not_seen_in_the_shell_script(folder: Path) -> None:
    (folder / "go.sh").write_text("python train.py\n")
    said = call("init", "go.sh").stdout
    assert load_spec(Path("go.yaml")).train.state == ()
    assert "  # state: [out/]\n" in (folder / "go.yaml").read_text()
    assert said.splitlines()[-1].endswith("add train: {state: [out/]}.")


def test_init_writes_the_command_and_the_state_of_a_shell_script(folder: Path) -> None:
    (folder / "go.sh").write_text("mkdir -p results\npython train.py\n")
    (folder / "k8s.yaml").write_text("apiVersion: batch/v1\nkind: Job\nspec: {}\n")
    assert str(call("validate", "k8s.yaml").exception).startswith("k8s.yaml: is a Kubernetes file, not a job\n")
    (folder / "ci.yaml").write_text("name: CI\non: [push]\njobs: {}\n")
    assert str(call("validate", "ci.yaml").exception).startswith("ci.yaml: is a GitHub Actions workflow, not a job\n")
    (folder / "train.yaml").write_text("train: {script: train.py}\n")
    assert "did you mean train.yaml?" in str(call("launch", "tain.yaml").exception)
    assert "did you mean" not in str(call("launch", "nope.yaml").exception)
    told = "go.sh: is a shell script, not a job; `spotrun init go.sh` writes a JOB.yaml that runs it"
    for verb in ("launch", "plan", "validate", "verify-resume"):
        assert str(call(verb, "go.sh").exception).startswith(told)
    assert "spotrun launch go.yaml" in call("init", "go.sh", "--", "--name", "a b").stdout
    train = load_spec(Path("go.yaml")).train
    assert (train.run, train.state) == ("bash go.sh --name 'a b'", ("results/",))
    assert _checked(folder / "go.yaml") == ""


def test_an_editor_finds_the_schema_of_the_job_that_init_writes_and_no_run_takes_it_along(folder: Path) -> None:
    call("init", "train.py")
    assert _checked(folder / "train.yaml") == ""
    job = folder / "train.yaml"
    job.write_text(job.read_text().replace("resources:", "resourses:"))
    assert "resourses" in _checked(job)
    (folder / "sub").mkdir()
    (folder / "sub" / ".spotrun.schema.json").write_text("{}")
    assert {file.name for file in travelling(folder).files} == {"train.py", "train.yaml"}


@pytest.mark.parametrize("job", sorted((ROOT / "examples").glob("*.yaml")), ids=lambda path: path.name)
def test_each_example_names_its_schema_and_fits_it(job: Path) -> None:
    assert _schema_named_in(job) == ROOT / "docs/job-schema.json"
    assert _checked(job) == ""


def _schema_named_in(job: Path) -> Path:
    named = job.read_text().splitlines()[0].removeprefix("# yaml-language-server: $schema=")
    return (job.parent / named).resolve()


def _checked(job: Path) -> str:
    """What the schema that a job names says of it."""
    schema = json.loads(_schema_named_in(job).read_text())
    assert schema == json_schema()
    found = Draft202012Validator(schema).iter_errors(read_yaml(job.read_text()).data)
    return "\n".join(error.message for error in found)


@pytest.mark.exhaustive
def test_init_replaces_nothing_unless_forced_and_takes_any_name(folder: Path) -> None:
    (folder / "train.yaml").write_text("mine")
    error = call("init", "train.py").exception
    assert isinstance(error, SpecInvalid)
    assert error.message == "train.yaml exists already"
    assert (folder / "train.yaml").read_text() == "mine"
    assert call("init", "train.py", "--force").exit_code == 0
    assert call("init", "train.py", "--out", "other.yaml").exit_code == 0
    assert "not next to" in str(call("init", "train.py", "--out", "/tmp/other.yaml").exception)
    for name in ("a b.py", "null.py", "1.py", "#x: y.py", "ünter 'q' \"d\".py"):
        (folder / name).touch()
        assert call("init", name).exit_code == 0, name
        assert load_spec((folder / name).with_suffix(".yaml")).train.script == name


@pytest.mark.parametrize(
    ("patterns", "chosen"),
    [
        (["**"], "best.ckpt logs/a.csv logs/deep/a.csv data/x.csv m[1].txt"),
        (["*.csv"], "logs/a.csv logs/deep/a.csv data/x.csv"),
        (["logs/*.csv"], "logs/a.csv"),
        (["./best.ckpt"], "best.ckpt"),
        (["logs"], "logs/a.csv logs/deep/a.csv"),
        (["logs/"], "logs/a.csv logs/deep/a.csv"),
        (["best.ckpt/"], ""),
        (["logs/**/a.csv"], "logs/a.csv logs/deep/a.csv"),
        (["logs/**"], "logs/a.csv logs/deep/a.csv"),
        (["!data/"], "best.ckpt logs/a.csv logs/deep/a.csv m[1].txt"),
        (["*.csv", "!data/", "data/x.*"], "logs/a.csv logs/deep/a.csv data/x.csv"),
        (["m[1].txt"], "m[1].txt"),
        (["b??t.ckpt", "[!l]*/x.csv"], "best.ckpt data/x.csv"),
        ([], ""),
    ],
)
def test_patterns_choose_files_as_gitignore_does(patterns: list[str], chosen: str) -> None:
    names = ["best.ckpt", "logs/a.csv", "logs/deep/a.csv", "data/x.csv", "m[1].txt"]
    assert " ".join(filter(chooser(patterns), names)) == chosen


def test_a_pattern_that_leads_elsewhere_is_a_problem_with_its_line(folder: Path) -> None:
    (folder / "job.yaml").write_text("train: {script: train.py}\noutputs:\n  - a.txt\n  - /abs\n  - x/../y\n  - no\n")
    with pytest.raises(SpecFileInvalid) as caught:
        load_spec(folder / "job.yaml")
    assert [problem.line for problem in caught.value.problems] == [4, 5, 6]
    assert "outputs[0]" not in str(caught.value)
    assert "outputs[1]: /abs is not inside the work folder" in str(caught.value)
    assert "outputs[2]: x/../y leads out" in str(caught.value)
    (folder / "job.yaml").write_text("train: {script: train.py}\noutputs: {files: [a.txt], max_gb: 0.5}\n")
    assert load_spec(folder / "job.yaml").outputs.max_gb == 0.5


def test_advice_on_a_job_file_with_a_blank_in_its_name_can_be_pasted(tmp_path: Path) -> None:
    job = tmp_path / "my job.yaml"
    job.write_text("name: a b\ntrain: {script: train.py}\n")
    with pytest.raises(SpecInvalid) as refused:
        load_spec(job, {}, "")
    assert f"`spotrun validate '{job}'`" in str(refused.value.hint)
