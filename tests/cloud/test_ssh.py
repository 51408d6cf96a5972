"""`spotrun ssh`: the instance that lives, the command that leads there, and what to do where there is none."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import psutil
import pytest
from msgspec.structs import replace

from spotrun.cli.ssh import become, chosen, forwards_of
from spotrun.clouds.aws.cloud import PLUGIN
from spotrun.clouds.aws.driver import AwsDriver
from spotrun.clouds.local.driver import LocalDriver
from spotrun.errors import CloudError, NotInstalled, SpecInvalid
from spotrun.instance import Instance, InstanceState
from spotrun.run import events as ev
from spotrun.runs.open_run import OpenRun
from spotrun.spec.clouds import find_cloud
from tests.support.agent_bench import UID, AgentRun
from tests.support.aws_launches import request
from tests.support.decisions import spec as read_spec
from tests.support.ec2_server import REGION, Ec2Account
from tests.support.eventually import eventually
from tests.support.google_login import log_in
from tests.support.histories import intended, offering


@pytest.fixture
def run(tmp_path: Path) -> OpenRun:
    return OpenRun(made(tmp_path).store.uri, "test")


def made(folder: Path) -> AgentRun:
    return AgentRun(folder, scale=1.0, resources={"cloud": "aws"}, checkpoint={"uri": "s3://bucket/runs"})


def launched(cloud: AwsDriver, launch: int) -> Instance:
    return cloud.launch(replace(request(cloud), token=f"{UID}-{launch}", run_uid=UID, launch=launch))


def train_on(run: OpenRun, instance: Instance) -> None:
    """Write down that the run trains there."""
    written = run.ledger.append(lambda _: intended(instance.offering, run.clock.now()))
    assert written is not None
    started = ev.AttemptStarted(launch=written.number, instance_id=instance.instance_id, booted_at=run.clock.now())
    run.ledger.append(lambda _: started)


def test_a_session_is_opened_where_the_run_trains(cloud: AwsDriver, run: OpenRun) -> None:
    first, newest = launched(cloud, 1), launched(cloud, 2)
    assert chosen(run, None).instance_id == newest.instance_id
    train_on(run, first)
    found = chosen(run, None)
    assert found.instance_id == first.instance_id
    shell = run.cloud.shell(run.spec, found)
    assert str(shell) == f"aws ssm start-session --target {first.instance_id} --region {REGION}"
    assert chosen(run, newest.instance_id).instance_id == newest.instance_id
    cloud.terminate(first.instance_id)
    run.driver._snapshots.clear()  # type: ignore[attr-defined]
    assert chosen(run, None).instance_id == newest.instance_id
    with pytest.raises(CloudError, match="not a running instance") as refused:
        chosen(run, first.instance_id)
    assert newest.instance_id in str(refused.value.hint)


def test_ssh_without_an_instance_says_how_to_see_what_comes_next(
    account: Ec2Account, cloud: AwsDriver, run: OpenRun
) -> None:
    account.identify("another")
    cloud.launch(replace(request(cloud), run_uid="another"))
    with pytest.raises(CloudError, match="demo-0123456789 has no running instance") as refused:
        chosen(run, None)
    assert "spotrun why" in str(refused.value.hint)


def test_the_session_takes_the_place_of_the_command(cloud: AwsDriver, tmp_path: Path) -> None:
    folder = made(tmp_path).store.uri
    instance = launched(cloud, 1)
    programs = tmp_path / "bin"
    programs.mkdir()
    program(programs / "aws", 'echo "called with $*"; exit 5')
    program(programs / PLUGIN, "true")
    command = [sys.executable, "-m", "spotrun", "ssh", folder]
    done = subprocess.run(
        command, env={**os.environ, "PATH": str(programs)}, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 5
    assert done.stdout == f"called with ssm start-session --target {instance.instance_id} --region {REGION}\n"
    assert "SessionManager=enabled" in done.stderr


def program(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def test_missing_program_is_reported_with_its_source(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run = OpenRun(made(tmp_path).store.uri, "test")
    shell = run.cloud.shell(run.spec, an_instance())
    monkeypatch.setenv("PATH", str(tmp_path))
    for missing in ("aws", PLUGIN):
        with pytest.raises(NotInstalled, match=f"needs {missing}, which is not installed") as refused:
            become(shell)
        assert "https://" in str(refused.value.hint)
        program(tmp_path / missing, "true")


def an_instance() -> Instance:
    return Instance(
        instance_id="i-0123456789abcdef0",
        token="t",
        run_uid=UID,
        launch=1,
        offering=offering(),
        state=InstanceState.RUNNING,
        launched_at=datetime.now(UTC),
    )


def test_on_the_local_cloud_it_is_a_shell_in_the_work_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPOTRUN_LOCAL_CLOUD", str(tmp_path / "cloud"))
    program(tmp_path / "shell", "pwd")
    monkeypatch.setenv("SHELL", str(tmp_path / "shell"))
    run = OpenRun(AgentRun(tmp_path).store.uri, "test")
    assert isinstance(run.driver, LocalDriver)
    work = run.driver.folder(an_instance().instance_id) / "work"
    work.mkdir(parents=True)
    shell = run.cloud.shell(run.spec, an_instance())
    assert str(shell) == f"cd {work} && {tmp_path}/shell"
    opened = f"Shell({shell.command!r}, Path({str(work)!r}), {{}})"
    imports = "from pathlib import Path; from spotrun.cli.ssh import become; from spotrun.clouds.cloud import Shell"
    code = f"{imports}; become({opened})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == str(work)


def test_where_a_run_is_in_a_container_the_shell_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPOTRUN_LOCAL_CLOUD", str(tmp_path / "cloud"))
    run = OpenRun(AgentRun(tmp_path).store.uri, "test")
    assert isinstance(run.driver, LocalDriver)
    folder = run.driver.folder(an_instance().instance_id)
    (folder / "work").mkdir(parents=True)
    program(folder / "enter", "true")
    assert run.cloud.shell(run.spec, an_instance()).command == (str(folder / "enter"),)


def test_a_shell_on_a_rented_instance_says_how_to_get_into_its_container() -> None:
    resources = {"cloud": "aws", "image_id": f"docker:registry.example/train@sha256:{'1' * 64}"}
    checkpoint = {"uri": "s3://bucket/runs"}
    told = find_cloud("aws").shell(read_spec(resources=resources, checkpoint=checkpoint), an_instance()).advice
    assert told.splitlines()[0] == "the training is in a container: `sudo /var/lib/spotrun/enter` opens a shell in it"
    without = read_spec(resources={"cloud": "aws"}, checkpoint=checkpoint)
    assert "container" not in find_cloud("aws").shell(without, an_instance()).advice


@pytest.mark.parametrize(("named", "project"), [("acme-training", "acme-training"), (None, "of-the-login")])
def test_on_google_cloud_the_session_names_the_project_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: str | None, project: str
) -> None:
    log_in(monkeypatch, tmp_path / "login.json", token="t")
    monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "of-the-login")
    job = read_spec(resources={"cloud": "gcp"}, gcp={"project": named}, checkpoint={"uri": "gs://bucket/runs"})
    words = find_cloud("gcp").shell(job, an_instance()).command
    assert words[words.index("--project") + 1] == project


# -- ports ------------------------------------------------------------------------------------------------------------


def test_a_port_leads_to_the_instance_by_a_session_of_its_own(cloud: AwsDriver, tmp_path: Path) -> None:
    folder = made(tmp_path).store.uri
    instance = launched(cloud, 1)
    session = f"aws ssm start-session --target {instance.instance_id} --region {REGION} "
    leading = "--document-name AWS-StartPortForwardingSession --parameters portNumber={},localPortNumber={}"
    printed = spotrun("ssh", folder, "-L", "8889:8888", "--print")
    assert (printed.returncode, printed.stdout) == (0, session + leading.format(8888, 8889) + "\n")
    programs = tmp_path / "bin"
    programs.mkdir()
    program(programs / "aws", f'echo "$PPID $*" >> {tmp_path}/calls; exec sleep 300')
    program(programs / PLUGIN, "true")
    command = [sys.executable, "-m", "spotrun", "ssh", folder, "-L", "8889:8888", "-L", "6006:6006"]
    environment = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}"}
    with subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL) as process:
        calls = eventually(lambda: both if len(both := _lines(tmp_path / "calls")) == 2 else None)
        assert sorted(line.split(" ", 1)[1] for line in calls) == sorted(
            session.removeprefix("aws ") + leading.format(*ports) for ports in ((8888, 8889), (6006, 6006))
        )
        children = psutil.Process(process.pid).children()
        assert len(children) == 2
        process.terminate()
        process.wait(60)
    eventually(lambda: all(map(_has_ended, children)))


def _has_ended(process: psutil.Process) -> bool:
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def spotrun(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "spotrun", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_google_cloud_ports_are_forwarded_by_a_separate_ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log_in(monkeypatch, tmp_path / "login.json", token="t")
    job = read_spec(
        resources={"cloud": "gcp"}, gcp={"project": "acme-training"}, checkpoint={"uri": "gs://bucket/runs"}
    )
    gcp, ports = find_cloud("gcp"), forwards_of(["8889:8888", "6006:6006"])
    command = gcp.forwarding(job, an_instance(), ports).command
    alone = gcp.shell(job, an_instance()).command
    assert command == (*alone, "--", "-L8889:localhost:8888", "-L6006:localhost:6006")


def test_refused_port_forwarding_names_another_way() -> None:
    ports = forwards_of(["8889:8888"])
    with pytest.raises(CloudError, match=r"this machine, so 127\.0\.0\.1:8888 is reachable") as refused:
        find_cloud("local").forwarding(read_spec(), an_instance(), ports)
    assert refused.value.hint == "leave out -L"
    on_node = replace(an_instance(), instance_id="slurm-17")
    with pytest.raises(CloudError, match="cannot forward a port to a Slurm node") as refused:
        find_cloud("slurm").forwarding(read_spec(), on_node, ports)
    assert "ssh -L 8889:NODE:8888 LOGIN-NODE" in str(refused.value.hint)


@pytest.mark.parametrize(
    "wrong", ["8888", "8889:localhost:8888", "0:8888", "8889:65536", "a:b", ":8888", "8889:", "-1:8888", "8889:8888 "]
)
def test_malformed_port_pair_is_refused_before_any_call(wrong: str) -> None:
    with pytest.raises(SpecInvalid, match="is not a pair of ports HERE:THERE, each from 1 to 65535") as refused:
        forwards_of([wrong])
    assert "-L 8889:8888" in str(refused.value.hint)


def test_two_ports_cannot_begin_at_one(tmp_path: Path) -> None:
    said = spotrun("ssh", "nobody", "--store", str(tmp_path), "-L", "8889:1", "-L", "8889:2")
    assert said.returncode == 2
    assert "port 8889 of this machine is given twice" in said.stderr
