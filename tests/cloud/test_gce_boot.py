"""How a VM of Compute Engine becomes an instance with an agent, and how it ends."""

from __future__ import annotations

import os
import re
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from spotrun.clock import ScaledClock
from spotrun.clouds.gcp.bootstrap import script, startup_script
from spotrun.clouds.gcp.calls import Google
from spotrun.clouds.gcp.cloud import CLOUD
from spotrun.clouds.gcp.config import account_address
from spotrun.clouds.gcp.notices import USUAL_NOTICE, time_left
from spotrun.clouds.gcp.run_accounts import RunAccounts
from spotrun.store.opening import open_store
from spotrun.store.port import Store
from tests.support.eventually import eventually
from tests.support.gce_catalog import PROJECT
from tests.support.gce_machines import GceMachine
from tests.support.gce_metadata import GceMetadata
from tests.support.google_server import GoogleServer
from tests.support.histories import offering
from tests.support.http_server import as_json
from tests.support.launch_requests import requested
from tests.support.machines import LATE_TEE
from tests.support.object_stores import RunningServer

UID, OTHER = "0123456789", "0123456780"
BIN = Path(sys.executable).parent
AT_ONCE = {"sleep": "#!/bin/bash\n"}
FOR_EVER = {"sleep": '#!/bin/bash\n[[ "$1" -lt 90 ]] || exec /bin/sleep 1000\n'}
"""A wait of 90 s and more has no end."""
TOO_OLD = dict.fromkeys(("python3", "python3.11", "python3.12", "python3.13"), "#!/bin/bash\nexit 1\n")
FOLDERS = ("runs", "some/runs/boot/of_2026/a=b.c")


def image_with(agent: str, lacks: str = "nothing") -> dict[str, str]:
    """An image whose Python has all that spotrun needs, but for the extra `lacks`. `agent` is the agent, in bash."""
    python = f"""#!/bin/bash
case "$*" in
    *"-m venv"*) mkdir -p "${{@: -1}}/bin"; cp "$0" "${{@: -1}}/bin/python" ;;
    *getsitepackages*) mkdir -p "$RENTED_MACHINE/site"; echo "$RENTED_MACHINE/site" ;;
    *spotrun*{lacks}*]) exit 1 ;;
    *spotrun.agent.bootstrap) {agent} ;;
esac
"""
    return dict.fromkeys(("python3", "python3.11", "python3.12", "python3.13"), python)


class Bench:
    """Two runs in a bucket, and one machine of the first. Its clock runs 60 times as fast as ours."""

    def __init__(self, folder: Path, google: GoogleServer, clock: ScaledClock, runs: str) -> None:
        self.google, self.runs = google, runs
        accounts = RunAccounts(Google(clock), clock)
        for uid in (UID, OTHER):
            accounts.make(uid, self.uri(uid))
        self.store: Store = open_store(self.uri(UID))
        self._off = threading.Event()
        email = account_address(UID, PROJECT)
        metadata = GceMetadata(f"spotrun-{UID}-7", account=email, token=google.token_of(email))
        self.machine = GceMachine(folder / "disk", metadata, clock, self._off.set)

    def uri(self, uid: str) -> str:
        return f"{self.runs}/r-{uid}"

    def start(
        self,
        tools: Mapping[str, str] = {},
        of: str = UID,
        live: timedelta = timedelta(hours=2),
        notice_s: int = 120,
    ) -> None:
        """Boot the machine of launch 7."""
        request = requested(offering(), 7, of, run_uri=self.uri(of), time_to_live=live)
        image = {"API_ENDPOINT_OVERRIDE": self.google.url, "PATH": f"{BIN}:{os.defpath}"}
        script = startup_script(request, timedelta(seconds=notice_s))
        self.machine.start(script.encode(), image, {**AT_ONCE, **tools})

    def says(self, text: str) -> None:
        """It is on, and says so at last."""
        eventually(lambda: text in self.console(), within_s=60)
        assert not self._off.is_set()

    def powers_off(self) -> str:
        """What it has said once it is off."""
        assert self._off.wait(60), self.console()
        return self.console()

    def console(self) -> str:
        path = self.machine.disk / "console.log"
        return path.read_text() if path.exists() else ""

    def close(self) -> None:
        self.machine.power_off()


