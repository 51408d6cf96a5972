"""What a spec file may say, what it becomes, and what its author is told when it is wrong."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from spotrun.agent.processes.trainer_process import training_command
from spotrun.errors import CloudError, Mistakes, SeveralInvalid, SpecInvalid, SpotrunError
from spotrun.folder import stored_files
from spotrun.policy.deadline import deadline_at
from spotrun.spec import file as spec_file
from spotrun.spec import yaml as spec_yaml
from spotrun.spec.file import SpecFileInvalid, load_spec
from spotrun.spec.market_script import Action, After, EpochAt, UploadAt, parse_trigger
from spotrun.spec.model import RunSpec
from spotrun.spec.problems import keys_of
from spotrun.spec.schema import json_schema
from spotrun.spec.values import NEWS_KINDS, WORD_MAX_BYTES, Accelerators
from spotrun.units import (
    Amount,
    Steps,
    Unreadable,
    duration_in_seconds,
    format_duration,
    parse_duration,
    parse_usd,
)
from tests.support.repository import EXAMPLES, ROOT

TRAIN = "train: {script: train.py}\n"
BAD = yaml.safe_load((ROOT / "tests" / "support" / "bad_specs.yaml").read_text(encoding="utf-8"))
BAD_SPECS = [
    *((key, line, says, TRAIN + text) for key, line, says, text in BAD["after_train"]),
    *((key, line, says, text) for key, line, says, text in BAD["whole"]),
]
EXAMPLE = """\
name: resnet50
workdir: .
setup: |
  pip install -r requirements.txt
envs: {LR: 0.10, EPOCHS: 6, DEBUG: true, TEXT: "it's \\"quoted\\"\\nand\\tmore"}
train: {script: ./train.py, args: [--epochs, 6, --lr, 0.10]}
resources:
  cloud: local
  accelerators: V100:1
  cpus: 4+
  memory: 16
  spot_policy: auto
  max_price: 2.50
checkpoint: {uri: runs, every: 500 steps, keep_last: 5}
policy: {on_demand_after: 20m, return_to_spot: false, return_cooldown: 1h30m, hang_after: 90s}
max_duration: 1d
budget: {max_usd: "40"}
retry: {on_events: [error], max_restarts: 1}
num_nodes: 1
local:
  time_scale: 60
  seed: 7
  boot: 30s
  market: calm
  script:
    - {when: epoch 2 at 40%, then: interrupt}
    - {when: upload at 50 %, then: interrupt, notice: none}
    - {when: epoch 3 at 12.5%, then: no-spot, notice: 30s}
    - {when: after 10m, then: spot-returns}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    home = tmp_path / "project"
    (home / "folder").mkdir(parents=True)
    (home / "train.py").write_text("print('trained')\n")
    (home / "other.py").write_text("")
    (tmp_path / "outside.py").write_text("")
    (home / "link.py").symlink_to(tmp_path / "outside.py")
    return home


def write(folder: Path, text: str, name: str = "job.yaml") -> Path:
    path = folder / name
    path.write_bytes(text.encode())
    return path


def refused(path: Path, **overrides: object) -> SpecFileInvalid:
    with pytest.raises(SpecFileInvalid) as caught:
        load_spec(path, {key.replace("__", "."): value for key, value in overrides.items()})
    assert isinstance(caught.value, SpecInvalid)
    assert caught.value.exit_code == 2
    return caught.value


# --- what a file becomes


def test_a_file_becomes_typed_values_with_absolute_paths(folder: Path) -> None:
    spec = load_spec(write(folder, EXAMPLE))
    assert spec.workdir == folder
    assert (spec.train.script, spec.train.args) == ("train.py", ("--epochs", "6", "--lr", "0.10"))
    assert spec.envs == {"LR": "0.1", "EPOCHS": "6", "DEBUG": "True", "TEXT": 'it\'s "quoted"\nand\tmore'}
    assert spec.resources.accelerators == Accelerators("V100", 1)
    assert (spec.resources.cpus, spec.resources.memory) == (Amount(Decimal(4), at_least=True), Amount(Decimal(16)))
    assert (spec.resources.max_price, spec.budget.max_usd) == (Decimal("2.5"), Decimal("40"))
    assert spec.checkpoint.uri == str(folder / "runs")
    assert spec.checkpoint.every == Steps(500)
    assert spec.policy.return_cooldown == timedelta(minutes=90)
    assert spec.max_duration == timedelta(days=1)
    assert [step.when for step in spec.local.script] == [
        EpochAt(2, 0.4),
        UploadAt(0.5),
        EpochAt(3, 0.125),
        After(timedelta(minutes=10)),
    ]
    assert [step.notice for step in spec.local.script] == [
        timedelta(seconds=120),
        None,
        timedelta(seconds=30),
        None,
    ]
    assert [step.then for step in spec.local.script][2:] == [Action.NO_SPOT, Action.SPOT_RETURNS]


