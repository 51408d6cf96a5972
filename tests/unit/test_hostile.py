"""
What an adversary with the rights of an instance can put into the store runs nowhere (promise I15).

Each payload below would create the canary file if any reader took it for more than data: pickles in the place of
images, trees that name callables, manifests that point elsewhere, entries full of shell, YAML tags and format strings.
"""

from __future__ import annotations

import io
import json
import os
import pickle
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from blake3 import blake3
from msgspec.structs import replace

from spotrun.checkpoint import layout, snapshot
from spotrun.checkpoint.manifest import FORMAT
from spotrun.checkpoint.restore import fetch
from spotrun.errors import CheckpointDamaged, SpotrunError
from spotrun.folder.ledger import Ledger, key_of
from spotrun.folder.status_objects import (
    RUNNER_KEY,
    AgentStatus,
    RunnerStatus,
    agent_key,
    stored_status,
    write_status,
)
from spotrun.run import events as ev
from spotrun.run.bounds import LOG_CHUNK_BYTES, SMALL_BYTES
from spotrun.run.entry_bytes import entry_json, seal
from spotrun.run.state import Commit
from spotrun.runs import termination
from spotrun.spec.model import RunSpec
from spotrun.store.local import LocalStore
from tests.support.called_spotrun import Spotrun
from tests.support.checkpoint_entries import committed
from tests.support.checkpoint_images import HOSTILE, header, image_bytes, image_of
from tests.support.damaged_runs import SmallRun
from tests.support.decisions import spec
from tests.support.histories import History
from tests.support.manual_clock import ManualClock
from tests.support.memory_store import MemoryStore
from tests.support.stored_runs import store_run

CANARY = "canary"
TOUCH = f"touch {CANARY}"
PYTHON = f"open({CANARY!r}, 'w')"


