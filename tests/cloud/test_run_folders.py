"""
What the instances of a run on Google Cloud may do in its bucket: through spotrun's own store, with a token of the
account that was made for the run.

tests/support/google_cloud.py is between an instance and its objects. It asks the policies of managed folders, and of
custom roles as infra/gcp has them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any, NamedTuple
from urllib.parse import quote

import pytest

from spotrun.boot.upload import FOLDER as BOOT
from spotrun.checkpoint.retention import FOLDER as CHECKPOINTS
from spotrun.clouds.gcp.calls import STORAGE, Call, Google
from spotrun.clouds.gcp.folder_grants import CHANGED
from spotrun.clouds.gcp.run_accounts import RunAccounts
from spotrun.doctor.facts import fact_findings
from spotrun.doctor.finding import Finding, Verdict
from spotrun.errors import AccessDenied, StoreError
from spotrun.folder.final_status import KEY as FINAL_STATUS
from spotrun.folder.keys import OwnersKey
from spotrun.folder.keys import key_of as owners_key_of
from spotrun.folder.keys import make as make_key
from spotrun.folder.ledger import key_of
from spotrun.folder.setup_cache import FOLDER as ENVIRONMENTS
from spotrun.folder.status_objects import RUNNER_KEY, agent_key
from spotrun.folder.stored_files import FOLDER as OUTPUTS
from spotrun.notify.delivery import FOLDER as NOTIFIED
from spotrun.notify.delivery import Delivery
from spotrun.notify.news import News
from spotrun.secrets.redaction import Redactor
from spotrun.store.opening import open_store
from spotrun.store.port import Store
from tests.support.gce_catalog import PROJECT
from tests.support.gcp_instance import Instance, instance
from tests.support.gcp_project import RUNNER
from tests.support.google_server import GoogleServer
from tests.support.list_sink import ListSink
from tests.support.manual_clock import ManualClock
from tests.support.object_stores import RunningServer
from tests.support.repository import ROOT

README = (ROOT / "infra" / "gcp" / "README.md").read_text()
UID, OTHER = "0123456789", "0123456780"
PUBLIC = "ab" * 32
REFUSED = "StoreError"
AGENTS = (
    *(f"{CHECKPOINTS}1/3/part-0", f"{ENVIRONMENTS}/k/1/000000", f"{ENVIRONMENTS}/k.json", agent_key(3)),
    f"{OUTPUTS}1/list-0.json",
)
"""What an agent overwrites or deletes."""
KEPT = (
    *(key_of(0), f"{BOOT}/start.sh", RUNNER_KEY, FINAL_STATUS, f"{NOTIFIED}/mail/1.json", "logs/1/000000.log"),
    *("work/0123", "checkpoints", "hints/agents", f"ledger/{CHECKPOINTS}1", f"boot/{agent_key(3)}"),
)
"""What it may not, though it may read it. The last ones look like what it may."""


class Place(NamedTuple):
    """Two runs in one store, and the instances that each has."""

    google: GoogleServer
    runs: str
    own: Instance
    other: Instance

    @property
    def folder(self) -> str:
        return f"{self.runs}/r-{UID}"

    @property
    def others_folder(self) -> str:
        return f"{self.runs}/r-{OTHER}"

    def ask(self, verb: str, *arguments: Any) -> Any:
        """Of the instance of the first run, in its folder."""
        return self.own.ask(self.folder, verb, *arguments)


@pytest.fixture(scope="module")
def place(servers: Callable[[str], RunningServer], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    server, clock = servers("gs"), ManualClock()
    runs = f"{server.new_prefix()}/runs"
    with pytest.MonkeyPatch.context() as patch, GoogleServer(clock, server.endpoint) as google:
        google.reach(patch, tmp_path_factory.mktemp("login"))
        for uid in (UID, OTHER):
            RunAccounts(Google(clock), clock).make(uid, f"{runs}/r-{uid}")
        with instance(google, account_of(UID)) as own, instance(google, account_of(OTHER)) as other:
            for key in KEPT:
                open_store(f"{runs}/r-{UID}").put(key, b"of the runner")
            open_store(runs).put(owners_key_of(UID, PUBLIC), b"the owner's")
            yield Place(google, runs, own, other)


def account_of(uid: str) -> str:
    return f"spotrun-{uid}@{PROJECT}.iam.gserviceaccount.com"


@pytest.fixture
def runner(place: Place) -> Store:
    return open_store(place.folder)


# -- its own folder --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", AGENTS)
def test_an_instance_writes_overwrites_reads_lists_and_deletes_what_its_agent_does(place: Place, key: str) -> None:
    for text in ("first", "second"):
        assert place.ask("put", key, text) is True
    assert place.ask("get", key) == "second"
    assert key in place.ask("list", key[:4])
    assert place.ask("delete", key) is None
    assert place.ask("get", key)[0] == "ObjectMissing"


def test_a_part_that_travels_in_an_upload_of_its_own_is_written_over_too(place: Place) -> None:
    """Google's library begins one for what has more than 8 MiB, and sends the bytes by another call."""
    key, size = f"{CHECKPOINTS}1/3/part-1", (8 << 20) + 1
    for letter in "ab":
        assert place.ask("put", key, letter * size) is True
    assert place.ask("get", key, size - 1) == "b"
    big = "x" * size
    assert place.ask("put", RUNNER_KEY, big)[0] == REFUSED
    assert place.ask("get", RUNNER_KEY) == "of the runner"


