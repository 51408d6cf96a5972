"""How a rented machine becomes an instance with an agent: what lies ready for it, and what it tells when it cannot."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pytest

import spotrun
from spotrun.boot.wheel import own_wheel
from spotrun.clock import ScaledClock
from spotrun.clouds.aws import bootstrap as aws_bootstrap
from spotrun.clouds.aws.bootstrap import user_data
from spotrun.clouds.aws.cloud import CLOUD
from spotrun.clouds.gcp import bootstrap as gcp_bootstrap
from spotrun.instance import Instance, InstanceState
from spotrun.offering import CapacityType, Offering
from spotrun.store.local import LocalStore
from tests.support.ec2_machines import Ec2Machine, Identity
from tests.support.eventually import eventually
from tests.support.launch_requests import requested
from tests.support.locks import BOOT, CUDA, TORCH
from tests.support.machines import ENDS_A_MACHINE, LATE_TEE
from tests.support.own_namespaces import ENDING_PATHS, permitted
from tests.support.small_wheels import WRONG, change_wheel, only_from, small_wheel

BIN = Path(sys.executable).parent
AT_ONCE = {"sleep": "#!/bin/bash\n"}
FROM_A_FOLDER = '#!/bin/bash\nshift 2\nwhile [[ "$1" == --* ]]; do shift; done\ncp -rT "${1#s3:/}" "${2#s3:/}"\n'
"""In place of `aws`: s3://… is /…"""
OFFERING = Offering(
    cloud="aws",
    region="us-east-1",
    zone="us-east-1a",
    instance_type="g5.xlarge",
    capacity_type=CapacityType.SPOT,
    price_usd_per_hour=Decimal(1),
)


class Bench:
    """One machine on whose end one can wait."""

    def __init__(self, folder: Path) -> None:
        self.clock = ScaledClock(datetime.now(UTC), 60.0)
        instance = Instance(
            instance_id="i-0123456789abcdef0",
            token="0123456789-7",
            run_uid="0123456789",
            launch=7,
            offering=OFFERING,
            state=InstanceState.RUNNING,
            launched_at=self.clock.now(),
        )
        self._ended = threading.Event()
        identity = Identity("spotrun-run-0123456789", "key", "secret")
        self.machine = Ec2Machine(folder / "disk", instance, identity, self.clock, self._ended.set)

    def run(self, script: bytes, image: Mapping[str, str] | None = None, **tools: str) -> str:
        """What the machine has said once it was off."""
        self.start(script, tools, image)
        return self.wait()

    def wait(self) -> str:
        assert self._ended.wait(240), self.console()
        return self.console()

    def start(self, script: bytes, tools: Mapping[str, str], image: Mapping[str, str] | None = None) -> None:
        self.machine.start(script, {**(image or {}), "PATH": f"{BIN}:{os.defpath}"}, tools)

    def console(self) -> str:
        return (self.machine.disk / "console.log").read_text()


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    bench.machine.power_off()


def started(uri: str) -> bytes:
    return user_data(requested(OFFERING, 7, run_uri=uri)).encode()


def test_the_wheel_is_the_code_that_runs_here(tmp_path: Path) -> None:
    wheel = own_wheel()
    (tmp_path / wheel.name).write_bytes(wheel.data)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target"]
    subprocess.run([*pip, str(tmp_path / "site"), str(tmp_path / wheel.name)], check=True, timeout=120)
    ours = Path(spotrun.__file__).parent
    packed = {path.relative_to(tmp_path / "site/spotrun"): path for path in (tmp_path / "site/spotrun").rglob("*.*")}
    for path in ours.rglob("*.*"):
        if path.suffix not in (".pyc", ".pyo") and path.is_file():
            assert packed[path.relative_to(ours)].read_bytes() == path.read_bytes()
    assert (tmp_path / "site/bin/spotrun").exists()


def test_the_same_code_is_the_same_wheel() -> None:
    assert own_wheel() == own_wheel()


@pytest.mark.parametrize("command", [*ENDS_A_MACHINE, "shutdown -h now", "systemctl poweroff"])
def test_shutdown_commands_end_the_machine_and_not_the_host(bench: Bench, command: str) -> None:
    bench.run(f"#!/bin/bash\n{command}\nexec sleep 1000\n".encode())