class Bomb:
    """Unpickling one creates the canary."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.system, (TOUCH,))


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def assert_no_canary() -> None:
    assert not Path(CANARY).exists(), "code of the adversary ran"


def test_the_payloads_are_live() -> None:
    """Otherwise the tests below would show nothing."""
    pickle.loads(pickle.dumps(Bomb()))
    assert Path(CANARY).exists()


# -- images ----------------------------------------------------------------------------------------------------------


def torch_file(**how: Any) -> bytes:
    file = io.BytesIO()
    torch.save({"w": Bomb()}, file, **how)
    return file.getvalue()


def tree(value: object) -> bytes:
    return image_of(header(value))


IMAGES = {
    "a pickle": pickle.dumps(Bomb()),
    "a pickle of protocol 0": pickle.dumps(Bomb(), 0),
    "a file of torch.save": torch_file(),
    "an old file of torch.save": torch_file(_use_new_zipfile_serialization=False),
    "a pickle behind the magic": image_of(pickle.dumps(Bomb())),
    "a pickle for a header": layout.MAGIC + pickle.dumps(Bomb()),
    "a callable by name": tree({"callable": ["os.system", TOUCH]}),
    "reduce": tree({"__reduce__": ["os.system", [TOUCH]]}),
    "an object with a state": tree({"object": {"class": "subprocess.Popen", "args": [[TOUCH]]}}),
    "py/reduce of jsonpickle": tree({"py/reduce": [{"py/function": "os.system"}, {"py/tuple": [TOUCH]}]}),
    "a YAML tag": tree({"!!python/object/apply:os.system": [TOUCH]}),
    "pickled bytes named so": tree({"pickle": pickle.dumps(Bomb(), 0).decode("latin-1")}),
    "a dtype by attribute": tree({"dtype": "os.system"}),
    "a dtype that is a function": tree({"dtype": "load"}),
    "a dtype with a call": tree({"dtype": f"float32 if {PYTHON} else 0"}),
    "a device with a command": tree({"device": f"cpu; {TOUCH}"}),
    "an int with a call": tree({"int": f"__import__('os').system('{TOUCH}')"}),
    "a float with a call": tree({"float": PYTHON}),
    "a complex with a call": tree({"complex": [PYTHON, "0"]}),
    "an array of objects": image_of(header({"array": [0, "|O", [1]]})),
    "a record array": image_of(header({"array": [0, [["a", "O"]], [1]]})),
    "an array with a call": image_of(header({"array": [0, f"<f4,{PYTHON}", [1]]})),
    "a tensor with a call": image_of(header({"tensor": PYTHON})),
    "a module in the dtype of a tensor": image_of(
        header(None, [{"dtype": "os.system", "shape": [1], "offset": 0, "size_bytes": 4}])
    ),
}


@pytest.mark.parametrize("name", IMAGES)
def test_an_image_with_a_payload_is_damaged_and_runs_nothing(name: str) -> None:
    with pytest.raises(CheckpointDamaged):
        snapshot.read_image(bytearray(IMAGES[name]))
    assert_no_canary()


def test_texts_that_look_like_code_stay_texts() -> None:
    state = {"a": TOUCH, "$(" + TOUCH + ")": f"{{{PYTHON}}}", "b": ["`" + TOUCH + "`", b"\x80\x04", Path(TOUCH)]}
    read, _ = snapshot.read_image(bytearray(image_bytes(state, {"note": PYTHON})))
    assert read["$(" + TOUCH + ")"] == f"{{{PYTHON}}}"
    assert_no_canary()


def test_there_are_enough_hostile_images() -> None:
    assert len(HOSTILE) >= 60
    assert len(IMAGES) >= 20


# -- manifests, which the ledger vouches for because their author wrote the ledger too --------------------------------


def part(name: object = "part-0000", size_bytes: object = 4, digest: object = blake3(b"data").hexdigest()) -> Any:
    return {"name": name, "size_bytes": size_bytes, "blake3": digest}


def manifest(*parts: object, **more: object) -> bytes:
    return json.dumps({"format": FORMAT, "size_bytes": 4, "parts": parts, "meta": {}, **more}).encode()


MANIFESTS = {
    "a pickle": pickle.dumps(Bomb()),
    "a YAML tag": f"!!python/object/apply:os.system ['{TOUCH}']".encode(),
    "a type for a decoder": manifest(part(), type="os.system", args=[TOUCH]),
    "a part elsewhere": manifest(part("../../../etc/passwd")),
    "a part from the root": manifest(part("/etc/passwd")),
    "a part that is an address": manifest(part("file:///etc/passwd")),
    "a part that is a pipe": manifest(part(f"|{TOUCH}")),
    "a part with a command": manifest(part(f"part-0000;{TOUCH}")),
    "a part behind a line": manifest(part("part-0000\n")),
    "a part in other digits": manifest(part("part-٠٠٠٠")),
    "a part without an end": manifest(part("part-" + "0" * 1000)),
    "a size of less than nothing": manifest(part(size_bytes=8), part(size_bytes=-4)),
    "a size beyond all": manifest(part(size_bytes=1 << 62), size_bytes=1 << 62),
    "a size in words": manifest(part(size_bytes=PYTHON)),
    "no parts": manifest(),
    "parts nested deep": b"[" * 100_000,
    "a checksum with a call": manifest(part(digest=PYTHON)),
    "not a checksum": manifest(part(digest="0" * 64)),
}


@pytest.mark.parametrize("name", MANIFESTS)
def test_a_manifest_with_a_payload_is_damaged_and_runs_nothing(name: str, tmp_path: Path) -> None:
    run = SmallRun(LocalStore(tmp_path / "run"))
    with pytest.raises(CheckpointDamaged):
        fetch(run.store, vouched_for(run, MANIFESTS[name]))
    assert_no_canary()


def test_the_same_manifest_without_a_payload_is_read(tmp_path: Path) -> None:
    run = SmallRun(LocalStore(tmp_path / "run"))
    image = fetch(run.store, vouched_for(run, manifest(part())))
    with os.fdopen(image.fd, "rb") as file:
        assert file.read() == b"data"


def vouched_for(run: SmallRun, data: bytes) -> Commit:
    """A commit of the run with that manifest, and what it is of."""
    commit = run.history.state.commits[-1]
    run.store.put(f"{commit.event.prefix}/manifest.json", data)
    run.store.put(f"{commit.event.prefix}/part-0000", b"data")
    return replace(commit, event=replace(commit.event, manifest_blake3=blake3(data).hexdigest(), size_bytes=4))


# -- entries ---------------------------------------------------------------------------------------------------------

TEXTS = {
    "a command": f"$({TOUCH})",
    "a command in quotes": f"'; {TOUCH}; '",
    "a line of commands": f"\n{TOUCH}\n",
    "a format string": "{0.__class__.__init__.__globals__} %(x)s %n",
    "Python": f"__import__('os').system('{TOUCH}')",
    "a YAML tag": f"!!python/object/apply:os.system ['{TOUCH}']",
    "a pickle": pickle.dumps(Bomb(), 0).decode(),
    "rich markup": f"[link=file:///{CANARY}]x[/link][bold]",
    "a way out": "../../../../tmp/x",
    "terminal commands": f"\x1b]0;{TOUCH}\x07\x1b[2J\r\x9b31m\u202e",
    "HTML": f"<script>fetch('{TOUCH}')</script>",
}


TERMINAL_COMMANDS = ("\x1b]", "\x1b[2J", "\x9b", "\x07", "\u202e")
LOOKS = ("status", "events demo", "report demo", "checkpoints ls demo", "logs demo", "checkpoints verify demo")
ACTS = ("why demo", "compare demo demo", "fetch demo --list", "ssh demo", "chaos demo", "tick demo -y", "stop demo",
        "down demo -y", "rm demo --dry-run", "prune --older 1d --dry-run", "reap")  # fmt: skip


def written_by_an_adversary(text: str, workdir: str, *, goes_on: bool = False) -> History:
    """A run in which every text that a writer may choose is this one."""
    spec = RunSpec.from_dict({"name": "demo", "workdir": workdir, "train": {"script": "train.py"}}).to_dict()
    history = History(spec={**spec, "setup": text, "envs": {"A": text}})
    launch = history.launch()
    history.after(10).write(ev.LaunchRecorded(launch=launch, instance_id=text, billed_from=history.now, prices=()))
    history.after(10).write(ev.AttemptStarted(launch=launch, instance_id=text, booted_at=history.now))
    history.resume()
    history.training()
    history.write(ev.NoticeSeen(attempt=history.attempt, kind=text, deadline_at=None))
    history.write(
        committed(
            history.attempt,
            text,
            1,
            history.now,
            manifest_blake3=text,
            why=text,
            versions={text: text},
            metrics={text: 1.0},
        )
    )
    history.write(ev.CheckpointFailed(attempt=history.attempt, step=1, detail=text))
    history.write(ev.DrainRequested(attempt=history.attempt, reason=text))
    if goes_on:
        return history
    history.after(1).write(ev.StopRequested(by=text))
    history.ended()
    history.write(ev.RunStopped(reason=text))
    return history


@pytest.mark.exhaustive
@pytest.mark.parametrize("what", TEXTS)
def test_entries_full_of_payloads_are_shown_and_run_nothing(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spotrun: Spotrun
) -> None:
    monkeypatch.setenv("SPOTRUN_LOCAL_CLOUD", str(tmp_path / "cloud"))
    history = written_by_an_adversary(TEXTS[what], str(tmp_path))
    store = LocalStore(tmp_path / "runs/demo-0123456789")
    history.put_into(store)
    for verb in LOOKS:
        said = spotrun(*verb.split(), "--store", tmp_path / "runs")
        assert not any(command in said.out + said.err for command in TERMINAL_COMMANDS), verb
        assert_no_canary()


def test_texts_of_a_living_run_send_no_terminal_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spotrun: Spotrun
) -> None:
    monkeypatch.setenv("SPOTRUN_LOCAL_CLOUD", str(tmp_path / "cloud"))
    monkeypatch.setenv("SPOTRUN_KNOWN", str(tmp_path / "known"))
    monkeypatch.setattr(termination, "DOWN_WITHIN_S", 0.0)
    text = TEXTS["terminal commands"]
    history = written_by_an_adversary(text, str(tmp_path), goes_on=True)
    store = LocalStore(store_run(tmp_path / "runs", history))
    for verb in (*LOOKS, *ACTS):
        now, facts = datetime.now(UTC), {"phase": text, "trouble": text, "console_tail": text, "metrics": {text: 1.0}}
        agent = AgentStatus(launch=1, at=now, sequence=1, attempt=history.attempt, **facts)
        write_status(store, agent_key(1), agent)
        write_status(store, RUNNER_KEY, RunnerStatus(at=now, pid=1, host=text, sequence=1, message=text))
        said = spotrun(*verb.split(), "--store", tmp_path / "runs")
        assert not any(command in said.out + said.err for command in TERMINAL_COMMANDS), verb
        assert_no_canary()


NAMES = {
    "a colour and more": TEXTS["terminal commands"].replace("\r", ""),
    "letters that look alike": "d\u0435mo",
    "an invisible letter": "demo\u200b",
    "two lines": "demo\ndemo",
    "a flag": "-y",
    "two words": "demo demo",
}


@pytest.mark.parametrize("what", NAMES)
def test_a_folder_with_a_name_that_no_job_may_have_is_no_run(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spotrun: Spotrun
) -> None:
    """Whoever may write beside the runs may make one that looks like a run."""
    monkeypatch.setenv("SPOTRUN_LOCAL_CLOUD", str(tmp_path / "cloud"))
    for name, uid in (("demo", "0123456789"), (NAMES[what], "1123456789")):
        store_run(tmp_path / "runs", History(name=name, uid=uid, spec=spec().to_dict()))
    (tmp_path / "runs" / f"{NAMES[what]}-2123456789" / "ledger").mkdir(parents=True)
    (tmp_path / "runs" / f"{NAMES[what]}-2123456789" / key_of(0)).write_bytes(b"damaged")
    refused = ("status", "stop 1123456789", "rm 1123456789", "down 2123456789 -y")
    for verb in (*refused, "events demo", "prune --older 1d -y", "reap"):
        said = spotrun(*verb.split(), "--store", tmp_path / "runs")
        assert not any(command in said.out + said.err for command in TERMINAL_COMMANDS), verb
        assert (said.code != 0) == (verb in refused), (verb, said)
    states = {row["state"] for row in spotrun("status", "--json", "--store", tmp_path / "runs").json}
    assert states == {"created", "misnamed", "damaged"}


BODIES = {
    "a pickle": b"{" + pickle.dumps(Bomb()),
    "an event with a class": b'{"type":"os.system","args":["%s"]}' % TOUCH.encode(),
    "an event of no kind": None,
    "numbers without end": b'{"number":' + b"9" * 50_000 + b"}",
    "a NaN": b'{"number":NaN}',
    "deep": b'{"event":' * 5_000,
}


@pytest.mark.parametrize("name", BODIES)
def test_a_sealed_entry_with_a_payload_is_void_and_runs_nothing(name: str, tmp_path: Path) -> None:
    history = History()
    launch = history.running()
    assert launch
    body = BODIES[name]
    if body is None:
        entry = json.loads(entry_json(history.entry(ev.StopRequested(by="x"))))
        body = json.dumps(entry | {"event": {"type": "__reduce__", "by": TOUCH}}).encode()
    store = LocalStore(tmp_path / "run")
    history.put_into(store)
    store.put_if_absent(key_of(history.state.next_number), seal(body))
    ledger = Ledger(store, history.uid, "test", ManualClock(history.now + timedelta(seconds=1)))
    assert [void.number for void in ledger.refresh().voids] == [history.state.next_number]
    assert_no_canary()


def test_a_prefix_elsewhere_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    run = SmallRun(LocalStore(tmp_path / "run"))
    commit = run.history.state.commits[-1]
    for prefix in ("../../etc", "/etc", "checkpoints/../..", f"$({TOUCH})", ""):
        with pytest.raises(SpotrunError):
            fetch(run.store, replace(commit, event=replace(commit.event, prefix=prefix)))
    assert_no_canary()


def test_no_more_of_a_log_is_read_than_an_agent_writes_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spotrun: Spotrun
) -> None:
    history = History(spec=spec().to_dict())
    history.running()
    store = LocalStore(store_run(tmp_path / "runs", history))
    store.put("logs/1/000000.log", b"begin\n" + bytes(5 * LOG_CHUNK_BYTES))
    store.put("logs/1/000001.log", b"end\n")
    asked: list[int | None] = []
    get = LocalStore.get
    monkeypatch.setattr(LocalStore, "get", lambda *asks: (asked.append(asks[-1]), get(*asks))[1])
    said = spotrun("logs", "demo", "--store", tmp_path / "runs")
    assert "000000.log is longer than any chunk of an agent" in said.out
    assert said.out.endswith("end\n")
    assert all(isinstance(size, int) and size <= LOG_CHUNK_BYTES + 1 for size in asked)


@pytest.mark.parametrize(
    "data",
    [b"[" * 10**5, b'{"step": ' + b"9" * 10**5 + b"}", b'{"trouble": "' + b"x" * 10**5 + b'"}', b"\xff" * 99, b"NaN"],
    ids=["deep", "huge number", "long text", "no text", "no number"],
)
def test_foreign_status_object_counts_as_none(data: bytes) -> None:
    store = MemoryStore()
    store.put_status(agent_key(1), data)
    assert stored_status(store, agent_key(1), AgentStatus) is None


def test_no_more_of_a_status_object_is_read_than_one_can_have() -> None:
    read: list[tuple[Any, ...]] = []
    store = MemoryStore()
    store.put_status(agent_key(1), b" " * (SMALL_BYTES + 1))
    get = store.get
    store.get = lambda *asked: (read.append(asked), get(*asked))[1]  # type: ignore[method-assign]
    assert stored_status(store, agent_key(1), AgentStatus) is None
    assert read == [(agent_key(1), 0, SMALL_BYTES + 1)]