def test_the_shortest_file_gets_the_documented_defaults(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    spec = load_spec(write(folder, "run: python train.py", name="RésNet_50.v2.yaml"))
    assert (spec.name, spec.workdir, spec.train.run) == ("resnet-50-v2", folder, "python train.py")
    assert (spec.resources.cloud, spec.resources.spot_policy) == ("local", "auto")
    assert (spec.checkpoint.uri, spec.checkpoint.every) == ("/home/someone/.spotrun/runs", "auto")
    assert spec.checkpoint.keep_last == 3
    assert (spec.policy.on_demand_after, spec.policy.return_to_spot) == (timedelta(minutes=10), True)
    assert (spec.policy.return_cooldown, spec.policy.hang_after) == (timedelta(minutes=10), timedelta(minutes=5))
    assert (spec.retry.on_events, spec.retry.max_restarts) == (("error",), 2)
    assert (spec.max_duration, spec.budget.max_usd, spec.num_nodes) == (None, None, 1)
    assert (spec.local.time_scale, spec.local.seed, spec.local.market) == (1.0, 0, "calm")
    assert (spec.local.boot, spec.local.script) == (timedelta(seconds=40), ())


@pytest.mark.parametrize(("use_spot", "policy"), [("true", "spot"), ("false", "on-demand"), ("True", "spot")])
def test_skypilots_use_spot_is_a_spot_policy(folder: Path, use_spot: str, policy: str) -> None:
    spec = load_spec(write(folder, f"{TRAIN}resources: {{use_spot: {use_spot}}}"))
    assert spec.resources.spot_policy == policy


@pytest.mark.parametrize(
    ("written", "meant"),
    [("V100", "V100:1"), ("V100:4", "V100:4"), ("{A100-80GB: 8}", "A100-80GB:8"), ("'T4: 2'", "T4:2")],
)
def test_accelerators_in_each_of_skypilots_forms(folder: Path, written: str, meant: str) -> None:
    spec = load_spec(write(folder, f"{TRAIN}resources: {{accelerators: {written}}}"))
    assert str(spec.resources.accelerators) == meant


def test_a_workdir_elsewhere_is_relative_to_the_file_and_holds_the_script(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "folder" / "deep.py").write_text("")
    write(folder, "workdir: folder\ntrain: {script: deep.py}")
    monkeypatch.chdir(folder.parent)
    assert load_spec(Path("project/job.yaml")).workdir == folder / "folder"


def test_windows_line_ends_byte_order_marks_and_small_aliases_are_read(folder: Path) -> None:
    text = "\ufefftrain: {script: train.py}\r\nenvs: {A: &a x, B: *a}\r\n"
    assert load_spec(write(folder, text)).envs == {"A": "x", "B": "x"}


def test_merge_keys_fill_in_and_keys_of_the_user_s_own_are_left_alone(folder: Path) -> None:
    text = """\
x-note: no
x-cheap: &cheap {cloud: local, spot_policy: spot, x-why: it is}
x-small: &small {cpus: 4, spot_policy: auto}
train: {script: train.py, x-owner: me}
envs: &envs {A: b}
resources:
  cpus: 8
  <<: [*cheap, *small]
checkpoint: {x-list: [1, {no: way}], every: 10m}
local: {script: [{when: after 1m, then: interrupt, x-note: ~}]}
"""
    spec = load_spec(write(folder, text))
    assert (spec.resources.spot_policy, spec.resources.cpus) == ("spot", Amount(Decimal(8)))
    assert spec.envs == {"A": "b"}
    assert spec.checkpoint.every == timedelta(minutes=10)


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("2126-12-01T07:00Z", datetime(2126, 12, 1, 7, tzinfo=UTC)),
        ("2126-12-1 7:05:30 -05:30", datetime(2126, 12, 1, 12, 35, 30, tzinfo=UTC)),
        ("'2126-12-01T07:00'", datetime(2126, 12, 1, 7).astimezone(UTC)),
    ],
)
def test_a_deadline_may_be_a_moment(folder: Path, written: str, meant: datetime) -> None:
    spec = load_spec(write(folder, f"{TRAIN}policy: {{deadline: {written}}}"))
    assert spec.policy.deadline is not None
    assert deadline_at(spec.policy.deadline, datetime.now(UTC)) == meant
    assert RunSpec.from_dict(spec.to_dict()) == spec


def test_stored_spec_is_read_without_new_checks(folder: Path) -> None:
    policy = {"deadline": "2001-01-01T00:00:00", "expected_work": "3h"}
    spec = RunSpec.from_dict({"name": "a", "workdir": "/w", "train": {"run": "make"}, "policy": policy})
    assert RunSpec.from_dict(spec.to_dict()) == spec


@pytest.mark.parametrize("value", ["$(reboot)", "`id`", "a'b\"c", "a\nb: c", "${HOME}", "a\\", "ü — 你好", ""])
def test_env_values_arrive_exactly_as_written(folder: Path, value: str) -> None:
    spec = load_spec(write(folder, TRAIN + "envs:\n  A: " + json.dumps(value)))
    assert spec.envs == {"A": value}
    assert RunSpec.from_dict(json.loads(json.dumps(spec.to_dict()))).envs == {"A": value}


def test_a_spec_cannot_be_changed(folder: Path) -> None:
    spec = load_spec(write(folder, EXAMPLE))
    with pytest.raises(ValueError, match="frozen"):
        spec.resources.max_price = Decimal(9)  # type: ignore[misc]


# --- flags


