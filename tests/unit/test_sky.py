"""Files in the words of SkyPilot: what each becomes, or what its author is told to write instead."""

from __future__ import annotations

import contextlib
import json
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from spotrun.agent.gang.rendezvous import alone
from spotrun.spec.file import load_spec
from spotrun.spec.sky.commands import SET_IN_RUN
from spotrun.spec.sky.job import translate
from spotrun.spec.sky.reading import Reading, read_sky, same_job
from spotrun.spec.yaml import NODES_MAX
from tests.support.called_spotrun import Spotrun, spotrun
from tests.support.doc_pages import blocks, prints
from tests.support.repository import ROOT

__all__ = ["spotrun"]
FILES = ROOT / "tests" / "data" / "sky"
ODD = yaml.safe_load((ROOT / "tests" / "support" / "odd_sky_files.yaml").read_text(encoding="utf-8"))
STORE = "s3://acme-runs/all"


@dataclass(frozen=True)
class Taken:
    """The job has these values, by their keys; None for what it leaves out."""

    values: Mapping[str, Any]


@dataclass(frozen=True)
class Refused:
    """Each with its line, its key, and words of what is said."""

    lines: tuple[tuple[int | None, str, str], ...]


def taken(**values: object) -> Taken:
    return Taken({name.replace("__", "."): value for name, value in values.items()})


def refused(*lines: tuple[int | None, str, str]) -> Refused:
    return Refused(lines)


