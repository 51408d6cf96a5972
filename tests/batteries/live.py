"""
Battery: the first day on an account, exactly as its page has it: the section of docs/aws.md or docs/gcp.md.

    make live CLOUD=aws                    # on your account, within $2; it asks first
    make live CLOUD=aws ACCOUNT=test       # on the account that the tests have on this machine

Each command of the section is run as it stands there, and has to print what the page shows. Then the commands of the
next section remove what the day made. If the account was set up before, its set-up is neither made nor removed: these
are the commands of other programs than spotrun. At the end come the dollars of the ledger, and the calls if they can be
counted.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from tests.support.doc_pages import prints
from tests.support.repository import ROOT

USD_MAX = Decimal(2)
COMMAND_WITHIN_S = 45 * 60
DAY, END = "## The first day", "### Remove what the day made"
_IS_SET_UP = {
    "aws": "aws cloudformation describe-stacks --stack-name spotrun-account",
    "gcp": "gcloud storage buckets describe gs://spotrun-$(gcloud config get project)",
}
"""A command of each cloud that succeeds once infra/ was deployed."""
RUN = "plain-pytorch"


class Account(NamedTuple):
    """`environment` is what its user has. `calls` counts what the cloud was asked, where that is known."""

    environment: Mapping[str, str]
    is_set_up: bool
    calls: Callable[[], Counter[str]] = Counter


class Typed(NamedTuple):
    """A command of the page, and what the page shows of its output; "" if it shows nothing."""

    command: str
    shown: str

    @property
    def is_setup(self) -> bool:
        return not self.command.startswith("spotrun ")


def day_of(cloud: str) -> tuple[list[Typed], list[Typed]]:
    """The commands of the day, and those that remove what it made."""
    page = (ROOT / "docs" / f"{cloud}.md").read_text()
    day = page[page.index(DAY) : page.index(END)]
    end = page[page.index(END) :]
    return _typed(day), _typed(end)


def _typed(section: str) -> list[Typed]:
    block = re.search(r"^```console\n(.*?)^```$", section, re.M | re.S)
    assert block is not None, "the section has no block of commands"
    parts = re.split(r"^\$ ", block[1], flags=re.M)[1:]
    return [Typed(part.partition("\n")[0].partition("  #")[0], part.partition("\n")[2].strip()) for part in parts]


def live(cloud: str, account: Account) -> Decimal:
    """
    Have the day on an account, in a folder that has what a clone has. Returns its dollars.

    Raises:
        AssertionError: a command failed, printed something else than the page shows, or the day was too dear. What the
            day made was removed nevertheless, as far as that was possible.
    """
    day, end = ([typed for typed in part if not (account.is_set_up and typed.is_setup)] for part in day_of(cloud))
    usd, troubles = Decimal(0), []
    with tempfile.TemporaryDirectory() as folder:
        for name in ("examples", "infra"):
            shutil.copytree(ROOT / name, Path(folder, name))
        run = partial(_run, environment=account.environment, folder=folder)
        try:
            for typed in day:
                run(typed)
            told = run(Typed(f"spotrun report {RUN} --json", ""), is_shown=False)
            usd = Decimal(json.loads(told)["total"]["cost_usd"])
            assert 0 < usd <= USD_MAX, f"the day cost ${usd}"
        except (AssertionError, KeyboardInterrupt) as error:
            troubles.append(str(error) or "interrupted: what the day made is removed")
        for typed in end:
            try:
                run(typed)
            except AssertionError as error:
                troubles.append(str(error))
    assert not troubles, "\n".join(troubles)
    return usd


def _run(typed: Typed, environment: Mapping[str, str], folder: str, *, is_shown: bool = True) -> str:
    """Run a command, and show its output as it comes. Returns what it printed, without its errors and notes."""
    began, told = time.monotonic(), ""
    if is_shown:
        print(f"$ {typed.command}", flush=True)
    command = ["bash", "-c", typed.command]
    pipes: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=dict(environment), cwd=folder, **pipes) as child:
        assert child.stdout is not None
        timer = threading.Timer(COMMAND_WITHIN_S, child.kill)
        timer.start()
        for line in child.stdout:
            told += line
            if is_shown:
                print(line, end="", flush=True)
        timer.cancel()
    if is_shown:
        print(f"({time.monotonic() - began:.0f} s)", flush=True)
    assert child.returncode == 0, f"{typed.command} ended with {child.returncode}"
    assert not typed.shown or prints(typed.shown, told), f"the page shows something else:\n{typed.shown}"
    return told


@contextlib.contextmanager
def own_account(cloud: str) -> Iterator[Account]:
    """The account whose credentials the environment has."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "AWS_DEFAULT_REGION": "us-east-1", "AWS_REGION": "us-east-1"}
    environment.pop("SPOTRUN_STORE", None)
    asked = subprocess.run(["bash", "-c", _IS_SET_UP[cloud]], env=environment, capture_output=True, check=False)
    yield Account(environment, asked.returncode == 0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cloud", choices=("aws", "gcp"))
    parser.add_argument("--account", choices=("own", "test"), default="own")
    parser.add_argument("--yes", action="store_true", help="do not ask before your account is billed")
    asked = parser.parse_args()
    if asked.account == "own" and not asked.yes:
        print(f"This rents on your {asked.cloud} account, for at most ${USD_MAX}. Go on? [y/N] ", end="", flush=True)
        if sys.stdin.readline().strip().lower() != "y":
            sys.exit("nothing was done")
    if asked.account == "test":
        from tests.support.live_accounts import account_of_tests as account
    else:
        account = own_account
    with account(asked.cloud) as mine:
        usd = live(asked.cloud, mine)
        calls = mine.calls()
    print(f"the day cost ${usd:.4f} by its ledger")
    for name, count in calls.most_common():
        print(f"{count:7,} {name}")


if __name__ == "__main__":
    main()
