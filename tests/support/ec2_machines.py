"""
EC2 instances on this machine: each runs its user-data as a process tree, with a disk and a metadata service of its own.

What would touch the host is shimmed: `systemd-run` starts processes and timers of the instance, and every command that
ends a machine ends this one alone. Where this user may have them, network and processes are in namespaces of their own,
and the metadata service is at 169.254.169.254; elsewhere it is found through the variable that the SDKs know.
"""

from __future__ import annotations

import json
import re
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from spotrun.clock import ScaledClock
from spotrun.clouds.local import processes
from spotrun.clouds.local.metadata import MetadataService
from spotrun.instance import Instance
from tests.support.own_namespaces import METADATA, Namespaces, Way, permitted

_LOCAL = re.compile(r"http://127\.0\.0\.1:(\d+)")
MARK = "EC2_MACHINE"
"""The variable that all processes of a machine carry, with its disk."""
ENDS_A_MACHINE = ("shutdown", "poweroff", "halt", "reboot")
_SYSTEMCTL = f"""#!/bin/bash
ends='{"|".join((*ENDS_A_MACHINE, "init", "telinit"))}'
if [[ "${{0##*/}}" =~ ^($ends)$ || "${{1:-}}" =~ ^($ends)$ ]]; then
    touch "$EC2_MACHINE/powered-off"
    exit
fi
echo "systemctl $*: not in this rehearsal" >&2
exit 1
"""
"""As on a real machine, one program under many names."""
_SYSTEMD_RUN = """#!/bin/bash
while [[ "$1" == --* ]]; do
    case "$1" in
        --on-boot=*) after="${1#--on-boot=}" ;;
        --property=ExecStopPost=*) stop_post="${1#--property=ExecStopPost=}" ;;
    esac
    shift
done
if [[ -n "${after:-}" ]]; then
    ( /bin/sleep "$(awk "BEGIN { print ${after%s} / $SPOTRUN_TIME_SCALE }")"; "$@" ) &
else
    ( "$@"; ${stop_post:-true} ) >>"$EC2_MACHINE/console.log" 2>&1 &
fi
"""
NO_STORE = "#!/bin/bash\nexec sleep 3600\n"
"""In place of `aws`, where nothing is to be fetched."""


class Identity(NamedTuple):
    """The role that an instance has, and the credentials that it gets for it."""

    role: str
    key_id: str
    secret: str


class RoleMetadata(MetadataService):
    """
    The metadata service of an instance that has a role.

    https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/instance-metadata-security-credentials.html
    """

    def __init__(self, instance: Instance, identity: Identity, clock: ScaledClock) -> None:
        super().__init__(instance, clock)
        credentials = {
            "Code": "Success",
            "Type": "AWS-HMAC",
            "AccessKeyId": identity.key_id,
            "SecretAccessKey": identity.secret,
            "Token": "",
            "Expiration": f"{datetime.now(UTC) + timedelta(hours=6):%Y-%m-%dT%H:%M:%SZ}",
        }
        self._answers[f"/latest/meta-data/iam/security-credentials/{identity.role}"] = json.dumps(credentials)


class Machine:
    """`ended` is called once, from a thread of its own, when the machine has powered itself off."""

    def __init__(
        self, disk: Path, instance: Instance, identity: Identity, clock: ScaledClock, ended: Callable[[], None]
    ) -> None:
        self.disk = disk
        self.metadata = RoleMetadata(instance, identity, clock)
        self._role = identity.role
        self._clock = clock
        self._ended = ended
        self._off = threading.Event()
        self._timers: list[threading.Timer] = []
        self._namespaces = Namespaces() if permitted() else None
        self._watcher = threading.Thread(target=self._watch, daemon=True)

    def start(self, user_data: bytes, image: Mapping[str, str], tools: Mapping[str, str]) -> None:
        """`image` is its environment; `tools` are scripts that stand before all others on its path."""
        shims = {"systemd-run": _SYSTEMD_RUN, **dict.fromkeys(("systemctl", *ENDS_A_MACHINE), _SYSTEMCTL)}
        tools_folder = self.disk / "tools"
        tools_folder.mkdir(parents=True)
        for name, text in {**shims, **tools}.items():
            (tools_folder / name).write_text(text)
            (tools_folder / name).chmod(0o755)
        script = self.disk / "console"
        script.write_bytes(user_data)
        environment = {
            **image,
            **self._clock.environment(),
            "PATH": f"{tools_folder}:{image['PATH']}",
            "SPOTRUN_INSTANCE_DIR": str(self.disk / "spotrun"),
            "AWS_SDK_UA_APP_ID": self._role,  # by which its calls are told from those of others
            MARK: str(self.disk),
        }
        self.metadata.start()
        self._watcher.start()
        if self._namespaces is None:
            self._run_beside_the_host(script, environment)
        else:
            self._namespaces.start(script, tools_folder, environment, [*self._ways(image)])

    def _ways(self, image: Mapping[str, str]) -> Iterator[Way]:
        """To its metadata, and to what the image names by addresses of this machine."""
        service = urlsplit(self.metadata.endpoint)
        yield Way(METADATA, ("127.0.0.1", service.port or 80))
        for port in sorted({int(found) for text in image.values() for found in _LOCAL.findall(text)}):
            yield Way(("127.0.0.1", port), ("127.0.0.1", port))

    def _run_beside_the_host(self, script: Path, environment: Mapping[str, str]) -> None:
        found_at = {"AWS_EC2_METADATA_SERVICE_ENDPOINT": self.metadata.endpoint.rstrip("/")}
        with (self.disk / "console.log").open("ab") as console:
            subprocess.Popen(
                ["bash", str(script)],
                cwd=self.disk,
                env={**environment, **found_at},
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=console,
                start_new_session=True,
            )

    def notice(self, deadline: datetime) -> None:
        self.metadata.give_notice(deadline)

    def after(self, seconds: float, act: Callable[[], None]) -> None:
        """In so many seconds of run time, unless it is off by then."""
        timer = threading.Timer(seconds / self._clock.scale, lambda: None if self._off.is_set() else act())
        timer.daemon = True
        self._timers.append(timer)
        timer.start()

    def power_off(self) -> None:
        """At once, from outside."""
        self._off.set()
        for timer in self._timers:
            timer.cancel()
        assert processes.kill_all(partial(processes.carrying, MARK, str(self.disk)))
        if self._namespaces is not None:
            self._namespaces.close()

    def _watch(self) -> None:
        while not self._off.wait(0.02):
            if (self.disk / "powered-off").exists():
                self.power_off()
                self._ended()