@pytest.fixture(params=FOLDERS[:1])
def bench(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    servers: Callable[[str], RunningServer],
) -> Iterator[Bench]:
    server = servers("gs")
    clock = ScaledClock(datetime.now(UTC), 60.0)
    with GoogleServer(clock, server.endpoint) as google:
        google.reach(monkeypatch, tmp_path)
        bench = Bench(tmp_path, google, clock, f"{server.new_prefix()}/{request.param}")
        CLOUD.furnish(bench.store)
        yield bench
        bench.close()


# -- how it starts ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bench", FOLDERS, indirect=True)
def test_a_machine_has_the_boot_folder_of_its_run_and_knows_whose_it_is(bench: Bench) -> None:
    bench.store.put("boot/failed-3.log", b"of a launch before")
    bench.start(image_with("export -p"))
    said = bench.powers_off()
    boot = bench.machine.disk / "spotrun" / "boot"
    here = {f"boot/{path.name}": path.read_bytes() for path in boot.iterdir()}
    assert here == {
        each.key: bench.store.get(each.key) for each in bench.store.list("boot/") if "3.log" not in each.key
    }
    for name, text in {
        "SPOTRUN_RUN": bench.uri(UID),
        "SPOTRUN_RUN_UID": UID,
        "SPOTRUN_LAUNCH": "7",
        "SPOTRUN_INSTANCE_ID": f"spotrun-{UID}-7",
        "SPOTRUN_NOTICE_S": "120",
    }.items():
        assert f'declare -x {name}="{text}"' in said
    assert "SPOTRUN_INSTALLS_TORCH" not in said
    assert "failed before its agent ran" not in said
    assert bench.machine.metadata.token not in said


def test_a_machine_whose_image_has_no_pytorch_leaves_that_to_its_agent(bench: Bench) -> None:
    bench.start(image_with("export -p", lacks="lightning"))
    assert 'declare -x SPOTRUN_INSTALLS_TORCH="1"' in bench.powers_off()


def test_a_machine_waits_for_its_account_to_be_known(bench: Bench) -> None:
    bench.google.fail("storage.objects.list", as_json({"error": {"code": 401}}, 401), times=2)
    bench.google.fail("storage.objects.get", as_json({"error": {"code": 403}}, 403), times=2)
    bench.start(image_with("echo here I am"))
    assert "here I am" in bench.powers_off()


def test_a_machine_that_cannot_read_its_run_powers_off_and_has_written_nothing(bench: Bench) -> None:
    bench.start(of=OTHER)
    said = bench.powers_off()
    assert said.count("error: 403") == 9
    assert "the run's folder cannot be read: power off" in said
    asked = {each.method for each in bench.google.asked if each.who.endswith(account_address(UID, PROJECT))}
    assert asked == {"storage.objects.list"}


def test_a_machine_that_cannot_arm_its_time_to_live_powers_off(bench: Bench) -> None:
    bench.start({"systemd-run": "#!/bin/bash\nexit 1\n"})
    assert "cannot be armed: power off" in bench.powers_off()
    assert not (bench.machine.disk / "spotrun").exists()


def test_the_time_to_live_ends_a_machine_two_minutes_after_the_clouds_own_limit(bench: Bench) -> None:
    bench.start(image_with("exec /bin/sleep 1000"), live=timedelta(seconds=30))
    assert "powers off 150 s after its boot" in bench.powers_off()


def test_why_no_agent_ran_is_in_the_runs_folder(bench: Bench) -> None:
    bench.start({**TOO_OLD, "tee": LATE_TEE})
    bench.powers_off()
    said = bench.store.get("boot/failed-7.log").decode()
    assert "this image has no Python 3.11 to 3.13: name another one by gcp.image" in said
    assert "launch 7 failed before its agent ran" in said


