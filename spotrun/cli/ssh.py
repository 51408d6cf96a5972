"""`spotrun ssh`"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from spotrun.cli.options import RunOrNewest, StoreOption
from spotrun.errors import CloudError, NotInstalled, SpecInvalid
from spotrun.runs.flags import only_one
from spotrun.runs.members import MemberOption, living_instance_of

if TYPE_CHECKING:
    from spotrun.clouds.cloud import Forward, Shell
    from spotrun.instance import Instance
    from spotrun.runs.open_run import OpenRun

PORT_MAX = 65_535


def ssh(
    run: RunOrNewest = None,
    store: StoreOption = None,
    instance: Annotated[
        str | None, typer.Option("--instance", metavar="ID", help="Use this instance of the run.")
    ] = None,
    member: MemberOption = None,
    lead: Annotated[
        list[str] | None,
        typer.Option(
            "-L",
            metavar="HERE:THERE",
            help="Forward port HERE of your machine to port THERE of the instance, like 8889:8888.",
        ),
    ] = None,
    show: Annotated[bool, typer.Option("--print", help="Print the command instead of running it.")] = False,
) -> None:
    """
    Open a shell on the instance where a run trains.

    For a run on several nodes, this is the instance of rank 0, or the one that --member names.

    The connection uses Session Manager on AWS, and Identity-Aware Proxy on Google Cloud. Neither needs an open port.

    -L forwards a port of your machine to a port of the instance, for example to a notebook. It can be repeated. With
    -L, AWS only forwards the ports; Google Cloud also opens a shell.
    """
    from spotrun.runs.open_run import open_run

    only_one(instance=instance is not None, member=member is not None)
    forwards = forwards_of(lead or ())
    opened = open_run(run, store)
    if member is not None:
        instance = living_instance_of(opened, opened.ledger.refresh(), member)
    found = chosen(opened, instance)
    if forwards:
        shell = opened.cloud.forwarding(opened.spec, found, forwards)
    else:
        shell = opened.cloud.shell(opened.spec, found)
    if show:
        print(shell)
    else:
        become(shell)


def forwards_of(texts: Sequence[str]) -> list[Forward]:
    """
    Raises:
        SpecInvalid: one of `texts` is not a pair of ports, or two of them name the same port of this machine.
    """
    from spotrun.clouds.cloud import Forward

    found: list[Forward] = []
    for text in texts:
        ports = [int(part) for part in text.split(":") if re.fullmatch(r"\d{1,5}", part, re.ASCII)]
        if text.count(":") != 1 or len(ports) != 2 or not all(1 <= port <= PORT_MAX for port in ports):
            hint = "-L 8889:8888 forwards port 8889 of this machine to port 8888 of the instance"
            raise SpecInvalid(f"-L: {text!r} is not a pair of ports HERE:THERE, each from 1 to {PORT_MAX}", hint=hint)
        found.append(Forward(*ports))
        if sum(one.here == ports[0] for one in found) > 1:
            raise SpecInvalid(
                f"-L: port {ports[0]} of this machine is given twice", hint="give each -L a different port"
            )
    return found


def chosen(run: OpenRun, instance_id: str | None) -> Instance:
    """
    Return the instance on which the run trains. If the run is not training now, return its newest running instance. If
    `instance_id` is given, return that instance.

    Raises:
        CloudError: there is no such instance, or it has ended.
    """
    living = sorted(
        (each for each in run.driver.instances(run.created.uid, must_see=()) if each.alive),
        key=lambda each: each.launch,
    )
    attempt = run.ledger.refresh().current
    wanted = instance_id or (None if attempt is None else attempt.instance_id)
    found = [each for each in living if each.instance_id == wanted]
    if found or (living and instance_id is None):
        return (found or living)[-1]
    what = (
        f"{run.id} has no running instance"
        if instance_id is None
        else f"{instance_id} is not a running instance of {run.id}"
    )
    others = ", ".join(each.instance_id for each in living)
    ended = run.ledger.state.terminal
    if others:
        hint = f"running instances: {others}"
    elif ended is not None:
        what += f": it {ended.outcome if ended.outcome == 'failed' else f'is {ended.outcome}'}"
        hint = f"`spotrun logs {run.typed}` shows its output, and `spotrun fetch {run.typed}` fetches its files"
    else:
        hint = f"`spotrun why {run.typed}` shows what comes next"
    raise CloudError(what, hint=hint)


def become(shell: Shell) -> None:
    """
    Replace this process with the shell. This function does not return.

    Raises:
        NotInstalled: a program that the shell needs is not installed on this machine.
    """
    for program, advice in shell.needs.items():
        if shutil.which(program) is None:
            raise NotInstalled(f"a session needs {program}, which is not installed on this machine", hint=advice)
    if shell.advice:
        print(shell.advice, file=sys.stderr)
    if shell.folder is not None:
        os.chdir(shell.folder)
    sys.stdout.flush()
    os.execvp(shell.command[0], shell.command)  # noqa: S606  there is nothing for another shell to read
