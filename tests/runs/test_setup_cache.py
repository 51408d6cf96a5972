"""A set-up is paid once: what it made travels through the store, whole, or it is done again."""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
import venv
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import UNSET
from msgspec.structs import replace

from spotrun.agent import diff_archive
from spotrun.agent.agent_context import AgentContext
from spotrun.agent.machine import environment, layer, side_effects
from spotrun.agent.processes.trainer_process import training_command, user_environment
from spotrun.agent.setup import NotInstalled, prepare
from spotrun.checkpoint import pruning
from spotrun.clouds.local.processes import carrying, kill_all
from spotrun.errors import SpotrunError
from spotrun.folder import setup_cache
from spotrun.offering import CapacityType
from spotrun.run import events as ev
from spotrun.spec.model import CheckpointSpec, RunSpec
from spotrun.store.local import LocalStore
from tests.support.agent_bench import UID
from tests.support.eventually import eventually
from tests.support.setups import Machines, log
from tests.support.small_wheels import WRONG, only_from, small_wheel


@pytest.fixture
def machines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Machines]:
    return lambda **spec: Machines(tmp_path, monkeypatch, **spec)


def said(node: AgentContext, *command: str) -> str:
    """What a command prints on that instance, as the training would run it."""
    seen = user_environment(node.spec, node.assignment.folder, node.assignment.instance_id, UID)
    done = subprocess.run(command, cwd=node.assignment.work, env=seen, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def test_the_second_instance_unpacks_what_the_first_one_made(machines: Callable[..., Machines]) -> None:
    run = machines()
    first = run.one_that_packs()
    second = run.another()
    found = prepare(second)
    assert (found.how, run.times) == ("unpacked", 1)
    assert found.packed_bytes > 0
    for node in (first, second):
        assert said(node, "python", "-c", "import addon, msgspec; print(addon.WORD)") == "from the set-up"
        assert said(node, "tool") == "tool from the set-up"
        assert said(node, "cat", "given.txt") == "changed"
        assert os.listdir(node.assignment.work / "link") == ["empty"]
        assert os.path.realpath(node.assignment.work / "link") == str(node.assignment.work / "built")
        assert not (node.assignment.work / "superfluous.txt").exists()
        assert training_command(node.spec, node.assignment.folder)[0] == f"{node.assignment.folder}/env/bin/python"
    assert "unpacked in" in log(second)
    assert [path.name for path in second.assignment.folder.glob("*.tar")] == []


def test_a_machine_without_pip_gets_the_one_that_comes_with_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bool] = []

    class Builder(venv.EnvBuilder):
        def __init__(self, *, symlinks: bool, with_pip: bool) -> None:
            asked.append(with_pip)
            super().__init__(symlinks=symlinks, with_pip=False)  # which takes seconds

    monkeypatch.setattr(layer.venv, "EnvBuilder", Builder)
    environment.make(tmp_path)
    monkeypatch.setattr(layer, "find_spec", lambda _: None)
    environment.make(tmp_path)
    assert asked == [False, True]


def test_a_restarted_agent_sets_nothing_up_again(machines: Callable[..., Machines]) -> None:
    run = machines()
    node = run.one_that_packs()
    (node.assignment.work / "of-the-training").touch()
    assert prepare(node) == prepare(node)
    assert run.times == 1
    assert (node.assignment.work / "of-the-training").exists()


def test_an_agent_that_died_in_the_set_up_begins_it_from_clean_folders(machines: Callable[..., Machines]) -> None:
    run = machines()
    node = run.another()
    for half_done in ("work/half-done", "env/half-done"):
        path = node.assignment.folder / half_done
        path.parent.mkdir(exist_ok=True)
        path.touch()
    assert prepare(node).how == "run"
    assert not list(node.assignment.folder.glob("*/half-done"))


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("which", ["json", "000000"])
@pytest.mark.parametrize("damage", [truncate, flip, Path.unlink], ids=["truncated", "flipped", "missing"])
def test_damaged_pack_is_reported_and_replaced_and_never_half_used(
    machines: Callable[..., Machines], which: str, damage: Callable[[Path], None]
) -> None:
    run = machines()
    run.one_that_packs()
    (key,) = [key for key in run.stored() if key.endswith(which)]
    damage(Path(run.run.store.uri) / key)
    second = run.another()
    found = prepare(second)
    assert (found.how, run.times) == ("run", 2)
    assert said(second, "tool") == "tool from the set-up"
    assert (which == "json" and damage is Path.unlink) or "setup runs again" in log(second)
    eventually(lambda: "is stored" in log(second))
    assert prepare(run.another()).how == "unpacked"