def test_flags_win_over_the_file_and_are_named_when_they_are_wrong(folder: Path) -> None:
    path = write(folder, f"{TRAIN}resources:\n  use_spot: true\n  max_price: .nan\nenvs: {{A: b, C: null}}\n")
    flags = {
        "resources.max_price": "2.50",
        "resources.spot_policy": "on-demand",
        "envs.C": "d",
        "max_duration": "4h",
        "name": None,
    }
    spec = load_spec(path, flags)
    assert (spec.resources.max_price, spec.resources.spot_policy) == (Decimal("2.5"), "on-demand")
    assert (spec.envs, spec.max_duration, spec.name) == ({"A": "b", "C": "d"}, timedelta(hours=4), "job")


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("resources.max_price", "$2", "--max-price: '$2' is not a number of US dollars; write 2"),
        ("resources.max_price", "nan", "--max-price: 'nan' is not a number"),
        ("checkpoint.uri", 7, "--store: "),
        ("max_duration", "10 min", "--max-duration: '10 min' is not a duration; write 10m"),
        ("resources.cloud", "gpc", "--cloud: must be local, aws, gcp or slurm, not 'gpc'; write gcp"),
        ("resources.spot_policy", "spott", "--spott: must be spot, on-demand or auto"),
        ("resources.region", "a b", "--region: 'a b' is not allowed here"),
        ("envs.1A", "x", "--env 1A: is not a variable name"),
        ("envs.A", "\x1b[31m", "--env A: contains the control character U+001B"),
        ("name", "A b", "--name: 'A b' is not a name"),
    ],
)
def test_a_wrong_flag_is_named_as_the_user_wrote_it(folder: Path, key: str, value: str, told: str) -> None:
    error = refused(write(folder, TRAIN), **{key.replace(".", "__"): value})
    assert told in error.message
    assert "job.yaml:" not in error.message


# --- what is wrong with a file


def test_the_table_of_bad_specs_is_long_enough() -> None:
    assert len(BAD_SPECS) >= 110
    assert len({text for *_, text in BAD_SPECS}) == len(BAD_SPECS)


@pytest.mark.parametrize(("key", "line", "says", "text"), BAD_SPECS)
def test_a_bad_spec_is_refused_with_key_line_and_fix(folder: Path, key: str, line: int, says: str, text: str) -> None:
    path = write(folder, text)
    error = refused(path)
    found = [p for p in error.problems if (p.key, p.line) == (key, line)]
    assert found, error.message
    assert says in str(found[0])
    assert found[0].suggestion, "every problem says what to write instead"
    assert (found[0].column or 0) >= 1
    assert str(found[0]).startswith(f"{path}:{line}: ")
    assert str(found[0]) in error.message
    assert len(error.problems) == 1, error.message
    assert error.message.replace("\n", "").isprintable()


@pytest.mark.parametrize(
    "section",
    [
        *("resources: {max_price: -3}", "resources: {max_price: -3 USD}", "budget: {max_usd: $-3}", "num_nodes: -3"),
        *("report: {baseline: -3}", "checkpoint: {every: -3}", "data: {gb: -3}", "max_duration: -3h"),
        *("resources: {cpus: -3}", "aws: {volume_gb: -3}", "local: {time_scale: -3}", "policy: {deadline: -3h}"),
    ],
)
def test_advice_on_a_negative_number_never_drops_its_sign(folder: Path, section: str) -> None:
    (problem,) = refused(write(folder, f"{TRAIN}{section}\n")).problems
    assert problem.suggestion
    assert "3" not in problem.suggestion


def test_argument_with_a_space_may_be_a_value_or_a_text(folder: Path) -> None:
    args = ["--name=a b", "--wrap", "--lr 2", "a b", "--note two words"]
    assert load_spec(write(folder, f"train: {{script: train.py, args: {json.dumps(args)}}}")).train.args == tuple(args)
    stored = {"name": "a", "workdir": "/w", "train": {"script": "train.py", "args": ["--epochs 2"]}}
    assert RunSpec.from_dict(stored).train.args == ("--epochs 2",)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("sim.sh", 'is a shell script; write train: {run: "bash sim.sh --n 2"}'),
        ("a.ipynb", "is a notebook, and spotrun trains scripts; `jupyter nbconvert --to script a.ipynb` converts it"),
    ],
)
def test_script_that_is_no_python_names_what_trains_it(folder: Path, name: str, says: str) -> None:
    (folder / name).write_text("{}")
    error = refused(write(folder, f"train: {{script: {name}, args: [--n, 2]}}"))
    assert f"job.yaml:1: train.script: {says}" in error.message


