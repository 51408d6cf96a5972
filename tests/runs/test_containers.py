"""
Set-up and training in a container, with real agents: by a stand-in for docker everywhere, and by the engine of this
machine where one runs containers (`make battery NAME=containers` kills far more there).
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from spotrun.agent import container as agents_container
from spotrun.agent.container import ImageUnusable, NoImageNow, mounts_of, remember, variables
from spotrun.agent.processes.trainer_process import environment_of, in_container, start_trainer, training_command
from spotrun.agent.setup import prepare
from spotrun.clouds.local.records import CloudLog, CloudPaths
from spotrun.clouds.local.settling import bury
from spotrun.container import ENTRANCE
from spotrun.container import engine as engines
from spotrun.container.engine import FILE, EngineFailed, find_engine, remove_remembered
from spotrun.container.registry import Credentials, NotForThisUser
from spotrun.errors import NotInstalled
from spotrun.instance import EndedBy
from spotrun.run import events as ev
from spotrun.spec.image import PASSWORD, USERNAME, image_of
from tests.support.agent_bench import UID, AgentRun
from tests.support.container_image import imported, said
from tests.support.engine_stand_in import OF_IMAGE, StandIn
from tests.support.eventually import eventually
from tests.support.registry_server import USER, WORD, RegistryServer
from tests.support.setups import Machines, log

DIGEST = f"sha256:{'1' * 64}"
IMAGE = f"docker:registry.example/team/image:1@{DIGEST}"
PINNED = image_of(IMAGE).pinned
TRAINERS = ("msgspec",)
"""What tests/support/played_trainer.py imports beside spotrun."""
WITHIN_S = 240.0
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root enters a container")


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StandIn:
    found = StandIn(tmp_path)
    found.say("images", PINNED)
    found.install(monkeypatch)
    return found


@pytest.fixture
def machines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Machines]]:
    made: list[Machines] = []

    def make(**spec: Any) -> Machines:
        made.append(Machines(tmp_path, monkeypatch, resources={"image_id": IMAGE}, **spec))
        return made[-1]

    yield make
    for node in [node for run in made for node in run.nodes]:
        if node.container is not None:
            node.container.close()


# -- the command line --------------------------------------------------------------------------------------------------


def test_engine_gets_its_own_arguments_for_gpus(tmp_path: Path) -> None:
    docker, podman = engines.Engine("docker", "/usr/bin/docker"), engines.Engine("podman", "/usr/bin/podman")
    arguments = docker.run_arguments(image_of(IMAGE), "n", UID, {"/disk": "rw", "/package": "ro"}, gpus=True)
    assert arguments == [
        *("run", "--rm", "--interactive", "--pull", "never", "--name", "n", "--label", f"spotrun.run={UID}"),
        *("--network", "host", "--pid", "host", "--ipc", "host", "--user", "0", "--security-opt", "label=disable"),
        *("--env", "SPOTRUN_CONTAINER=n", "--volume", "/disk:/disk:rw", "--volume", "/package:/package:ro"),
        *("--gpus", "all", "--entrypoint", "/bin/sh", PINNED, "-c", 'echo "$$"; read -r _ || :'),
    ]
    asked = podman.run_arguments(image_of(IMAGE), "n", UID, {}, gpus=True)
    assert asked[asked.index("--device") + 1] == "nvidia.com/gpu=all"
    assert not {"--gpus", "--device"} & {*podman.run_arguments(image_of(IMAGE), "n", UID, {}, gpus=False)}


def test_machine_without_an_engine_gets_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NotInstalled, match="neither docker nor podman"):
        find_engine()
    program = tmp_path / "docker"
    program.write_text("#!/bin/sh\necho 'Cannot connect to the Docker daemon' >&2\nexit 1\n")
    program.chmod(0o755)
    with pytest.raises(NotInstalled, match="docker says: Cannot connect to the Docker daemon"):
        find_engine()
    podman = tmp_path / "podman"
    podman.write_text("#!/bin/sh\necho 4.3.1\n")
    podman.chmod(0o755)
    monkeypatch.setattr(shutil, "which", lambda name: str(tmp_path / name))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert find_engine() == engines.Engine("podman", str(podman))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(NotInstalled, match="only root"):
        find_engine()


@as_root
def test_a_login_reaches_the_engine_and_no_file(
    stand_in: StandIn, machines: Callable[..., Machines], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PASSWORD, WORD)
    stand_in.say("images")
    node = machines(envs={USERNAME: USER}, secrets={PASSWORD: ""}, setup=None).another()
    prepare(node)
    (login,) = map(json.loads, stand_in.logins)
    assert login == {"auths": {"registry.example": {"auth": "bWU6YS13b3JkLXRoYXQtbm9ib2R5LWtub3dz"}}}
    assert "docker pulled " in log(node)
    assert [call[-1] for call in stand_in.calls("pull")] == [PINNED]
    (stand_in.folder / "logins").unlink()
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert not [path for path in files if WORD.encode() in path.read_bytes() or b"bWU6YS1" in path.read_bytes()]
    process = start_trainer(node, 0)
    process.kill()
    assert process.wait(60)
    assert not any(name in environment_of(node) for name in (PASSWORD,))
    prepare(node)
    assert len(stand_in.calls("pull")) == 1, "what is there is not pulled again"


@as_root
def test_identity_with_rights_still_unknown_is_retried_with_a_new_login(
    stand_in: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As that of a run on AWS, whose role is a minute old."""
    logins: list[Credentials | NotForThisUser] = [
        NotForThisUser("not yet"),
        NotForThisUser("not yet"),
        Credentials("AWS", "of-now", "aws"),
    ]

    def login_to(*_: object) -> Credentials:
        found = logins.pop(0)
        if isinstance(found, NotForThisUser):
            raise found
        return found

    monkeypatch.setattr(agents_container, "PAUSES_S", (0.0, 0.0))
    monkeypatch.setattr(agents_container, "login_to", login_to)
    stand_in.say("images")
    host = "123456789012.dkr.ecr.us-east-1.amazonaws.com"
    run = Machines(tmp_path, monkeypatch, resources={"image_id": f"docker:{host}/team/image@{DIGEST}"}, setup=None)
    node = run.another()
    prepare(node)
    assert node.container is not None
    node.container.close()
    assert [json.loads(each) for each in stand_in.logins] == [{"auths": {host: {"auth": "QVdTOm9mLW5vdw=="}}}]
    logins += [NotForThisUser("never", hint="grant it")] * 3
    stand_in.say("images")
    with pytest.raises(ImageUnusable, match="never"):
        prepare(run.another())
    assert len(stand_in.calls("pull")) == 1