def test_instance_appends_to_the_ledger_and_is_refused_an_existing_entry(place: Place) -> None:
    assert place.ask("put_if_absent", key_of(1), "mine") is True
    assert place.ask("put_if_absent", key_of(1), "another") is False
    assert place.ask("put_if_absent", key_of(0), "another") is False
    assert place.ask("get", key_of(1)) == "mine"
    assert place.ask("get", key_of(99))[0] == "ObjectMissing"


def test_an_instance_adds_to_its_log_once(place: Place) -> None:
    assert place.ask("put_if_absent", "logs/3/000000.log", "words") is True
    assert place.ask("put_if_absent", "logs/3/000000.log", "other words") is False
    assert place.ask("put", "logs/3/000000.log", "other words")[0] == REFUSED


@pytest.mark.parametrize("verb", ["put", "put_status", "delete"])
@pytest.mark.parametrize("key", KEPT)
def test_an_instance_overwrites_and_deletes_nothing_else(place: Place, key: str, verb: str) -> None:
    denied = len(place.google.denied)
    arguments = () if verb == "delete" else ("of an instance",)
    assert place.ask(verb, key, *arguments)[0] == REFUSED
    assert (f"serviceAccount:{account_of(UID)}", "storage.objects.delete") in place.google.denied[denied:]
    assert place.ask("get", key) == "of the runner"


def test_mark_that_an_instance_plants_silences_no_notification(place: Place, runner: Store) -> None:
    """Google's policies only grant: an instance may add such an object, and nobody else may overwrite the runner's."""
    runs, news = open_store(place.runs), News(7, "failed", datetime(2026, 11, 29, tzinfo=UTC), f"r-{UID}", "it failed")
    owner, sink = OwnersKey(lambda: runs, UID, make_key(runs, UID)), ListSink()
    planted = json.dumps({"delivered": True, "tries": 1})
    assert place.ask("put_if_absent", f"{NOTIFIED}/0-7-failed.json", planted) is True
    for _ in range(2):
        Delivery(sink, 0, runner, owner, Redactor(())).settle(news)
    assert sink.ids == [news.id]
    assert place.ask("put", f"{NOTIFIED}/0-7-failed.json", planted)[0] == REFUSED


def test_an_instance_sees_all_of_its_folder(place: Place) -> None:
    assert {*KEPT} <= {*place.ask("list", "")}
    assert key_of(0) in place.ask("list", "ledger/")
    assert "ledger" in place.ask("folders")


# -- all other places ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("verb", "arguments"),
    [
        *[("get", (key,)) for key in (key_of(0), f"{CHECKPOINTS}1/3/part-0", "none")],
        *[("list", (prefix,)) for prefix in ("", "ledger/", CHECKPOINTS)],
        *[("put", (key, "x")) for key in (f"{CHECKPOINTS}1/3/part-0", agent_key(3), "new")],
        *[("put_if_absent", (key, "x")) for key in (key_of(2), "new")],
        *[("delete", (key,)) for key in (f"{CHECKPOINTS}1/3/part-0", agent_key(3))],
        ("folders", ()),
    ],
    ids=str,
)
def test_an_instance_reaches_nothing_of_another_run(place: Place, verb: str, arguments: tuple[str, ...]) -> None:
    assert place.other.ask(place.folder, verb, *arguments)[0] == REFUSED
    assert place.own.ask(place.others_folder, verb, *arguments)[0] == REFUSED