INDEPENDENT = {
    "a type, a pair, a secret and the cloud": (
        """\
        train: {script: train.py, args: 5}
        policy: {deadline: tomorrow}
        num_nodes: 4
        local: {capacity: 2}
        resources: {spot_policy: spot}
        budget: {warn_at: 0.5}
        envs: {DB_PASSWORD: hunter2hunter2}
        """,
        ["train.args", "policy.deadline", "num_nodes", "budget.warn_at", "envs.DB_PASSWORD"],
    ),
    "an unknown key and the meaning of its neighbours": (
        "train: {script: train.py, run: x, colour: 1}\nlocal: {recommended: 0.5, tiem_scale: 2}\n",
        ["train", "train.colour", "local.recommended", "local.tiem_scale"],
    ),
    "the work folder and a limit": (
        "train: {script: train.py}\nworkdir: nowhere\nmax_duration: 5s\n",
        ["workdir", "max_duration"],
    ),
    "two items of a list": (
        "train: {script: train.py}\nnotify: [{command: 5}, {}]\nmax_duration: 5s\n",
        ["notify[0].command", "notify[1]", "max_duration"],
    ),
    "two entries of a mapping": (
        "train: {script: train.py}\nsecrets: {A: hm, B: 'ssm:/a/b'}\nenvs: {B: c, D: [e]}\n",
        ["secrets.A", "secrets.B", "envs.D"],
    ),
    "a name and a zone": (
        "train: {script: train.py}\nname: A b\nresources: {region: us-east-1, zone: us-west-2a}\n",
        ["name", "resources.zone"],
    ),
    "text that YAML misreads": (
        "train: {script: train.py}\nretry: {max_restarts: 010}\nmax_duration: 5s\n",
        ["retry.max_restarts", "max_duration"],
    ),
    "each step of a market": (
        """\
        run: x
        num_nodes: 2
        local:
          script:
            - {when: after 5m, then: spot-returns}
            - {when: after 5m, then: no-spot, members: 2}
        """,
        ["local.script[0].then", "local.script[1].members"],
    ),
}
FOLLOWING = {
    "a deadline that a strategy needs": (
        "train: {script: train.py}\npolicy: {strategy: spot_only, deadline: tomorrow}\n",
        ["policy.deadline"],
    ),
    "a budget that a warning needs": (
        "train: {script: train.py}\nbudget: {warn_at: 0.5, max_usd: lots}\n",
        ["budget.max_usd"],
    ),
    "a key that was misspelt": (
        "train: {scrpt: train.py}\nnodes: 2\nlocal: {script: [{when: after 5m, then: interrupt, members: 2}]}\n",
        ["train.scrpt", "nodes"],
    ),
    "a machine that the job names": (
        "train: {script: train.py}\nhardware: {box: {purchase_usd: 1}}\nresources: {home: box, cloud: gpc}\n",
        ["hardware.box.months", "hardware.box.days_per_month", "resources.cloud"],
    ),
    "half of a pair": (
        "run: x\nhardware: {box: {purchase_usd: 1, months: 1, days_per_month: 1, watts: x, usd_per_kwh: 1}}\n",
        ["hardware.box.watts"],
    ),
    "a section that was misspelt": (
        "Train: {scrpt: train.py}\nBudget: {maxUsd: 5}\nenv: {A: no}\n",
        ["Train", "Train.scrpt", "Budget", "Budget.maxUsd", "env", "env.A"],
    ),
    "a command of another tool": ("commands: [pip install x, python train.py]\n", ["commands"]),
    "two keys for the accelerators": ("run: x\ngpus: 4\ngpu_type: A100\n", ["gpus", "gpu_type"]),
    "a receiver outside a list": (
        "run: x\nnotify: {slack: 'https://example.org/x', on: failed}\n",
        ["notify", "notify.slack", "notify.on"],
    ),
    "two arguments with a space": (
        "train: {script: train.py, args: ['--epochs 5', '--name \"my run\"']}\n",
        ["train.args[0]", "train.args[1]"],
    ),
    "a section": ("train: {script: train.py}\npolicy: 5\nmax_duration: 8h\n", ["policy"]),
    "a partition": (
        "run: x\nresources: {cloud: slurm, zone: a}\nslurm: {partitions: [{name: a, capacity: spot}]}\n",
        ["slurm.partitions[0].usd_per_node_hour"],
    ),
}


@pytest.mark.parametrize("case", [*INDEPENDENT, *FOLLOWING])
def test_a_mistake_hides_no_independent_one_and_causes_no_other(folder: Path, case: str) -> None:
    text, keys = (INDEPENDENT | FOLLOWING)[case]
    error = refused(write(folder, dedent(text)))
    assert sorted(problem.key for problem in error.problems) == sorted(keys), error.message
    assert all(problem.line for problem in error.problems)


def test_error_about_a_resource_that_a_key_names_hides_no_other_and_is_listed_once() -> None:
    mistakes = Mistakes()
    with mistakes:
        raise CloudError("no such image", key=("aws", "image_id"))
    with mistakes:
        raise SpecInvalid("too dear", key=("resources", "max_price"))
    with pytest.raises(SeveralInvalid) as caught, mistakes:
        raise CloudError("no such image")  # the cloud's own, without a key
    assert [each.message for each in caught.value.errors] == ["no such image", "too dear"]


def test_a_check_is_made_for_all_values_that_have_no_mistake(folder: Path) -> None:
    read: list[str] = []

    def check(spec: RunSpec) -> None:
        read.append(spec.report.baseline)
        mistakes = Mistakes()
        with mistakes:
            raise SpecInvalid("is unknown", hint="name another", key=("report", "baseline"))
        with mistakes:
            read.append(str(spec.policy.deadline))
        mistakes.refuse()

    def load(policy: str) -> SpotrunError:
        path = write(folder, f"{TRAIN}report: {{baseline: g5.xlarge}}\npolicy: {policy}\n")
        with pytest.raises(SpotrunError) as caught:
            load_spec(path, check=check)
        return caught.value

    both = load("{deadline: tomorrow}")
    assert isinstance(both, SpecFileInvalid)
    assert [(each.key, each.line) for each in both.problems] == [("report.baseline", 2), ("policy.deadline", 3)]
    alone = load("{deadline: 8h}")
    assert type(alone) is SpecInvalid
    assert alone.message.endswith("job.yaml:2: report.baseline: is unknown")
    assert read == ["g5.xlarge", "g5.xlarge", "8:00:00"]


