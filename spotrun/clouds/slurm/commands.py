"""Runs Slurm's programs: sbatch, squeue, scontrol and scancel, without a shell."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from spotrun.errors import CloudNotInstalled, CloudUnavailable

ANSWER_WITHIN_S = 60.0
"""
Maximum seconds for one program to finish. It is long because Slurm's programs themselves wait and retry while the
controller is busy.
"""
CARRIED = frozenset(
    {
        *("HOME", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "LOGNAME", "PATH", "PYTHONPATH", "SHELL", "SLURM_CONF", "USER"),
        *("AWS_CONFIG_FILE", "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_PROFILE"),
        *("AWS_REGION", "AWS_SHARED_CREDENTIALS_FILE", "GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_CLOUD_PROJECT"),
        *("CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE", "http_proxy", "https_proxy", "no_proxy"),
    }
)
"""
The environment variables that a job inherits from its submitter. Keys and tokens are not among them, because Slurm
writes a job's environment to the controller's disk.
"""
SINCE_1970 = {"SLURM_TIME_FORMAT": "%s"}
"""
Setting with which Slurm prints times as seconds since 1970, independent of the time zone:
https://slurm.schedmd.com/squeue.html
"""


class Answer(NamedTuple):
    """The result of running one program. `code` is 0 if it succeeded."""

    code: int
    out: str
    err: str


class Commands(Protocol):
    """Runs one of Slurm's programs."""

    def run(self, words: Sequence[str]) -> Answer:
        """
        Run the program and arguments in `words`.

        Raises:
            CloudNotInstalled: this machine does not have the program.
            CloudUnavailable: the program did not finish in time. It may still have done its work.
        """


class Programs:
    """Slurm's programs on this machine's PATH."""

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
            raise CloudUnavailable(f"{words[0]} did not answer within {ANSWER_WITHIN_S:.0f} s") from error
        return Answer(done.returncode, done.stdout, done.stderr)


def require_submitting(commands: Commands) -> None:
    """
    Check that this machine has the programs that submit, list and end jobs. Some machines have only the programs that
    show a cluster's state.

    Raises:
        CloudNotInstalled: a program is missing.
    """
    for program in ("sbatch", "squeue", "scancel"):
        commands.run([program, "--version"])


def environment(own: Mapping[str, str]) -> dict[str, str]:
    """
    Return the environment variables for Slurm's programs: those of this process that are in CARRIED. A job inherits
    them from the program that submits it.
    """
    return {name: text for name, text in own.items() if name in CARRIED} | SINCE_1970


def no_program(name: str) -> CloudNotInstalled:
    return CloudNotInstalled(
        f"there is no {name} on this machine",
        hint="run spotrun where you run sbatch, on a login node of the cluster",
    )