def test_an_instance_cannot_read_the_keys_of_owners_nor_list_the_runs(place: Place) -> None:
    for key in (owners_key_of(UID, PUBLIC), owners_key_of(OTHER, PUBLIC)):
        assert place.own.ask(place.runs, "get", key)[0] == REFUSED
        assert place.own.ask(place.runs, "put", key, "mine")[0] == REFUSED
    for prefix in ("", "keys/", "r-", f"r-{UID}"):
        assert place.own.ask(place.runs, "list", prefix)[0] == REFUSED
    assert place.own.ask(place.runs, "folders")[0] == REFUSED
    assert open_store(place.runs).get(owners_key_of(UID, PUBLIC)) == b"the owner's"


@pytest.mark.parametrize("name", [f"r-{UID}0", f"r-{UID}-1", f"R-{UID}", f"x/r-{UID}", f"r-{UID}=", f"s-{UID}"])
def test_a_folder_of_a_similar_name_is_another_one(place: Place, name: str) -> None:
    folder = f"{place.runs}/{name}"
    open_store(folder).put(f"{CHECKPOINTS}1", b"theirs")
    for verb, *arguments in (("get",), ("put", "x"), ("put_if_absent", "x"), ("delete",)):
        assert place.own.ask(folder, verb, f"{CHECKPOINTS}1", *arguments)[0] == REFUSED
    assert place.own.ask(folder, "list", "")[0] == REFUSED


# -- runners, and the end --------------------------------------------------------------------------------------------


def test_a_runner_writes_its_own_objects_and_no_entry_twice(place: Place, runner: Store) -> None:
    for text in (b"first", b"second"):
        runner.put_status(RUNNER_KEY, text)
    assert runner.get(RUNNER_KEY) == b"second"
    runner.put_status(RUNNER_KEY, b"of the runner")
    for change in (lambda: runner.put(key_of(0), b"x"), lambda: runner.delete(key_of(0))):
        with pytest.raises(StoreError, match="403"):
            change()
    assert runner.get(key_of(0)) == b"of the runner"


@pytest.mark.parametrize("above", ["keys/", ""])
def test_runner_cannot_grant_itself_the_deletion_of_a_key(place: Place, above: str) -> None:
    """By the policy of a managed folder with the keys in it, which whoever has stolen a login would set."""
    google, bucket = Google(ManualClock()), place.runs.split("/")[2]
    name = f"{place.runs.split('/', 3)[3]}/{above}"
    google.ask("make a folder", Call(STORAGE, "POST", f"b/{bucket}/managedFolders", body={"name": name}))
    mine = {"bindings": [{"role": "roles/storage.objectAdmin", "members": [RUNNER]}]}
    path = f"b/{bucket}/managedFolders/{quote(name, safe='')}"
    with pytest.raises(AccessDenied):
        google.ask("grant", Call(STORAGE, "PUT", f"{path}/iam", body=mine))
    with pytest.raises(StoreError, match="403"):
        open_store(place.runs).delete(owners_key_of(UID, PUBLIC))


def test_doctor_names_who_can_read_keys_besides_runners(place: Place) -> None:
    def told() -> Finding:
        (found,) = (each for each in fact_findings(open_store(place.runs), None) if each.name == "keys")
        return found

    assert told().verdict is Verdict.OK
    bindings = place.google.iam.of_bucket["bindings"]
    bindings.append({"role": "roles/storage.objectViewer", "members": ["user:eve@example.com"]})
    try:
        assert "user:eve@example.com (roles/storage.objectViewer)" in told().detail
    finally:
        bindings.pop()


def test_an_instance_can_do_nothing_once_its_account_is_removed_and_a_new_account_is_not_its_own(
    place: Place,
) -> None:
    uid, clock = "00000000ff", ManualClock()
    folder = f"{place.runs}/r-{uid}"
    accounts = RunAccounts(Google(clock), clock)
    accounts.make(uid, folder)
    with instance(place.google, account_of(uid)) as one:
        assert one.ask(folder, "put", agent_key(1), "alive") is True
        accounts.remove(uid)
        assert account_of(uid) not in place.google.iam.accounts
        assert not [each for each in place.google.iam.members() if uid in each]
        accounts.make(uid, folder)
        for verb, *arguments in (("get", agent_key(1)), ("put", agent_key(1), "still alive"), ("list", "")):
            assert one.ask(folder, verb, *arguments)[0] == REFUSED
        with instance(place.google, account_of(uid)) as next_one:
            assert next_one.ask(folder, "get", agent_key(1)) == "alive"


def test_each_key_that_an_agent_changes_is_in_the_condition_and_each_part_of_it_is_used() -> None:
    assert all(key.startswith(CHANGED) for key in AGENTS)
    assert all(any(key.startswith(each) for key in AGENTS) for each in CHANGED)
    assert all(f"`{each}" in README for each in CHANGED)