def test_a_newcomer_to_a_cloud_is_told_all_mistakes_at_once(folder: Path) -> None:
    job = """\
train: {script: train.py}
resources: {cloud: aws, region: us-east-9, zone: us-west-2a}
aws: {instance_types: [g5g.xlarge]}
policy: {strategy: spot_only}
"""
    refused_by_cloud = ["checkpoint.uri", "resources.region", "resources.zone", "aws.instance_types[0]"]
    sound = refused(write(folder, job)).problems
    refused_by_cloud.append("policy.strategy")
    assert [problem.key for problem in sound] == refused_by_cloud
    unreadable = refused(write(folder, f"{job}budget: {{max_usd: -3}}\nnum_nodes: many\n")).problems
    assert [problem.key for problem in unreadable] == [*refused_by_cloud, "budget.max_usd", "num_nodes"]


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("run: {}", "run"),
        ("run: a\nsetup: {}", "setup"),
        ("run: a\nenvs: {{A: {}}}", "envs.A"),
        ("train: {{script: train.py, args: [{}]}}", "train.args[0]"),
    ],
)
def test_too_long_argument_is_refused(folder: Path, text: str, key: str) -> None:
    most = WORD_MAX_BYTES - (2 if key == "envs.A" else 0)
    load_spec(write(folder, text.format("x" * most)))
    (problem,) = refused(write(folder, text.format("x" * (most + 1)))).problems
    assert problem.key == key
    assert "has 131,072 bytes, and Linux allows at most 131,071 in one argument or variable" in str(problem)


@pytest.mark.parametrize(("key", "line", "says", "text"), [each for each in BAD_SPECS if "gcp" in each[3]])
def test_a_bad_job_for_google_is_refused_without_a_call(
    folder: Path, monkeypatch: pytest.MonkeyPatch, key: str, line: int, says: str, text: str
) -> None:
    def connect(*_: object) -> None:
        raise AssertionError("somebody is called")

    monkeypatch.setattr("socket.socket.connect", connect)
    monkeypatch.setattr("socket.getaddrinfo", connect)
    assert (key, line) in {(problem.key, problem.line) for problem in refused(write(folder, text)).problems}


def test_every_problem_is_reported_at_once_in_the_order_of_the_file(folder: Path) -> None:
    text = """\
name: Bad Name
name: again
envs: {1A: x, B: no}
train: {script: nowhere.py, args: [a]}
resources:
  accelarators: V100:1
  max_price: $2
  image_id: x
workdir: .
policy: {hang_after: 5 min, deadline: 8}
num_nodes: 0
"""
    error = refused(write(folder, text))
    assert [(p.line, p.key) for p in error.problems] == [
        (1, "name"),
        (2, "name"),
        (3, "envs.1A"),
        (3, "envs.B"),
        (4, "train.script"),
        (6, "resources.accelarators"),
        (7, "resources.max_price"),
        (8, "resources.image_id"),
        (10, "policy.hang_after"),
        (10, "policy.deadline"),
        (11, "num_nodes"),
    ]
    assert error.message.startswith("11 problems in ")
    assert f"{folder}/job.yaml:6: resources.accelarators: unknown key; did you mean accelerators?" in error.message
    assert "spotrun validate" in (error.hint or "")


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"\xff\xfet\x00r\x00", "is not UTF-8"),
        (b"\x89PNG\r\n\x1a\n\x00\x00", "is not a text file"),
        (b"train: {script: train.py}\nname: \xe9", "line 2 is not UTF-8"),
        (b"#" * (1 << 20) + b"\n#", "larger than 1 MiB"),
    ],
)
def test_files_that_are_no_text_are_refused(folder: Path, content: bytes, told: str) -> None:
    (folder / "job.yaml").write_bytes(content)
    assert told in refused(folder / "job.yaml").message


def test_paths_that_are_no_file_are_refused(folder: Path) -> None:
    write(folder, TRAIN)
    assert f"no such file; did you mean {folder}/job.yaml?" in refused(folder / "jub.yaml").message
    assert "no such file" in refused(folder / "missing" / "job.yaml").message
    assert "is a folder" in refused(folder).message
    assert "not a regular file" in refused(Path("/dev/zero")).message
    assert (refused(folder / "jub.yaml").hint or "").startswith("name a JOB.yaml or a Python script")


def test_wrong_flag_is_reported_without_advice_on_the_file(folder: Path) -> None:
    with pytest.raises(SpecFileInvalid) as caught:
        load_spec(write(folder, TRAIN), {"resources.max_price": "abc"})
    assert caught.value.message.startswith("--max-price: 'abc' is not a number of US dollars")
    assert "validate" not in (caught.value.hint or "")
    assert "cannot be read" in refused(folder / "train.py" / "job.yaml").message
    assert "cannot be read" in refused(Path("a\0b")).message
    assert "cannot be read" in refused(folder / ("a" * 300)).message
    os.mkfifo(folder / "pipe")
    assert "not a regular file" in refused(folder / "pipe").message


def test_a_file_that_the_system_does_not_let_us_read_is_refused() -> None:
    assert "cannot be read: Input/output error" in refused(Path("/proc/self/mem")).message


MERGES = "a: &a {k: 1}\n" + "".join(
    f"{chr(98 + i)}: &{chr(98 + i)} {{<<: [{','.join(['*' + chr(97 + i)] * 9)}]}}\n" for i in range(9)
)
BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{chr(98 + i)}: &{chr(98 + i)} [{','.join(['*' + chr(97 + i)] * 9)}]\n" for i in range(9)
)