def test_a_packed_setup_that_cannot_be_unpacked_leaves_nothing_behind(machines: Callable[..., Machines]) -> None:
    run = machines()
    run.one_that_packs()
    second = run.another()
    exchange(second, ("work/left-behind", b"x"), ("work/../../escaped", b"x"))
    assert prepare(second).how == "run"
    assert "is outside of the run's folders" in log(second)
    assert not (second.assignment.work / "left-behind").exists()
    assert not (second.assignment.folder.parent / "escaped").exists()


def exchange(node: AgentContext, *members: tuple[str, bytes]) -> ev.PackDigest:
    """Put these files into the setup cache of the run, in place of what is there; the digest of what was there."""
    key = environment.key_of(node.spec, node.created.workdir_sha256, "")
    before = setup_cache.find(node.store, key)
    assert before is not None
    setup_cache.discard(node.store, key)
    archive = node.assignment.folder.parent / "forged.tar"
    archive.write_bytes(tar_of([("pack.json", b'{"made_in": "/x"}'), *members]))
    assert setup_cache.upload(node.store, key, setup_cache.describe(99, archive), archive)
    return before.digest(key)


def test_own_machine_unpacks_what_was_made_before_the_training_and_nothing_that_the_training_has_made(
    machines: Callable[..., Machines],
) -> None:
    run = machines()
    run.trains_for_a_while(run.one_that_packs())
    assert prepare(run.another(capacity_type=CapacityType.OWN)).how == "unpacked"
    home = run.another(capacity_type=CapacityType.OWN)
    exchange(home, ("work/evil", b"x"))
    assert (prepare(home).how, run.times) == ("run", 2)
    assert "the ledger does not contain the digest of this setup cache" in log(home)
    assert not (home.assignment.work / "evil").exists()
    rented = run.another()
    assert prepare(rented).how == "unpacked", "what the training of a run has made stays with that run"
    assert (rented.assignment.work / "evil").exists()


@pytest.mark.parametrize("exchanged", [False, True])
def test_trial_of_a_sweep_unpacks_only_the_cache_that_its_entry_0_names(
    machines: Callable[..., Machines], exchanged: bool
) -> None:
    run = machines()
    first = run.one_that_packs()
    named = prepare(first).pack
    node = run.another()
    assert named is not UNSET
    if exchanged:
        assert exchange(node, ("work/evil", b"x")) == named
    node.created = replace(node.created, setup_packs=(named,))
    node.recorder._ledger._state = replace(node.recorder.state, created=node.created)
    assert prepare(node).how == ("run" if exchanged else "unpacked")
    assert not (node.assignment.work / "evil").exists()


def tar_of(members: list[tuple[str, bytes]]) -> bytes:
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as tar:
        for name, data in members:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return raw.getvalue()


# -- what is not packed ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        ({"setup": "echo once >> $COUNTER"}, "it has changed nothing"),
        ({"setup": "echo once >> $COUNTER; touch x; sleep 100 & disown"}, "it has left processes running"),
        ({"setup": "echo once >> $COUNTER; touch x; mkdir $HOME/data"}, "/data"),
        ({"pack_setup": False}, ""),
    ],
    ids=lambda value: str(value)[-40:],
)
def test_setup_that_cannot_be_packed_runs_on_each_instance(
    machines: Callable[..., Machines], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spec: dict[str, Any], why: str
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    run = machines(**spec)
    for times in (1, 2):
        node = run.another(cloud="aws")
        assert prepare(node) == ev.SetUp(seconds=prepare(node).seconds, how="run")
        assert (run.times, run.stored()) == (times, [])
        assert why in log(node)
        kill_all(lambda node=node: carrying("SPOTRUN_TRAINER", node.assignment.instance_id))
        for left in home.iterdir():
            left.rmdir()


def test_caches_may_be_left_outside(tmp_path: Path) -> None:
    surroundings = side_effects.SideEffects(tmp_path, [str(tmp_path / "usr"), str(tmp_path / "nowhere")])
    (tmp_path / ".cache").mkdir()
    assert surroundings.since() == []
    (tmp_path / "usr").mkdir()
    (tmp_path / "usr/new").touch()
    assert surroundings.since() == [str(tmp_path / "usr"), str(tmp_path / "usr/new")]


def test_new_mount_is_a_side_effect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text("overlay / overlay rw 0 0\n")
    monkeypatch.setattr(side_effects, "MOUNTS", mounts)
    surroundings = side_effects.SideEffects(tmp_path, [])
    mounts.write_text("overlay / overlay rw 0 0\n/dev/nvme1n1 /scratch ext4 rw 0 0\n")
    assert surroundings.since() == ["/scratch"]


# -- which packed set-up -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "other",
    [
        {"setup": "pip install y"},
        {"envs": {"A": "2"}},
        {"workdir": "another"},
        {"accelerators": "T4:1"},
        {"packages": []},
    ],
    ids=str,
)
def test_another_input_is_another_pack(monkeypatch: pytest.MonkeyPatch, other: Mapping[str, Any]) -> None:
    facts = {"setup": "pip install x", "envs": {"A": "1"}, "workdir": "0" * 64, "accelerators": "A10G:1"}
    assert key_of(facts) == key_of(dict(facts))
    if "packages" in other:
        before = key_of(facts)
        monkeypatch.setattr(environment, "_packages", lambda: ["torch-0.dist-info"])
        assert key_of(facts) != before
    else:
        assert key_of(facts) != key_of(facts | dict(other))