IN_RUN = "is stored in the run's folder"
SAID: dict[str, Taken | Refused] = {
    "hello": taken(name="hello", resources__cloud="local", resources__spot_policy="auto", num_nodes=1),
    "first-steps": taken(resources__cloud="aws", resources__accelerators="A10G:1", setup="pip install -r …"),
    "spot-in-a-region": taken(resources__cloud="aws", resources__region="us-west-2", resources__spot_policy="spot"),
    "in-a-zone": taken(resources__cloud="aws", resources__zone="us-east-1b", resources__instance_type="g5.2xlarge"),
    "a-zone-of-any-region": taken(resources__zone="us-east-1a", resources__region=None),
    "place-in-three-keys": taken(
        resources__region="us-east-2", resources__accelerators="V100:2", resources__spot_policy="spot"
    ),
    "google": taken(
        resources__cloud="gcp",
        gcp__volume_gb=300,
        gcp__image="projects/acme-training/global/images/family/torch-base",
    ),
    "kubernetes": refused((3, "resources.infra", "k8s is not supported; spotrun rents on local, aws, gcp and slurm")),
    "anywhere": taken(resources__cloud="local", resources__cpus="4+", resources__memory="8+"),
    "another-cloud": refused((2, "resources.infra", "azure is not supported; spotrun rents on")),
    "accelerators-in-order": taken(resources__accelerators={"any_of": ["L4:1", "A10G:1", "T4:1"]}),
    "accelerators-as-a-set": taken(resources__accelerators={"any_of": ["A10G:1", "V100:1"]}),
    "gpus-for-accelerators": taken(resources__accelerators="A100:8"),
    "half-a-gpu": refused((3, "resources.accelerators", "not a whole number of accelerators; write A100:1")),
    "tpu": refused(
        (3, "resources.infra", "Google Cloud has no region us-central2; did you mean us-central1?"),
        (4, "resources.accelerators", "is a TPU, which spotrun does not train on"),
        (5, "resources.accelerator_args", "does not choose this; remove it"),
        (None, "checkpoint.uri", "cannot be reached from instances on gcp"),
    ),
    "amounts": taken(resources__memory="128", aws__volume_gb=1024, resources__max_price="1.75", resources__cpus="16"),
    "tiers": refused(
        (4, "resources.disk_tier", "set it in a launch template (aws.launch_template)"),
        (5, "resources.network_tier", "does not choose this; remove it"),
    ),
    "ports-and-labels": refused(
        (5, "resources.ports", "has no open port; remove it; `spotrun ssh RUN`"),
        (8, "resources.labels", "not built yet; remove it for now"),
    ),
    "machine-image": taken(aws__image_id="ami-0f1e2d3c4b5a69788", resources__region="us-east-1"),
    "images-of-regions": refused((4, "resources.image_id", "keep one, and write image_id: ami-… and region: NAME")),
    "image-by-tag": refused((3, "resources.image_id", "is not an image that spotrun can start; remove it")),
    "container": refused(
        (9, "envs.SKYPILOT_DOCKER_PASSWORD", "is a password, and envs are written into the ledger; write secrets: ["),
    ),
    "any-of-regions": taken(resources__cloud="aws", resources__region=None, aws__regions=["us-east-1", "us-west-2"]),
    "any-of-gpus": taken(
        resources__accelerators={"any_of": ["L4:1", "A10G:1", "p3.2xlarge"]}, resources__region="us-east-1"
    ),
    "any-of-clouds": refused((5, "resources.any_of[1].infra", "the candidates name aws and gcp; keep one cloud")),
    "any-of-pairs": refused((2, "resources.any_of", "would also rent aws us-west-2 A100:8 on demand, which no")),
    "spot-before-on-demand": taken(resources__spot_policy="auto", resources__region="us-east-2"),
    "regions-in-order": refused((3, "resources.ordered", "in no other order; write any_of in place of ordered")),
    "managed-finetune": taken(
        retry__max_restarts=3,
        resources__spot_policy="spot",
        secrets={"HF_TOKEN": "", "WANDB_API_KEY": ""},
        envs={"MODEL": "my-org/base-8b", "LR": "2e-05", "WARMUP": "100", "PACKING": "True"},
    ),
    "checkpoints-in-a-bucket": refused(
        (
            7,
            "file_mounts./checkpoint",
            f"spotrun neither makes nor mounts a bucket; remove it; what the job writes into workdir {IN_RUN}",
        )
    ),
    "local-files": refused(
        (4, "file_mounts./data/corpus", "put ./corpus into workdir, and read it there in place of /data/corpus"),
        (5, "file_mounts.~/.config/trainer.yaml", "put ~/trainer.yaml into workdir"),
        (6, "file_mounts.~/.netrc", "credentials are not copied; remove it, and write secrets: [NAME]"),
    ),
    "buckets-copied": refused(
        (5, "file_mounts./data/train", "write `aws s3 sync s3://acme-datasets/imagenet /data/train` into run"),
        (6, "file_mounts./data/val", "write `aws s3 sync 's3://acme-datasets/val set' /data/val` into run"),
        (9, "file_mounts.~/weights", "write `gcloud storage rsync -r gs://acme-weights/v2 ~/weights` into run"),
        (10, "file_mounts./data/more", "r2:// is not copied or mounted; read it in the script"),
    ),
    "buckets-mounted": refused(
        (5, "file_mounts./data", "nothing is mounted; read s3://acme-datasets in the script"),
        (8, "file_mounts./ckpt", "nothing is mounted; read gs://acme-checkpoints/run1 in the script"),
        (14, "file_mounts./upload", "only workdir is uploaded; put ./corpus into workdir"),
        (
            19,
            "file_mounts./mnt/disk",
            f"no volume is attached to an instance; remove it; what the job writes into workdir {IN_RUN}",
        ),
    ),
    "volumes": refused((2, "resources.infra", "k8s is not supported"), (4, "volumes", "nothing is mounted; read data")),
    "several-nodes": taken(num_nodes=2, resources__accelerators="V100:2"),
    "values-of-secrets": refused(
        (5, "envs.WANDB_API_KEY", "looks like a secret"),
        (7, "envs.DATASET", "has no value; give a value by `--env DATASET=…`"),
        (9, "secrets.HF_TOKEN", "a value does not belong in a file; leave the value out"),
    ),
    "autostop": taken(resources__accelerators="A10G:1", resources__cloud="aws"),
    "autostop-against-us": refused(
        (5, "resources.autostop.wait_for", "write max_duration: 8h"),
        (6, "resources.autostop.hook", "write the command at the end of run"),
    ),
    "work-from-git": refused((2, "workdir", "clone it and write its path")),
    "service": refused(
        (1, "service", "and does not serve; remove it"), (8, "resources.ports", "has no open port; remove it")
    ),
    "settings-and-hooks": refused(
        (2, "config", "settings of SkyPilot are not read; remove it"),
        (5, "config.hooks", "let the command save when it gets SIGTERM"),
    ),
    "strategies": refused(
        (6, "resources.job_recovery.strategy", "to stay in one region name it"),
        (7, "resources.job_recovery.recover_on_exit_codes", "write retry: {max_restarts: 10}"),
    ),
    "pipeline": refused((2, "", "a second document begins here; keep one document per file")),
    "commands-that-know-skypilot": refused(
        (3, "setup", "HF_TOKEN is a secret, which only the training has; move the line"),
        (3, "setup", "$SKYPILOT_SETUP_NODE_RANK is empty; move the line that needs it into run"),
        (6, "run", "there is no ~/sky_workdir: commands begin in the work folder; remove the cd"),
        (6, "run", "spotrun does not set $SKYPILOT_CLUSTER_INFO; write ${SKYPILOT_CLUSTER_INFO:-…}"),
    ),
    "sweep": taken(envs={"LR": "0.1", "SEED": "7"}, resources__accelerators="T4:1"),
    "name-with-capitals": refused((1, "name", "write mingpt-ddp")),
}