@pytest.mark.parametrize(
    "text",
    [
        BOMB,
        MERGES,
        "a: &a [*a]\n",
        "a: &a {b: *a}\n",
        "[" * 500_000,
        "{" * 500_000,
        "a: " + "{b: " * 200_000,
        "- " * 500_000,
        "envs:\n" + "".join(f"  A{i}: x\n" for i in range(60_000)),
        "".join(f"k{i}: 1\n" for i in range(4_000)),
        "x" * 900_000 + ": 1\n",
        "name: " + "9" * 900_000,
        "name: " + "1:" * 400_000 + "1",
        "name: '" + "a" * 900_000 + "'",
        "max_duration: " + "1h " * 300_000,
        "? " * 100_000,
        "&a " * 1_000,
        "*" * 1_000,
        "%YAML 9.9\n---\na: 1",
        "%TAG ! tag:x,2000:\n---\n!a b",
        "\x85\u2028",
        "name: \ud7ff\ue000\U0001f600",
    ],
)
def test_hostile_files_are_refused_quickly(folder: Path, text: str) -> None:
    began = time.process_time()
    error = refused(write(folder, text))
    assert time.process_time() - began < 5
    assert error.message.replace("\n", "").isprintable()
    assert all(len(str(problem)) < 2_000 for problem in error.problems)


@settings(max_examples=150, deadline=None)
@given(
    st.text(alphabet=st.sampled_from(list("ab:-[]{}&*!|>'\"#%@`,? \n\t0189.~<\\\x00\x1b\u202e=trainus")), max_size=60)
)
def test_no_text_at_all_gets_past_as_anything_but_a_spec_or_problems(text: str) -> None:
    document = spec_yaml.read_yaml(text)
    assert isinstance(document.data, dict)
    assert document.problems or document.data or text.strip()


# --- the resolved spec as data


def durations(at_least: int = 0) -> st.SearchStrategy[str]:
    return st.timedeltas(timedelta(microseconds=at_least), timedelta(days=3650)).map(duration_in_seconds)


def percents() -> st.SearchStrategy[str]:
    return st.decimals(0, 100, places=4).map(lambda percent: f"{percent}%")


def texts() -> st.SearchStrategy[str]:
    return st.text(st.characters(categories=("L", "N", "P", "S")), min_size=1, max_size=20)


def dollars() -> st.SearchStrategy[str]:
    return st.decimals("0.0001", 10_000, places=4).map(str)


def conditions() -> st.SearchStrategy[str]:
    return st.one_of(
        st.builds("epoch {} at {}".format, st.integers(1, 10**6), percents()),
        percents().map("upload at {}".format),
        durations().map("after {}".format),
    )


def steps() -> st.SearchStrategy[dict[str, Any]]:
    notice = st.one_of(st.just("none"), durations())
    return st.fixed_dictionaries(
        {"when": conditions(), "then": st.sampled_from(["interrupt", "no-spot"])}, optional={"notice": notice}
    )


def machines() -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(
        {"purchase_usd": st.integers(0, 10**6), "months": st.floats(0.5, 100), "days_per_month": st.integers(1, 31)},
        optional={"maintenance_usd": st.floats(0, 10**4), "speed": st.floats(0.01, 10), "cpus": st.integers(1, 64)},
    )


def specs() -> st.SearchStrategy[dict[str, Any]]:
    """Valid specs as YAML or JSON holds them."""
    fixed, amount = st.fixed_dictionaries, st.builds("{}{}".format, st.integers(1, 999), st.sampled_from(["", "+"]))
    variables = st.dictionaries(st.from_regex(r"[A-Z][A-Z0-9_]{0,9}", fullmatch=True), texts(), max_size=3)
    script = {"script": st.from_regex(r"[a-z]{1,9}\.py", fullmatch=True)}
    return fixed(
        {
            "name": st.from_regex(r"[a-z0-9][a-z0-9-]{0,62}", fullmatch=True),
            "workdir": st.just("/work"),
            "train": st.one_of(
                fixed(script, optional={"args": st.lists(texts(), max_size=3)}), fixed({"run": texts()})
            ),
        },
        optional={
            "setup": texts(),
            "envs": variables.map(lambda names: {name: v for name, v in names.items() if name[:8] != "SPOTRUN_"}),
            "resources": fixed(
                {},
                optional={
                    "accelerators": st.builds(
                        "{}:{}".format, st.sampled_from(["V100", "H100-80GB"]), st.integers(1, 8)
                    ),
                    "cpus": amount,
                    "memory": amount,
                    "zone": st.just("us-east-1a"),
                    "spot_policy": st.sampled_from(["spot", "on-demand", "auto"]),
                    "max_price": dollars(),
                },
            ),
            "hardware": st.dictionaries(st.sampled_from(["box", "Box-2.local"]), machines(), max_size=2),
            "checkpoint": fixed(
                {},
                optional={
                    "uri": st.just("/runs"),
                    "every": st.one_of(st.just("auto"), durations(1), st.integers(1, 9**9).map("{} steps".format)),
                    "keep_last": st.integers(1, 100),
                    "keep_every": st.integers(1, 9**9).map("{} steps".format),
                    "keep_best": fixed(
                        {"metric": st.just("val_loss")}, optional={"mode": st.sampled_from(["min", "max"])}
                    ),
                },
            ),
            "policy": fixed(
                {},
                optional={
                    "on_demand_after": durations(),
                    "return_to_spot": st.booleans(),
                    "return_cooldown": durations(),
                    "hang_after": durations(1),
                },
            ),
            "max_duration": durations(1),
            "budget": st.one_of(
                fixed({}, optional={"max_usd": dollars()}),
                fixed({"max_usd": dollars(), "warn_at": st.sampled_from(["0.5", 0.8, 1])}),
            ),
            "retry": fixed({}, optional={"on_events": st.lists(st.just("error"), max_size=1)}),
            "aws": fixed(
                {},
                optional={
                    "regions": st.lists(st.sampled_from(["us-east-1", "eu-west-3"]), min_size=1, max_size=2),
                    "instance_types": st.lists(st.just("g5.xlarge"), max_size=1),
                    "image_id": st.just("ami-0123456789abcdef0"),
                    "volume_gb": st.integers(8, 16_000),
                },
            ),
            "local": fixed(
                {},
                optional={
                    "time_scale": st.floats(1, 100_000),
                    "seed": st.integers(0, 2**63 - 1),
                    "boot": durations(),
                    "market": st.sampled_from(["calm", "generated"]),
                    "script": st.lists(steps(), max_size=3),
                },
            ),
        },
    )