def key_of(facts: Mapping[str, Any]) -> str:
    keys = {"name": "n", "workdir": "/w", "train": {"run": "x"}, "setup": facts["setup"], "envs": facts["envs"]}
    return environment.key_of(RunSpec.from_dict(keys), facts["workdir"], facts["accelerators"])


def test_another_accelerator_runs_the_setup_again(machines: Callable[..., Machines]) -> None:
    run = machines()
    run.one_that_packs(accelerators="A10G:1")
    assert prepare(run.another(accelerators="T4:1")).how == "run"
    assert prepare(run.another(accelerators="A10G:1")).how == "unpacked"


# -- PyTorch where the image has none --------------------------------------------------------------------------------


@pytest.fixture
def torch_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A lock of a package of one line, which is to be had, on a machine that is told to install it."""
    index, lock = tmp_path / "index", tmp_path / "torch.txt"
    lock.write_text(f"stone==1.0 --hash=sha256:{small_wheel(index, 'stone')}\n")
    monkeypatch.setattr(environment, "_torch_locks", lambda: [lock])
    for name, text in {**only_from(index), environment.TORCH_VARIABLE: "1"}.items():
        monkeypatch.setenv(name, text)
    return lock


@pytest.mark.usefixtures("torch_lock")
@pytest.mark.parametrize(
    "setup", [pytest.param(None, marks=pytest.mark.nightly), "python -c 'import stone' && echo once >> $COUNTER"]
)
def test_pytorch_is_installed_once_a_run_and_unpacked_afterwards(
    machines: Callable[..., Machines], setup: str | None
) -> None:
    run = machines(setup=setup)
    nodes = [run.one_that_packs(), run.another()]
    assert prepare(nodes[1]).how == "unpacked"
    assert run.times == (setup is not None)
    for node in nodes:
        assert said(node, "python", "-c", "import stone, msgspec; print(stone.VALUE)") == "1"


@pytest.mark.nightly
def test_another_pytorch_is_another_pack(machines: Callable[..., Machines], torch_lock: Path) -> None:
    run = machines()
    run.one_that_packs()
    torch_lock.write_text(f"# a newer spotrun\n{torch_lock.read_text()}")
    assert prepare(run.another()).how == "run"


def test_another_pytorch_is_another_key(torch_lock: Path) -> None:
    facts = {"setup": "pip install x", "envs": {}, "workdir": "0" * 64, "accelerators": ""}
    before = key_of(facts)
    assert key_of(facts) == before
    torch_lock.write_text(f"# a newer spotrun\n{torch_lock.read_text()}")
    assert key_of(facts) != before


def test_a_pytorch_with_another_digest_is_not_the_users_fault(
    machines: Callable[..., Machines], torch_lock: Path
) -> None:
    torch_lock.write_text(f"stone==1.0 --hash=sha256:{WRONG}\n")
    run = machines()
    with pytest.raises(NotInstalled, match="installation of PyTorch ended with exit code 1"):
        prepare(run.another())
    assert run.times == 0


# -- in the store ----------------------------------------------------------------------------------------------------


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(setup_cache, "PART_BYTES", 1000)


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("size_bytes", [1, 999, 1000, 1001, 12_345])
def test_an_archive_comes_back_as_it_was(tmp_path: Path, size_bytes: int) -> None:
    store = LocalStore(tmp_path / "store")
    archive, back = tmp_path / "archive", tmp_path / "back"
    archive.write_bytes(os.urandom(size_bytes))
    packed = setup_cache.describe(7, archive)
    assert setup_cache.upload(store, "key", packed, archive)
    assert packed == setup_cache.find(store, "key")
    assert packed.size_bytes == size_bytes
    setup_cache.fetch(store, "key", packed, back)
    assert back.read_bytes() == archive.read_bytes()


def test_of_two_that_pack_the_same_the_first_counts_and_the_other_leaves_nothing(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "store")
    archive = tmp_path / "archive"
    archive.write_bytes(b"one")
    first = setup_cache.describe(1, archive)
    assert setup_cache.upload(store, "key", first, archive)
    archive.write_bytes(b"other")
    assert not setup_cache.upload(store, "key", setup_cache.describe(2, archive), archive)
    assert setup_cache.find(store, "key") == first
    assert [found.key for found in store.list("")] == ["environments/key.json", "environments/key/1/000000"]


def test_packs_go_when_an_ended_run_is_pruned(machines: Callable[..., Machines]) -> None:
    run = machines()
    run.one_that_packs()
    assert pruning.prune(run.run.ledger, run.run.store, CheckpointSpec()).objects == ()
    run.run.write(ev.RunStopped(reason="test"))
    gone = pruning.prune(run.run.ledger, run.run.store, CheckpointSpec())
    assert {found.key for found in gone.objects} == {f"environments/{key}" for key in map(tail, gone.objects)}
    assert run.stored() == []


def tail(found: Any) -> str:
    return str(found.key.partition("/")[2])


# -- the archive -----------------------------------------------------------------------------------------------------

NAMES = st.text("ab", min_size=1, max_size=2)
TREES: st.SearchStrategy[Any] = st.recursive(
    st.one_of(st.binary(max_size=3), st.sampled_from(["->x", "->../b"])),
    lambda inner: st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=40, deadline=None)
@given(before=st.dictionaries(NAMES, TREES, max_size=3), after=st.dictionaries(NAMES, TREES, max_size=3))
def test_any_change_is_done_again_elsewhere(tmp_path_factory: Any, before: Any, after: Any) -> None:
    folder = tmp_path_factory.mktemp("trees")
    one, other = folder / "one", folder / "other"
    for root in (one, other):
        write_tree(root / "work", before)
    seen = diff_archive.survey(one, ["work"])
    rewrite(one / "work", after)
    changed = diff_archive.between(one, seen, diff_archive.survey(one, ["work"]))
    diff_archive.pack(changed, folder / "archive")
    diff_archive.unpack(folder / "archive", other, ["work"])
    assert read_tree(other / "work") == read_tree(one / "work") == after


def write_tree(path: Path, tree: Any) -> None:
    if isinstance(tree, bytes):
        path.write_bytes(tree)
    elif isinstance(tree, str):
        path.symlink_to(tree.removeprefix("->"))
    else:
        path.mkdir(parents=True)
        for name, inner in tree.items():
            write_tree(path / name, inner)


def rewrite(path: Path, tree: dict[str, Any]) -> None:
    for found in path.iterdir():
        diff_archive._remove(found)
    for name, inner in tree.items():
        write_tree(path / name, inner)


def read_tree(path: Path) -> Any:
    if path.is_symlink():
        return f"->{os.readlink(path)}"
    return {found.name: read_tree(found) for found in path.iterdir()} if path.is_dir() else path.read_bytes()


@pytest.mark.parametrize(
    "members",
    [
        [],
        [("work/x", b"x")],
        [("pack.json", b"{")],
        [("pack.json", b'{"made_in": "/x"}'), ("elsewhere/x", b"x")],
        [("pack.json", b'{"made_in": "/x"}'), ("/work/x", b"x")],
        [("pack.json", b'{"made_in": "/x", "removed": ["work/../../x"]}')],
        [("pack.json", b'{"made_in": "/x", "removed": ["work"]}')],
        [("pack.json", b'{"made_in": "/x"}'), ("work/away/x", b"x")],
    ],
    ids=str,
)
def test_an_archive_that_leads_elsewhere_is_refused(tmp_path: Path, members: list[tuple[str, bytes]]) -> None:
    root, victim = tmp_path / "root", tmp_path / "x"
    (root / "work").mkdir(parents=True)
    (root / "work/away").symlink_to(tmp_path)
    victim.write_text("still here")
    archive = tmp_path / "archive"
    archive.write_bytes(tar_of(members))
    with pytest.raises(setup_cache.SetupUnusable):
        diff_archive.unpack(archive, root, ["work"])
    assert victim.read_text() == "still here"


def test_a_disk_that_cannot_take_a_pack_is_no_damage_of_the_pack(tmp_path: Path) -> None:
    archive = tmp_path / "archive"
    archive.write_bytes(tar_of([("pack.json", b'{"made_in": "/x"}'), ("work/file/x", b"x")]))
    (tmp_path / "work").mkdir()
    (tmp_path / "work/file").touch()
    with pytest.raises(SpotrunError) as refused:
        diff_archive.unpack(archive, tmp_path, ["work"])
    assert not isinstance(refused.value, setup_cache.SetupUnusable)