def read(path: Path) -> Reading:
    """Google's runs need a bucket of Google's."""
    return read_sky(path, STORE.replace("s3:", "gs:") if path.stem == "google" else STORE)


def at(data: dict[str, Any], key: str) -> object:
    for part in key.split("."):
        data = data.get(part, {})
    return data or None


def test_each_file_has_its_row() -> None:
    assert {path.stem for path in FILES.glob("*.yaml")} == SAID.keys()
    assert len(SAID) >= 40


@pytest.mark.parametrize("name", SAID)
def test_a_file_is_taken_with_its_values_or_refused_with_its_lines(name: str) -> None:
    reading, said = read(FILES / f"{name}.yaml"), SAID[name]
    found = [(row.line, row.key, str(row)) for row in reading.rows if row.problem is not None]
    if isinstance(said, Taken):
        assert reading.spec is not None, found
        job = reading.spec.to_dict()
        for key, value in said.values.items():
            assert at(job, key) == value if "…" not in str(value) else str(at(job, key)).startswith(str(value)[:-1])
        return
    assert reading.spec is None
    assert [(line, key) for line, key, _ in found] == [(line, key) for line, key, _ in said.lines]
    for (_, _, told), (_, _, words) in zip(found, said.lines, strict=True):
        assert words in told
    assert all(row.problem.suggestion for row in reading.rows if row.problem is not None)


@pytest.mark.parametrize("name", [name for name, said in SAID.items() if isinstance(said, Taken)])
def test_skypilot_file_and_its_written_job_are_the_same_job(name: str, tmp_path: Path) -> None:
    path = Path(shutil.copy(FILES / f"{name}.yaml", tmp_path))
    reading = read(path)
    store = STORE.replace("s3:", "gs:") if name == "google" else STORE
    assert reading.spec == load_spec(path, default_store=store)
    written = reading.text()
    assert same_job(tmp_path / "job.yaml", written, store) == reading.spec
    assert "infra" not in written


def test_each_key_of_a_file_has_a_row() -> None:
    reading = read(FILES / "managed-finetune.yaml")
    assert [(row.line, row.key, row.taken) for row in reading.rows] == [
        (1, "name", "it is"),
        (3, "resources.infra", "resources.cloud: aws"),
        (4, "resources.accelerators", "it is"),
        (5, "resources.use_spot", "resources.spot_policy: spot"),
        (6, "resources.disk_size", "aws.volume_gb: 512, gcp.volume_gb: 512"),
        (
            7,
            "resources.job_recovery",
            "what happens anyway: spotrun always recovers from an interruption, retry.max_restarts: 3",
        ),
        (10, "workdir", "it is"),
        (11, "envs", "it is"),
        (16, "secrets", "it is"),
        (19, "setup", "it is"),
        (21, "run", "it is"),
    ]


# -- odd and hostile files -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("line", "key", "words", "text"), ODD)
def test_an_odd_value_is_refused_at_its_line(tmp_path: Path, line: int, key: str, words: str, text: str) -> None:
    path = tmp_path / "task.yaml"
    path.write_text(f"{text}\nrun: 'true'\n")
    reading = read_sky(path, STORE)
    assert reading.spec is None
    told = {(row.line, row.key): str(row) for row in reading.rows if row.problem is not None}
    assert words in told[(line, key)], told


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("resources: {infra: aws}", True),
        ("resources: {infra: aws}\naws: {instance_profile: reads-data}", False),
    ],
)
def test_a_copy_from_a_bucket_asks_for_a_role_that_reads_it(tmp_path: Path, text: str, told: bool) -> None:
    path = tmp_path / "task.yaml"
    path.write_text(f"{text}\nfile_mounts: {{/data: s3://acme/data}}\nrun: 'true'\n")
    (row,) = [row for row in read_sky(path, STORE).rows if row.problem is not None]
    assert "write `aws s3 sync s3://acme/data /data` into run" in str(row)
    assert ("name a role that can read it: aws: {instance_profile: NAME}" in str(row)) == told