@pytest.mark.exhaustive
@settings(max_examples=100, deadline=None)
@given(specs())
def test_a_spec_comes_back_from_json_exactly(data: dict[str, Any]) -> None:
    spec = RunSpec.from_dict(data)
    again = RunSpec.from_dict(json.loads(json.dumps(spec.to_dict())))
    assert again == spec
    assert again.to_dict() == spec.to_dict()
    assert again.spec_sha256 == spec.spec_sha256


@pytest.mark.exhaustive
@settings(max_examples=50, deadline=None)
@given(specs(), specs())
def test_two_specs_have_one_hash_exactly_when_they_are_equal(one: dict[str, Any], other: dict[str, Any]) -> None:
    a, b = RunSpec.from_dict(one), RunSpec.from_dict(other)
    assert (a == b) == (a.spec_sha256 == b.spec_sha256)


def test_the_resolved_spec_is_plain_json_with_visible_units(folder: Path) -> None:
    data = load_spec(write(folder, EXAMPLE)).to_dict()
    assert data["policy"]["on_demand_after"] == "1200s"
    assert data["resources"]["max_price"] == "2.5"
    assert data["checkpoint"]["every"] == "500 steps"
    assert data["local"]["script"][1] == {"when": "upload at 50%", "then": "interrupt", "notice": "none"}
    assert "setup" in data
    assert "instance_type" not in data["resources"]


def test_a_resolved_spec_is_read_where_its_workdir_does_not_exist() -> None:
    spec = RunSpec.from_dict({"name": "a", "workdir": "/nowhere", "train": {"script": "a.py"}})
    assert spec.workdir == Path("/nowhere")


def test_data_from_elsewhere_are_refused_with_every_problem() -> None:
    with pytest.raises(SpecInvalid) as caught:
        RunSpec.from_dict({"name": "A", "train": {"script": "../a.py"}, "workdir": "a", "budget": {"max_uds": 1}})
    told = caught.value.message
    assert len(told.splitlines()) == 4
    assert "budget.max_uds: unknown key; did you mean max_usd?" in told


def test_a_price_written_in_two_ways_is_one_spec() -> None:
    def priced(price: object) -> RunSpec:
        data = {"name": "a", "workdir": "/w", "train": {"run": "make"}, "resources": {"max_price": price}}
        return RunSpec.from_dict(data)

    assert priced("2.50").spec_sha256 == priced(2.5).spec_sha256


# --- the schema for editors


def fields_of(model: type[BaseModel]) -> set[str]:
    return {key.rpartition(".")[2] for key in keys_of(model)}


def described(schema: dict[str, Any], place: dict[str, Any]) -> bool:
    return bool(place.get("description") or schema["$defs"][place["$ref"].rpartition("/")[2]].get("description"))


def test_news_may_name_a_variable_in_the_place_of_a_secret(folder: Path) -> None:
    command = "curl -u $USER:$PASS -d @- https://$USER@hooks.slack.com/$PATH_OF_HOOK"
    spec = load_spec(write(folder, TRAIN + f"notify: [{{command: '{command}'}}, {{webhook: $HOOK, on: [done]}}]"))
    assert [each.command for each in spec.notify] == [command, None]
    assert spec.notify[0].on == NEWS_KINDS
    assert (spec.notify[1].variable, spec.notify[1].on) == ("HOOK", ("done",))
    assert RunSpec.from_dict(json.loads(json.dumps(spec.to_dict()))) == spec


def test_no_message_shows_what_may_be_a_secret(folder: Path) -> None:
    secret = "ghp_0123456789abcdef"
    for item in (f"webhook: {secret}", f"webhook: https://example.org/{secret}", f"command: curl {secret}"):
        assert secret not in str(refused(write(folder, TRAIN + f"notify: [{{{item}}}]")))


def test_the_schema_knows_and_describes_every_key() -> None:
    schema = json_schema()
    objects = [schema, *schema["$defs"].values()]
    keys = {key for part in objects for key in part["properties"]}
    assert keys == fields_of(RunSpec) | {"run", "use_spot", "infra", "any_of"}
    for part in objects:
        assert part["additionalProperties"] is False
        for key, place in part["properties"].items():
            assert described(schema, place), key
    assert json.loads(json.dumps(schema)) == schema