# -- a second boot ---------------------------------------------------------------------------------------------------


def test_a_machine_that_boots_again_powers_off(bench: Bench) -> None:
    folder = bench.machine.disk / "spotrun"
    folder.mkdir(parents=True)
    (folder / "boot-id").write_text("that of another boot\n")
    bench.start(image_with("echo here I am"))
    said = bench.powers_off()
    assert "launch 7 has booted before: power off" in said
    assert "here I am" not in said


def test_a_startup_script_that_is_called_again_by_hand_changes_nothing(bench: Bench) -> None:
    bench.start(image_with('bash "$RENTED_MACHINE/console"; echo "said $?"; exec /bin/sleep 1000'))
    bench.says("said 0")
    assert bench.console().count("after its boot") == 1


# -- how it ends -----------------------------------------------------------------------------------------------------


def test_a_machine_that_is_noticed_waits_to_be_taken(bench: Bench) -> None:
    bench.machine.metadata.preempt()
    bench.start({**image_with("echo drained"), **FOR_EVER})
    bench.says("waits for Compute Engine to take it")
    bench.machine.shut_down()
    assert "drained" in bench.powers_off()


def test_a_machine_that_fails_to_start_and_is_noticed_waits_to_be_taken(bench: Bench) -> None:
    bench.machine.metadata.preempt()
    bench.start({**TOO_OLD, **FOR_EVER})
    bench.says("waits for Compute Engine to take it")
    bench.machine.shut_down()
    bench.powers_off()


@pytest.mark.parametrize("notice_s", [120, 0])
def test_a_machine_that_is_not_taken_after_all_powers_off_in_the_end(bench: Bench, notice_s: int) -> None:
    bench.machine.metadata.preempt()
    says = {"sleep": '#!/bin/bash\necho "waited for $1 s"\n'}
    bench.start({**image_with("echo drained"), **says}, notice_s=notice_s)
    assert f"waited for {notice_s + 90} s" in bench.powers_off()


def test_a_machine_that_is_not_noticed_powers_off_at_once(bench: Bench) -> None:
    bench.start({**image_with("echo drained"), **FOR_EVER})
    assert "waits for Compute Engine" not in bench.powers_off()


def test_n11_n12_at_a_shutdown_the_agent_gets_the_signal_and_runs_to_its_own_end(bench: Bench) -> None:
    """With the usual notice, the key and the signal come together. Afterwards nobody waits any more."""
    agent = """. "$SPOTRUN_INSTANCE_DIR/google.sh"; echo training
        while [[ ! -e "$RENTED_MACHINE/signalled" ]]; do :; done; /bin/sleep 0.2; metadata instance/preempted"""
    bench.start({**image_with(agent), **FOR_EVER}, notice_s=0)
    bench.says("training")
    bench.machine.metadata.preempt()
    bench.machine.shut_down()
    said = bench.powers_off()
    assert "TRUE" in said
    assert "waits for Compute Engine" not in said


def test_the_network_outlives_the_agent_at_a_shutdown() -> None:
    """systemd stops units in the opposite order of their start: `man systemd.unit`, Before=."""
    assert '--property="After=network-online.target google-guest-agent.service"' in script()


def test_no_agent_is_ended_before_the_deadline_that_it_knows() -> None:
    """The notice that is heard with the signal: https://cloud.google.com/compute/docs/instances/spot has it at 30 s."""
    allowed = re.search(r"TimeoutStopSec=(\d+)", script())
    assert allowed is not None
    assert time_left(timedelta()) < timedelta(seconds=int(allowed[1])) <= USUAL_NOTICE


def test_a_shutdown_does_not_wait_for_an_agent_without_end(bench: Bench) -> None:
    bench.start(image_with("echo training; exec /bin/sleep 1000"))
    bench.says("training")
    bench.machine.shut_down()
    bench.powers_off()
