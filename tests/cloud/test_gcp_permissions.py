"""
The custom roles of infra/gcp have what the calls of spotrun need, and nothing else. The calls are those that a run, its
end, `offers`, `reap` and `doctor` have really made here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from msgspec.structs import replace

from spotrun.clock import system_clock
from spotrun.clouds.gcp.calls import Google
from spotrun.clouds.gcp.config import GcpConfig
from spotrun.clouds.gcp.disks import Disks
from spotrun.clouds.gcp.doctor import GcpDoctor
from spotrun.clouds.gcp.driver import GcpDriver
from spotrun.clouds.gcp.preemption_shares import bands_known
from spotrun.clouds.gcp.quotes import read_quotes
from spotrun.clouds.gcp.run_accounts import RunAccounts
from spotrun.doctor.facts import fact_findings
from spotrun.doctor.trial import StoreTrial
from spotrun.instance import LaunchRequest
from spotrun.offering import Offering
from spotrun.secrets.reference import Reference
from spotrun.spec.model import DEEP_LEARNING_IMAGE, ResourcesSpec
from spotrun.store.opening import open_store
from tests.support.gce_catalog import IMAGES
from tests.support.gcp_account import RUNNER_ROLES, STORE, GcpAccount
from tests.support.gcp_permissions import ALWAYS, OPTIONAL, needed
from tests.support.gcp_templates import permissions, roles
from tests.support.google_server import GoogleServer
from tests.support.launch_requests import requested
from tests.support.manual_clock import ManualClock
from tests.support.object_stores import RunningServer

UID = "0123456789"
URI = f"{STORE}/r-{UID}"
CONFIG = GcpConfig(regions=("us-central1",), instance_types=("g2-standard-4",), image=DEEP_LEARNING_IMAGE)
NAMED = replace(CONFIG, image=f"projects/{IMAGES[0].project}/global/images/{IMAGES[0].name}")
BY_PEOPLE = {
    "compute.instances.getSerialPortOutput": "gcloud compute instances get-serial-port-output",
    "serviceusage.services.use": "gcloud auth application-default set-quota-project",
}
"""
Rights that no call of spotrun's needs by itself, and what a person does with each: if an instance never gets to its
agent; and to name this project as the quota project of a login.
"""


class Needed:
    """`permissions` of the calls so far, and `methods` that were called."""

    def __init__(self) -> None:
        self.permissions: set[str] = set()
        self.methods: set[str] = set()

    def add(self, method: str, permissions: Iterable[str]) -> None:
        self.methods.add(method)
        self.permissions.update(permissions)


@pytest.fixture
def recorded(servers: Callable[[str], RunningServer], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Needed:
    found = Needed()
    with GoogleServer(system_clock(), servers("gs").endpoint) as google:
        google.reach(monkeypatch, tmp_path)
        monkeypatch.delenv("STORAGE_EMULATOR_HOST", raising=False)
        use_the_store()
        for each in google.asked:
            found.add(each.method, needed(each.method, each.body, each.query))
    clock = ManualClock(datetime.now(UTC))
    with GcpAccount(clock) as account:
        account.reach(monkeypatch, tmp_path)
        live_through_a_run(account, clock)
        for asked in account.asked:
            found.add(asked.method, needed(asked.method, asked.body, asked.query))
    return found


def use_the_store() -> None:
    store = open_store(STORE)
    assert [*StoreTrial(store, system_clock()).findings()]
    assert [*fact_findings(store, "us-central1")]


def live_through_a_run(account: GcpAccount, clock: ManualClock) -> None:
    google = Google(clock)
    accounts, driver, disks = RunAccounts(google, clock), GcpDriver(CONFIG, clock), Disks(google)
    accounts.make(UID, URI)
    offering = next(iter(driver.offerings()))
    launched = driver.launch(request(offering))
    account.project.disks[offering.zone, launched.instance_id].auto_delete = False
    look_at_the_project(account, clock)
    driver.terminate(launched.instance_id)
    clock.advance(300)
    assert driver.instances(UID)
    assert [disks.remove(left) for left in disks.found()], "a disk that somebody has kept"
    assert accounts.runs() == [UID]
    accounts.remove(UID)
    assert [*GcpDriver(NAMED, clock).offerings()]
    assert read_quotes(CONFIG, clock, ()).quotes
    assert bands_known(CONFIG, clock)


def look_at_the_project(account: GcpAccount, clock: ManualClock) -> None:
    """As `spotrun doctor gcp` does."""
    wanted = ResourcesSpec().model_copy(update={"cloud": "gcp"})
    account.allowed.update(permission for each in OPTIONAL.values() for permission in each)
    other = "other@acme-training.iam.gserviceaccount.com"
    account.iam.accounts[other] = {"email": other}
    for config in (CONFIG, replace(CONFIG, service_account=other, reservation="nights")):
        assert [*GcpDoctor(config, wanted, STORE, clock, {"WORD": Reference("gsm", "spotrun-WORD")}).findings()]
    account.iam.accounts.pop(other)


def request(offering: Offering) -> LaunchRequest:
    return requested(offering, run_uid=UID, run_uri=URI)


def test_the_roles_of_a_runner_have_what_the_calls_need_and_no_more(recorded: Needed) -> None:
    without = {permission for each in OPTIONAL.values() for permission in each}
    assert permissions(*RUNNER_ROLES) - {*BY_PEOPLE} == recorded.permissions - without
    assert {*BY_PEOPLE} <= permissions(*RUNNER_ROLES)
    assert not without & permissions(*roles())


def test_the_table_has_the_methods_that_are_called_and_no_others(recorded: Needed) -> None:
    by_people = {"compute.instances.getSerialPortOutput"}
    assert recorded.methods == {*ALWAYS, *OPTIONAL} - by_people