# -- on an instance ----------------------------------------------------------------------------------------------------


@as_root
def test_containerised_program_has_the_variables_of_its_image(
    stand_in: StandIn, machines: Callable[..., Machines], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OF_THE_RUNNER", "yes")
    node = machines(setup=None).another()
    prepare(node)
    seen = environment_of(node)
    assert (seen["OF_IMAGE"], seen["SPOTRUN_TRAINER"]) == ("yes", node.assignment.instance_id)
    assert not {"OF_THE_RUNNER", "SPOTRUN_CONTAINER"} & seen.keys()
    assert node.container is not None
    passed = {"SPOTRUN_CLOCK": "x", "AWS_REGION": "r", "AWS_SECRET_ACCESS_KEY": "s"}
    assert variables(node.container, passed).keys() - node.container.variables.keys() == {"SPOTRUN_CLOCK", "AWS_REGION"}
    assert training_command(node.spec, node.assignment.folder, "/image/python")[0] == "/image/python"
    done = subprocess.run(in_container(node, ["pwd"]), env=seen, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(node.assignment.work)
    there = in_container(node, ["cat", str(OF_IMAGE)])
    assert subprocess.run(there, capture_output=True, text=True, check=True).stdout == "yes\n"
    assert not OF_IMAGE.exists(), "outside there are other files"
    assert stand_in.containers == [f"spotrun-{UID}-{node.assignment.instance_id}"]
    assert mounts_of(node.assignment.folder, {})[str(node.assignment.folder)] == "rw"
    node.container.close()
    eventually(lambda: stand_in.containers == [])


@as_root
def test_a_set_up_in_a_container_is_packed_unless_it_has_changed_that(
    stand_in: StandIn, machines: Callable[..., Machines]
) -> None:
    run = machines()
    first = run.one_that_packs()
    second = run.another()
    assert (prepare(second).how, run.times) == ("unpacked", 1)
    assert os.path.lexists(second.assignment.folder / "env/bin/python")
    assert first.container is not None
    assert [call[-1] for call in stand_in.calls("diff")]
    assert prepare(second).how == "unpacked", "an agent that starts anew goes on"


@as_root
def test_files_that_setup_adds_to_a_container_are_added_to_the_next_one(
    stand_in: StandIn, machines: Callable[..., Machines], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = machines(setup=f"echo once >> $COUNTER; touch x; echo 'A /usr/bin/tool' > {stand_in.folder}/diff")
    node = run.another()
    assert prepare(node).how == "run"
    assert "cannot be packed: /usr/bin/tool" in log(node)
    assert run.stored() == []
    stand_in.say("diff")
    assert prepare(node).how == "run"
    assert run.times == 2


def test_a_cache_and_a_temporary_file_change_no_container() -> None:
    assert agents_container._is_ignored("/tmp/x")
    assert agents_container._is_ignored("/root/.cache/pip/x")
    assert not agents_container._is_ignored("/tmpx")


@as_root
def test_an_image_that_is_not_there_fails_the_run_and_a_registry_that_is_away_does_not(
    stand_in: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agents_container, "PAUSES_S", (0.0,))
    stand_in.say("images")
    stand_in.say("refuses", "manifest unknown: manifest unknown")
    with RegistryServer() as server:
        text = f"docker:{server.host}/team/image:1@{DIGEST}"
        run = Machines(tmp_path, monkeypatch, resources={"image_id": text}, setup=None)
        with pytest.raises(ImageUnusable, match=f"has no team/image with the digest {DIGEST}"):
            prepare(run.another())
        assert len(stand_in.calls("pull")) == 1
        server.fails = 503
        with pytest.raises(NoImageNow, match="could not be pulled: docker pull: Error response from daemon: manifest"):
            prepare(run.another())
    assert len(stand_in.calls("pull")) == 3


@as_root
def test_container_that_cannot_start_is_reported_with_what_to_install(
    stand_in: StandIn, machines: Callable[..., Machines]
) -> None:
    stand_in.say("fails", 'could not select device driver "" with capabilities: [[gpu]]')
    with pytest.raises(ImageUnusable, match=r"docker run: .*could not select device driver") as caught:
        prepare(machines(setup=None).another())
    assert "nvidia-container-toolkit" in str(caught.value.hint)


@as_root
@pytest.mark.parametrize("train", [{"script": "played_trainer.py"}, {"run": "echo done > done.txt"}])
def test_an_image_without_python_fails_a_script_before_it_starts_and_runs_a_command(
    stand_in: StandIn, machines: Callable[..., Machines], tmp_path: Path, train: dict[str, str]
) -> None:
    shell = tmp_path / "shell"
    shell.mkdir()
    shell.joinpath("bash").symlink_to(str(shutil.which("bash")))
    stand_in.say("path", str(shell))
    node = machines(setup=None, train=train).another()
    if "script" in train:
        with pytest.raises(ImageUnusable, match="the image has no Python in its PATH"):
            prepare(node)
        return
    prepare(node)
    assert start_trainer(node, 0).wait(60)
    assert (node.assignment.work / "done.txt").read_text() == "done\n"


@as_root
def test_a_daemon_that_has_not_started_yet_fails_no_run(
    stand_in: StandIn, machines: Callable[..., Machines], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agents_container, "PAUSES_S", (0.0, 0.0))
    stand_in.say("silent", "Cannot connect to the Docker daemon")
    monkeypatch.setattr(engines, "NAMES", ("docker",))
    with pytest.raises(NoImageNow, match="docker says: Cannot connect to the Docker daemon"):
        prepare(machines(setup=None).another())
    assert len(stand_in.calls("version")) == 3


@as_root
def test_containers_of_another_machine_are_refused(
    stand_in: StandIn, machines: Callable[..., Machines], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines, "variables_of", lambda _: {})
    with pytest.raises(ImageUnusable, match="are not on this machine"):
        prepare(machines(setup=None).another())
    assert stand_in.containers == []


class Stop(Exception):
    """Ends `bury` after it has removed the container."""


def bury_local_instance(tmp_path: Path, write: Callable[[Path], object]) -> Path:
    """End an instance of the local cloud after `write` has written the file that names its container."""
    places = CloudPaths(tmp_path / "cloud")
    folder = places.record_folder("i-0123456789abcdef0")
    assert folder is not None
    folder.disk.mkdir(parents=True)
    assert folder.disk == places.disk(folder.instance_id)
    write(folder.disk / FILE)

    def end(*_: object) -> None:
        raise Stop

    record = type("Record", (), {"instance": type("Instance", (), {"ended_at": None, "run_uid": UID})(), "end": end})()
    with pytest.raises(Stop):
        bury(folder, CloudLog(places.log), record, None, EndedBy.CLOUD)  # type: ignore[arg-type]
    return folder.disk / FILE


@as_root
def test_the_end_of_a_local_instance_removes_its_container(stand_in: StandIn, tmp_path: Path) -> None:
    name = engines.name_of(UID, "i-0123456789abcdef0")
    stand_in.folder.joinpath("containers", name).write_text("999999999")
    file = bury_local_instance(tmp_path, lambda file: remember(file, find_engine(), name))
    assert stand_in.containers == []
    assert not file.exists()


@pytest.mark.parametrize("engine", ["docker", "program", "../program", ""])
def test_a_cleanup_runs_no_program_and_removes_no_container_that_the_training_names(
    stand_in: StandIn, tmp_path: Path, engine: str
) -> None:
    """The training may write the file that names its container."""
    program, others = tmp_path / "engine" / "bin" / "program", stand_in.folder / "containers" / "another"
    program.write_text(f"#!/bin/sh\ntouch {tmp_path}/canary\n")
    program.chmod(0o755)
    others.write_text("999999999")
    facts = {"engine": engine, "path": str(program), "name": "another"}
    bury_local_instance(tmp_path, lambda file: file.write_text(json.dumps(facts)))
    assert not (tmp_path / "canary").exists()
    assert stand_in.containers == ["another"]


@as_root
def test_a_shell_in_the_container_has_the_environment_of_the_training_and_is_not_of_it(
    stand_in: StandIn, machines: Callable[..., Machines], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF", "a-word-that-nobody-knows")
    monkeypatch.setenv("TERM", "dumb")
    node = machines(setup=None, secrets={"HF": "env:HF"}, train={"run": "exec sleep 600"}).another()
    entrance = node.assignment.folder / ENTRANCE
    prepare(node)
    inside = [str(entrance), "/bin/sh", "-c", "echo $OF_IMAGE $HF $TERM $SPOTRUN_AGENT $SPOTRUN_TRAINER; pwd"]
    work = str(node.assignment.work)

    def said_inside() -> list[str]:
        return subprocess.run(inside, capture_output=True, text=True, timeout=60, check=True).stdout.splitlines()

    assert said_inside() == ["yes dumb", work], "before the training has begun it has the image's"
    process = start_trainer(node, 0)
    eventually(lambda: said_inside() == ["yes a-word-that-nobody-knows dumb", work], WITHIN_S)
    process.kill()
    assert process.wait(60)
    assert "a-word" not in entrance.read_text()
    assert node.container is not None
    node.container.close()
    done = subprocess.run(inside, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr.partition("\n")[0]) == (1, "error: no container of this instance is running")


# -- by the engine of this machine, or the stand-in --------------------------------------------------------------------


class Engine:
    """What a run is in, and which containers there are."""

    def __init__(self, image: str, containers: Callable[[], list[str]]) -> None:
        self.image = image
        self.containers = containers


@pytest.fixture(scope="module")
def real() -> Iterator[Engine]:
    try:
        engine = find_engine()
        with imported(engine, TRAINERS) as image:
            digest = engine.digest_of(image_of(f"docker:{image}"))
            said(engine, "run", "--rm", "--network", "host", "--pid", "host", "--ipc", "host", image, "true")
            names = ("ps", "--all", "--filter", f"label=spotrun.run={UID}", "--format", "{{.Names}}")
            yield Engine(f"docker:{image}@{digest}", lambda: said(engine, *names).split())
    except (NotInstalled, EngineFailed, subprocess.CalledProcessError) as error:
        pytest.skip(f"no engine runs containers here: {getattr(error, 'stderr', '') or error}")


@pytest.fixture(params=["stand-in", "real"])
def engine(request: pytest.FixtureRequest) -> Engine:
    if request.param == "real":
        found: Engine = request.getfixturevalue("real")
        return found
    stand_in = request.getfixturevalue("stand_in")
    return Engine(IMAGE, lambda: stand_in.containers)


@pytest.fixture
def shared(engine: Engine) -> Iterator[Path]:
    """Memory that a container shares with this machine: there its training can write down its steps."""
    with tempfile.TemporaryDirectory(prefix="spotrun-containers-", dir="/dev/shm") as name:
        yield Path(name)
        for left in engine.containers():
            with contextlib.suppress(EngineFailed, NotInstalled):
                find_engine().remove(left)


@pytest.fixture
def run(engine: Engine, shared: Path) -> Iterator[tuple[AgentRun, Engine]]:
    made = AgentRun(shared, {"step_s": 0.02}, resources={"image_id": engine.image})
    yield made, engine
    made.close()


@pytest.mark.timeout(1800)
@as_root
def test_a_killed_agent_and_a_killed_trainer_leave_no_container_and_lose_no_commit(
    run: tuple[AgentRun, Engine],
) -> None:
    made, engine = run
    node = made.launch()
    made.wait_for(ev.CheckpointCommitted, within_s=WITHIN_S)
    (name,) = engine.containers()
    assert name == f"spotrun-{UID}-{node.instance_id}"
    agent = node.agent_pid()
    assert agent is not None
    before = json.loads((node.folder / FILE).read_text())
    os.kill(agent, signal.SIGKILL)
    eventually(lambda: node.agent_pid() not in (agent, None) and engine.containers() == [name], WITHIN_S)
    made.wait_for(ev.ResumedFrom, count=2, within_s=WITHIN_S)
    assert json.loads((node.folder / FILE).read_text()) == before
    with contextlib.suppress(ProcessLookupError):
        os.kill(node.trainer_pid(), signal.SIGKILL)
    made.wait_for(ev.RunCompleted, within_s=WITHIN_S)
    node.powers_off(WITHIN_S)
    assert engine.containers() == []
    assert {step for _, step in made.steps_done()} == {*range(1, 61)}


@pytest.mark.timeout(1800)
@as_root
def test_notice_reaches_a_training_in_a_container(run: tuple[AgentRun, Engine]) -> None:
    made, engine = run
    node = made.launch()
    made.wait_for(ev.TrainingStarted, within_s=WITHIN_S)
    node.notice(60)
    node.powers_off(WITHIN_S)
    commit = made.wait_for(ev.CheckpointCommitted, count=len(made.seen(ev.CheckpointCommitted)))
    assert commit.final or commit.step == made.steps_done()[-1][1]
    assert engine.containers() == []


@pytest.mark.timeout(1800)
@as_root
def test_each_member_of_a_gang_has_a_container_of_its_own_and_who_is_left_trains_on(
    engine: Engine, shared: Path
) -> None:
    made = AgentRun(
        shared,
        {"step_s": 0.05},
        scale=10.0,
        num_nodes=2,
        checkpoint={"every": "5 steps"},
        resources={"image_id": engine.image},
    )
    try:
        first, second = made.launch_members(2)
        made.wait_for(ev.CheckpointCommitted, within_s=WITHIN_S)
        assert {*engine.containers()} == {f"spotrun-{UID}-{node.instance_id}" for node in (first, second)}
        second.is_taken()
        # as the local cloud does, and a machine that is gone need not
        remove_remembered(second.folder / FILE, f"spotrun-{UID}-{second.instance_id}")
        made.lost(second)
        assert engine.containers() == [f"spotrun-{UID}-{first.instance_id}"]
        (third,) = made.launch_members(1)
        for node in (first, third):
            node.powers_off(WITHIN_S)
        assert made.wait_for(ev.RunCompleted).step == 60
        assert len(made.seen(ev.AttemptStarted)) == 2
        assert {step for _, step in made.steps_done()} == {*range(1, 61)}
    finally:
        made.close()
    assert engine.containers() == []