def test_the_host_and_its_init_are_out_of_reach(bench: Bench) -> None:
    if not permitted():
        pytest.skip("namespaces take root: here only names without a path are shimmed, and metadata is on 127.0.0.1")
    paths = [path for path in ENDING_PATHS if Path(path).exists()]
    said = bench.run(
        f"""#!/bin/bash
for path in {" ".join(paths)}; do cmp "$path" tools/systemctl && echo "$path is ours"; done
kill -INT 1
kill -KILL 1
{{ echo b >/proc/sysrq-trigger; }} 2>/dev/null && echo "somebody reads sysrq-trigger"
echo "below /run: $(find /run -type s -o -type p | xargs)"
echo "namespaces: $(readlink /proc/1/ns/pid /proc/1/ns/net /proc/1/ns/mnt | xargs)"
echo "addresses: $(ip -brief address | xargs)"
curl -sS -X PUT -H "X-aws-ec2-metadata-token-ttl-seconds: 9" http://169.254.169.254/latest/api/token | wc -c
exec {paths[0] if paths else ""} poweroff
""".encode()
    )
    lines = said.splitlines()
    assert [line.split()[0] for line in lines if line.endswith("is ours")] == paths
    assert "somebody reads" not in said
    assert "below /run: " in lines, "sockets and pipes of an init"
    outside = {os.readlink(f"/proc/self/ns/{kind}") for kind in ("pid", "net", "mnt")}
    (inside,) = (line.split()[1:] for line in lines if line.startswith("namespaces: "))
    assert len(inside) == 3
    assert outside.isdisjoint(inside)
    assert "addresses: lo UNKNOWN 127.0.0.1/8 169.254.169.254/32 ::1/128" in lines
    assert int(lines[-1]) > 20, "a session token, from where EC2 has them"


def test_a_machine_that_cannot_arm_its_time_to_live_powers_off(bench: Bench) -> None:
    broken = "#!/bin/bash\nexit 1\n"
    assert "cannot be armed: power off" in bench.run(started("s3://b/r"), **{"systemd-run": broken})


def test_a_machine_that_cannot_read_its_run_powers_off(bench: Bench) -> None:
    refused = "#!/bin/bash\necho denied >&2\nexit 1\n"
    said = bench.run(started("s3://b/r"), aws=refused, **AT_ONCE)
    assert said.count("denied") == 7
    assert "the run's folder cannot be read: power off" in said


def test_image_without_awscli_names_what_it_lacks_and_powers_off(bench: Bench) -> None:
    bench.machine.start(started("s3://b/r"), {"PATH": os.defpath}, AT_ONCE)
    said = bench.wait()
    (line,) = (line for line in said.splitlines() if "error" in line)
    assert "this image has no awscli" in line
    assert "aws.image_id or aws.image_parameter" in line
    assert "cannot be read" not in said


def test_the_time_to_live_ends_a_machine_whatever_it_does(bench: Bench) -> None:
    script = started("s3://b/r").replace(b"=7200\n", b"=30\n")
    bench.run(script, aws="#!/bin/bash\nexec sleep 1000\n")


@pytest.mark.parametrize("script", [aws_bootstrap.script(), gcp_bootstrap.script()], ids=["aws", "gcp"])
def test_a_training_that_is_killed_for_its_memory_takes_its_agent_not_along(script: str) -> None:
    """systemd would stop all of a service of which the kernel has killed one process: `man systemd.service`."""
    assert "--property=OOMPolicy=continue" in script


def test_why_no_agent_ran_is_in_the_runs_folder(bench: Bench, tmp_path: Path) -> None:
    """Whatever the machine has written until then, however late its `tee` has."""
    store = LocalStore(tmp_path / "run")
    CLOUD.furnish(store)
    old = '#!/bin/bash\n[[ "$*" == *version_info* ]] && exit 1\nexit 0\n'
    pythons = dict.fromkeys(("python3", "python3.11", "python3.12", "python3.13"), old)
    bench.run(started(f"s3:/{tmp_path}/run"), aws=FROM_A_FOLDER, tee=LATE_TEE, **AT_ONCE, **pythons)
    said = (tmp_path / "run/boot/failed-7.log").read_text()
    assert "this image has no Python 3.11 to 3.13: name another one" in said
    assert "launch 7 failed before its agent ran" in said