def test_the_schema_shows_defaults_as_users_write_them() -> None:
    policy = json_schema()["$defs"]["PolicySpec"]["properties"]
    assert policy["on_demand_after"]["default"] == "10m"
    assert '"null"' not in json.dumps(json_schema())


def test_the_shipped_examples_are_valid_and_known_to_the_schema() -> None:
    schema = json_schema()
    for path in sorted(EXAMPLES.glob("*.yaml")):
        load_spec(path)
        for section, value in yaml.safe_load(path.read_text()).items():
            place = schema["properties"][section]
            known = schema["$defs"][place["$ref"].rpartition("/")[2]]["properties"] if "$ref" in place else None
            assert known is None or set(value) <= set(known)


# --- units and conditions


@given(st.timedeltas(timedelta(0), timedelta(days=3650)))
def test_durations_come_back_from_both_written_forms(duration: timedelta) -> None:
    assert parse_duration(duration_in_seconds(duration)) == duration
    assert parse_duration(format_duration(duration)) == duration


@pytest.mark.parametrize(
    ("written", "seconds", "short"),
    [("90s", 90, "1m30s"), ("10m", 600, "10m"), ("1.5h", 5400, "1h30m"), ("1d2h3m4s", 93784, "1d2h3m4s")],
)
def test_durations_in_figures(written: str, seconds: int, short: str) -> None:
    assert parse_duration(written) == timedelta(seconds=seconds)
    assert format_duration(parse_duration(written)) == short


@given(conditions())
def test_conditions_come_back_from_their_words(text: str) -> None:
    assert parse_trigger(str(parse_trigger(text))) == parse_trigger(text)


@pytest.mark.parametrize(
    "price", ["0x10", "1e9", "٣", "１", "inf", "-0", "+1", " 1", "1 ", "", None, [1], float("nan")]
)
def test_nothing_but_plain_dollars_is_a_price(price: object) -> None:
    with pytest.raises(Unreadable):
        parse_usd(price)


def test_reading_a_spec_imports_nothing_heavy() -> None:
    code = (
        "import sys, spotrun.spec.model; early = 'yaml' in sys.modules; import spotrun.spec.file; "
        "heavy = {'torch', 'lightning', 'typer', 'rich', 'boto3', 'numpy'} & set(sys.modules); "
        "sys.exit(f'{early} {heavy}' if early or heavy else 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_state_is_of_the_work_folder_and_has_a_folder_of_its_own(tmp_path: Path) -> None:
    def of(text: str) -> tuple[tuple[str, ...], str]:
        job = tmp_path / "job.yaml"
        job.write_text(text)
        train = load_spec(job).train
        return train.state_paths, train.state_dir

    assert of("run: ./simulate") == (("spotrun-state",), "spotrun-state")
    assert of("run: ./simulate\ntrain: {state: [a.ckpt]}") == (("a.ckpt", "spotrun-state"), "spotrun-state")
    assert of("train: {run: ./simulate, state: [./out/, out/deep, a.ckpt]}") == (("a.ckpt", "out"), "out")
    assert of("train: {run: ./simulate, state: [out/, '!out/*.log', '!tmp/']}") == (("out",), "out")
    assert of("train: {run: ./simulate, state: ['run 1/ckpt/']}") == (("run 1/ckpt",), "run 1/ckpt")


def test_state_of_too_many_files_is_refused_at_its_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert spec_file.STATE_FILES_MAX == stored_files.STATE_FILES_MAX
    monkeypatch.setattr(spec_file, "STATE_FILES_MAX", 3)
    (tmp_path / "out" / "deep").mkdir(parents=True)
    job = tmp_path / "job.yaml"
    job.write_text("run: ./simulate\ntrain:\n  state:\n    - out/\n")
    for number in range(4):
        assert load_spec(job)
        (tmp_path / "out" / "deep" / f"{number}.bin").touch()
    with pytest.raises(SpecFileInvalid, match=r"job\.yaml:4: train\.state\[0\].*holds more than 3 files"):
        load_spec(job)


@pytest.fixture
def package(folder: Path) -> Path:
    (folder / "pkg" / "app").mkdir(parents=True)
    for name in ("__init__", "train", "app/__init__", "app/__main__"):
        (folder / "pkg" / f"{name}.py").write_text("")
    return folder


@pytest.mark.parametrize(
    ("name", "source"),
    [("pkg.train", "pkg/train.py"), ("pkg.app", "pkg/app/__main__.py"), ("torch.distributed.run", None)],
)
def test_a_module_is_run_as_by_python_m(package: Path, name: str, source: str | None) -> None:
    train = load_spec(write(package, f"train: {{module: {name}, args: [--epochs, 2]}}")).train
    assert train.source(package) == source
    assert (train.key, train.title) == (("train", "module"), name)
    command = training_command(load_spec(package / "job.yaml"), package)
    assert command == [sys.executable, "-m", name, "--epochs", "2"]


def test_a_module_that_is_not_in_its_package_is_no_module(package: Path) -> None:
    with pytest.raises(SpecFileInvalid, match=r"no such module.*did you mean pkg\.train\?"):
        load_spec(write(package, "train: {module: pkg.trian}"))