def test_a_command_may_have_a_default_for_what_is_not_here_and_write_a_dollar_for_later(tmp_path: Path) -> None:
    path = tmp_path / "task.yaml"
    path.write_text(
        "envs: {SKYPILOT_MINE: 1}\nsecrets: [HF_TOKEN]\n"
        "setup: 'test -z ${HF_TOKEN:-} && echo $SKYPILOT_TASK_ID'\n"
        "run: |\n  # cd ~/sky_workdir; echo $SKYPILOT_IN_A_COMMENT\n"
        "  echo ${SKYPILOT_JOB_RANK:-0} ${SKYPILOT_JOB_RANK+x} \\$SKYPILOT_LATER $SKYPILOT_MINE $HF_TOKEN\n"
    )
    assert read_sky(path, STORE).spec is not None


def test_anchors_and_merges_are_read_before_the_words_are(tmp_path: Path) -> None:
    path = tmp_path / "task.yaml"
    path.write_text(
        "x-base: &base {infra: aws/us-east-1, use_spot: true}\n"
        "resources: {<<: *base, accelerators: T4:1}\n"
        "run: 'true'\n"
    )
    reading = read_sky(path, STORE)
    assert reading.spec is not None
    assert (reading.spec.resources.cloud, reading.spec.resources.region) == ("aws", "us-east-1")
    assert [row.key for row in reading.rows] == [
        "resources.infra",
        "resources.use_spot",
        "resources.accelerators",
        "run",
    ]


@pytest.mark.parametrize(
    "text",
    [
        "&a [*a]",
        "a: &a [x]\nb: &b [" + "*a, " * 40 + "]\nc: &c [" + "*b, " * 40 + "]\nd: [" + "*c, " * 40 + "]",
        "resources: " + "{any_of: [" * 200,
        "run: " + "x" * (2 << 20),
        "- run: a",
        "",
        "run: [\x00]",
        "envs: {" + ", ".join(f"A{i}: 1" for i in range(NODES_MAX)) + "}",
    ],
)
def test_a_hostile_file_is_refused_at_once(spotrun: Spotrun, tmp_path: Path, text: str) -> None:
    path = tmp_path / "task.yaml"
    path.write_text(text)
    said = spotrun("validate", "--from", "sky", path)
    assert said.code == 2
    assert "Traceback" not in said.err
    assert "taken as" not in said.out, "nothing is known of a key before the text is read to its end"


_WORDS = st.sampled_from(
    [
        *("infra", "cloud", "region", "any_of", "ordered", "use_spot", "accelerators", "gpus", "disk_size", "memory"),
        *("autostop", "job_recovery", "image_id", "resources", "file_mounts", "envs", "secrets", "config", "hooks"),
        *("run", "setup"),
    ]
)
_LEAVES = st.one_of(st.booleans(), st.integers(), st.text(max_size=8), st.sampled_from(["aws/us-east-1", "T4:1", "*"]))
_VALUES = st.recursive(
    _LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_WORDS, inner, max_size=4), max_leaves=12
)


@pytest.mark.exhaustive
@settings(max_examples=150, deadline=None)
@given(st.dictionaries(_WORDS, _VALUES, max_size=5), _VALUES)
def test_no_value_of_any_type_makes_the_words_fail(data: dict[str, Any], resources: object) -> None:
    found = translate({**data, "resources": resources}, set())
    assert all(problem.message for problem in found.problems)


# -- the command -----------------------------------------------------------------------------------------------------