HUNG_PIP = """#!/bin/bash
[[ "$*" == *" pip "*--requirement* ]] && exec /bin/sleep 1000
exec {python} "$@"
"""
"""A Python whose pip never has an answer from an index. What needs none it installs."""


def test_the_log_of_a_start_is_in_the_runs_folder_while_it_goes_on(bench: Bench, tmp_path: Path) -> None:
    """A runner that ends the instance leaves it no time to say anything."""
    CLOUD.furnish(LocalStore(tmp_path / "run"))
    tools = {"aws": FROM_A_FOLDER, "python3": HUNG_PIP.format(python=sys.executable), **AT_ONCE}
    bench.start(started(f"s3:/{tmp_path}/run"), tools)
    log = tmp_path / "run/boot/failed-7.log"
    eventually(lambda: log.exists() and "launch 7 installs what its agent needs" in log.read_text(), within_s=60)


def test_pip_gives_up_after_five_minutes_and_says_so(bench: Bench, tmp_path: Path) -> None:
    """`timeout` is asked for 300 s at most, and ends it after one here."""
    store = LocalStore(tmp_path / "run")
    CLOUD.furnish(store)
    ends = "#!/bin/bash\nwhile [[ $1 == -* ]]; do shift; done\n((${1%s} <= 300)) && exec /usr/bin/timeout 1 ${@:2}\n"
    hung = HUNG_PIP.format(python=sys.executable).replace("1000", "$((10 ** 4))")
    installs = '[[ "$*" == *force-reinstall* ]] && exit 0\nexec'
    python = hung.replace("\nexec", f"\n{installs}", 1)
    said = bench.run(started(f"s3:/{tmp_path}/run"), aws=FROM_A_FOLDER, timeout=ends, python3=python, **AT_ONCE)
    assert "pip has installed nothing within 300 s: no package index can be reached from here" in said
    assert "launch 7 failed before its agent ran" in store.get("boot/failed-7.log").decode()


def furnished(store: LocalStore, locks: Mapping[str, str], needs: str) -> None:
    """With what instances install; but the wheel's lock is another one, and spotrun needs more than it does."""
    CLOUD.furnish(store)
    change_wheel(store, locks, lambda text: text.replace("\nName:", f"\nRequires-Dist: {needs}\nName:", 1))


def test_an_instance_installs_what_the_lock_names_and_nothing_with_another_digest(bench: Bench, tmp_path: Path) -> None:
    index = tmp_path / "index"
    brick = small_wheel(index, "brick")
    small_wheel(index, "stone")
    locks = {BOOT: f"brick==1.0 --hash=sha256:{brick}\n", TORCH: f"stone==1.0 --hash=sha256:{WRONG}\n", CUDA: ""}
    furnished(LocalStore(tmp_path / "run"), locks, needs="stone")
    said = bench.run(started(f"s3:/{tmp_path}/run"), only_from(index), aws=FROM_A_FOLDER, **AT_ONCE)
    assert "DO NOT MATCH THE HASHES" in said
    assert "launch 7 failed before its agent ran" in said
    (site,) = bench.machine.disk.glob("spotrun/venv/lib/python3*/site-packages")
    assert (site / "brick.py").exists()
    assert not (site / "stone.py").exists()


def test_an_instance_installs_nothing_without_a_digest(bench: Bench, tmp_path: Path) -> None:
    small_wheel(tmp_path / "index", "brick")
    furnished(LocalStore(tmp_path / "run"), {BOOT: "brick==1.0\n"}, needs="brick")
    image = only_from(tmp_path / "index")
    said = bench.run(started(f"s3:/{tmp_path}/run"), image, aws=FROM_A_FOLDER, **AT_ONCE)
    assert "Hashes are required" in said
    assert "launch 7 failed before its agent ran" in said
