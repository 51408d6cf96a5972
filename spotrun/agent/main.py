"""
Runs the agent of one instance, from the agent's start until the instance powers off.

    read the ledger -> end what an earlier agent left running -> set up -> (stand by) -> run the attempt

If the agent exits with code 0, for whatever reason, the instance powers off. Any other exit code is a crash: the
bootstrap restarts the agent, which then continues the attempt that it had begun.
"""

from __future__ import annotations

import os
import sys
import threading
import traceback

from spotrun.agent.agent_context import AgentContext, Assignment
from spotrun.agent.attempt import AttemptRun
from spotrun.agent.container import NoImageNow
from spotrun.agent.decisions import AgentAction, standing
from spotrun.agent.inbox import PowerOff
from spotrun.agent.machine import process_groups
from spotrun.agent.membership import Membership
from spotrun.agent.processes.trainer_process import TrainerProcess, start_trainer
from spotrun.agent.setup import NotInstalled, prepare
from spotrun.agent.standby import stand_by
from spotrun.errors import SpotrunError
from spotrun.folder import work_files
from spotrun.run.reasons import in_one_line

EARLY_VARIABLE = "SPOTRUN_EARLY_TRAINER"
"""Environment variable. If its value is `0`, a standby does not start its trainer before the takeover."""
CRASHED = 70


def main() -> int:
    """Run the agent, and return its exit code. Threads that still wait for a store do not delay the exit."""
    threading.excepthook = _crash_of_thread
    try:
        context = AgentContext.open(Assignment.from_environment())
        context.start()
        _serve(context)
    except BaseException:  # noqa: BLE001  nothing is above this: print the reason, and end
        traceback.print_exc()
        _exit(CRASHED)
    _exit(0)
    return 0


def _serve(context: AgentContext) -> None:
    try:
        _run(context)
    except PowerOff as reason:
        context.note(f"power off: {reason}")
    finally:
        context.close()


def _run(context: AgentContext) -> None:
    """
    Run the agent's stages from the clean-up to the attempt.

    Raises:
        PowerOff: the agent's work on this instance is done.
    """
    verdict = _standing(context)
    process_groups.end_left_over(context.assignment.trainer_mark, context.assignment.instance_id)
    failure = _set_up(context)
    if context.assignment.member is not None:
        Membership(context, failure).serve()
    spare: TrainerProcess | None = None
    image = None
    try:
        if verdict is not AgentAction.CONTINUE and _standing(context) is AgentAction.STAND_BY:
            if failure is not None:
                raise PowerOff(f"set-up failed, and another instance trains: {failure}")
            spare = _early_trainer(context)
            image = stand_by(context, warming=spare is not None)
        loop = AttemptRun(context, spare)
        try:
            if failure is not None:
                loop.fail_setup(failure)
            loop.run(image)
        finally:
            loop.close()
    finally:
        if spare is not None:
            spare.kill()


def _standing(context: AgentContext) -> AgentAction:
    if context.assignment.member is not None:
        return AgentAction.STAND_BY  # the next action of a gang's member is decided for each attempt
    verdict = standing(context.recorder.state, context.assignment.launch)
    if verdict is AgentAction.LEAVE:
        raise PowerOff("the run does not need this instance")
    return verdict


def _set_up(context: AgentContext) -> str | None:
    """
    Prepare the instance for training. If that fails because of the job itself, return the reason; otherwise return
    None.

    Raises:
        PowerOff: this instance cannot be prepared, but another instance may be able to train.
    """
    if context.secrets.failure is not None:
        return context.secrets.failure
    try:
        context.setup = prepare(context)
        work_files.remember(context.assignment.work, context.assignment.files_before)
    except (NotInstalled, NoImageNow) as error:
        raise PowerOff(in_one_line(str(error))) from error
    except SpotrunError as error:
        return in_one_line(str(error))
    return None


def _early_trainer(context: AgentContext) -> TrainerProcess | None:
    """
    Start a trainer while this agent is a standby. The trainer imports its modules, and then waits at the start of its
    training until the takeover.

    The trainer is started only if an earlier commit proves that the script uses spotrun's callback. A script without
    the callback would begin to train immediately instead of waiting for the takeover.
    """
    if not context.recorder.state.has_trained or os.environ.get(EARLY_VARIABLE) == "0":
        return None
    return start_trainer(context, 0)


def _crash_of_thread(hook: threading.ExceptHookArgs) -> None:
    if hook.exc_type is SystemExit:
        return
    traceback.print_exception(hook.exc_type, hook.exc_value, hook.exc_traceback)
    _exit(CRASHED)


def _exit(exit_code: int) -> None:
    """Exit without waiting for other threads: they may wait forever for a store that does not answer."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_code)