def test_the_command_shows_rows_notes_and_writes_the_job(
    spotrun: Spotrun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPOTRUN_STORE", STORE)
    task = Path(shutil.copy(FILES / "any-of-regions.yaml", tmp_path / "task.yaml"))
    said = spotrun("validate", "--from", "sky", task, "--write", tmp_path / "job.yaml")
    assert said.code == 0, said.err
    assert (
        "   5  resources.any_of        taken as resources.cloud: aws, aws.regions: [us-east-1, us-west-2]\n" in said.out
    )
    assert "note: a command that fails is started again twice" in said.err
    assert load_spec(tmp_path / "job.yaml", default_store=STORE) == load_spec(task, default_store=STORE)
    again = spotrun("validate", "--from", "sky", task, "--write", tmp_path / "job.yaml")
    assert again.code == 2
    assert "exists already" in again.err
    assert "--write needs a file name, not -" in spotrun("validate", "--from", "sky", task, "--write", "-").err
    elsewhere = spotrun("validate", "--from", "sky", task, "--write", tmp_path.parent / "job.yaml")
    assert "is not in the same folder as" in elsewhere.err
    assert not (tmp_path.parent / "job.yaml").exists()


def test_a_file_that_is_not_taken_writes_nothing_and_shows_all_rows(spotrun: Spotrun, tmp_path: Path) -> None:
    task = Path(shutil.copy(FILES / "values-of-secrets.yaml", tmp_path / "task.yaml"))
    said = spotrun("validate", "--from", "sky", task, "--write", tmp_path / "job.yaml")
    assert (said.code, (tmp_path / "job.yaml").exists()) == (2, False)
    assert "hf_AbCd" not in said.out + said.err
    assert said.out.count("not taken: ") == 3
    rows = json.loads(spotrun("validate", "--from", "sky", task, "--json").out)
    assert rows["job"] is None
    assert {"line": 1, "key": "name", "taken": "it is", "error": None, "fix": None} in rows["keys"]


def test_a_file_that_names_no_cloud_need_not_be_rehearsed_here(spotrun: Spotrun, tmp_path: Path) -> None:
    task = tmp_path / "task.yaml"
    task.write_text("resources: {accelerators: H100:8}\nrun: 'true'\n")
    said = spotrun("validate", "--from", "sky", task)
    assert said.code == 0
    assert "note: the job cannot run on local: no offering suits resources" in said.err
    task.write_text("resources: {accelerators: H100:8, infra: local}\nrun: 'true'\n")
    assert spotrun("validate", "--from", "sky", task).code == 2


def test_the_page_shows_what_is_printed(spotrun: Spotrun, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SPOTRUN_STORE", STORE)
    Path("requirements.txt").touch()  # which the page's job installs
    for block in blocks(ROOT / "docs" / "skypilot.md"):
        if block.file is not None:
            Path(block.file).write_text(block.text)
        for command, expected in block.commands() if block.kind == "console" else ():
            assert command.startswith("spotrun validate ")
            with contextlib.redirect_stderr(sys.stdout):
                said = spotrun(*command.split()[1:])
            assert prints(expected, said.out), said.out


def test_a_launch_that_is_refused_names_the_command_for_each_key(spotrun: Spotrun, tmp_path: Path) -> None:
    task = Path(shutil.copy(FILES / "autostop-against-us.yaml", tmp_path / "task.yaml"))
    said = spotrun("launch", "-y", task)
    assert said.code == 2
    assert f"{task}:6: resources.autostop.hook: nothing runs on an instance after its run" in said.err
    assert f"try: `spotrun validate --from sky {task}` shows the translation of each key" in said.err


def test_flags_that_go_with_another_are_refused_without_it(spotrun: Spotrun, tmp_path: Path) -> None:
    assert "--write works only with --from sky" in spotrun("validate", "a.yaml", "--write", "b.yaml").err
    assert "one of sky" in spotrun("validate", "a.yaml", "--from", "dstack").err
    assert "no such file" in spotrun("validate", "--from", "sky", tmp_path / "none.yaml").err


def test_a_variable_without_a_value_is_given_at_the_launch(tmp_path: Path) -> None:
    task = tmp_path / "task.yaml"
    task.write_text("envs: {DATASET: , N: 3}\nrun: 'true'\n")
    assert load_spec(task, {"envs.DATASET": "mnist"}).envs == {"DATASET": "mnist", "N": "3"}


def test_a_run_on_one_instance_finds_the_variables_that_a_command_may_read() -> None:
    found = alone("V100:4")
    assert {name: text for name, text in found.items() if name in SET_IN_RUN} == {
        "SKYPILOT_NUM_NODES": "1",
        "SKYPILOT_NODE_RANK": "0",
        "SKYPILOT_NODE_IPS": "127.0.0.1",
        "SKYPILOT_NUM_GPUS_PER_NODE": "4",
    }
    assert alone("")["SPOTRUN_NUM_GPUS_PER_NODE"] == "1"
