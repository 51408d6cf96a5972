"""The port to Slurm's own programs: sbatch, squeue, scontrol, scancel. No shell is between them and us."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from spotrun.errors import CloudNotInstalled, CloudUnavailable

ANSWER_WITHIN_S = 60.0
"""A controller that is busy lets its clients wait, and they ask again by themselves."""
CARRIED = frozenset(
    {
        *("HOME", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "LOGNAME", "PATH", "PYTHONPATH", "SHELL", "SLURM_CONF", "USER"),
        *("AWS_CONFIG_FILE", "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_PROFILE"),
        *("AWS_REGION", "AWS_SHARED_CREDENTIALS_FILE", "GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_CLOUD_PROJECT"),
        *("CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE", "http_proxy", "https_proxy", "no_proxy"),
    }
)
"""
The variables that a job gets from who submits it. Slurm writes a job's environment to the controller's disk, so nothing
else goes there: no key and no token.
"""
SINCE_1970 = {"SLURM_TIME_FORMAT": "%s"}
"""Times are then seconds since 1970, whatever zone the machine is in: https://slurm.schedmd.com/squeue.html"""


class Answer(NamedTuple):
    """`code` is 0 if the program did what it was asked for."""

    code: int
    out: str
    err: str


class Commands(Protocol):
    """Runs one of Slurm's programs."""

    def run(self, words: Sequence[str]) -> Answer:
        """
        Raises:
            CloudNotInstalled: there is no such program on this machine.
            CloudUnavailable: it gave no answer in time. What it was asked for may have happened.
        """


class Programs:
    """Those on this machine's PATH."""

    def run(self, words: Sequence[str]) -> Answer:
        try:
            done = subprocess.run(
                list(words),
                env=environment(os.environ),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=ANSWER_WITHIN_S,
                check=False,
            )
        except FileNotFoundError as error:
            raise no_program(words[0]) from error
        except subprocess.TimeoutExpired as error:
            raise CloudUnavailable(f"{words[0]} gave no answer within {ANSWER_WITHIN_S:.0f} s") from error
        return Answer(done.returncode, done.stdout, done.stderr)


def require_submitting(commands: Commands) -> None:
    """
    What submits, lists and ends jobs is there. Some machines have only what looks at a cluster.

    Raises:
        CloudNotInstalled: one of them is not.
    """
    for program in ("sbatch", "squeue", "scancel"):
        commands.run([program, "--version"])


def environment(own: Mapping[str, str]) -> dict[str, str]:
    """Of our variables, what Slurm's programs get, and a job by them."""
    return {name: text for name, text in own.items() if name in CARRIED} | SINCE_1970


def no_program(name: str) -> CloudNotInstalled:
    return CloudNotInstalled(
        f"there is no {name} on this machine",
        hint="run spotrun where you run sbatch, on a login node of the cluster",
    )
