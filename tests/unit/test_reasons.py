"""The reason of a failure is the line in which the program itself says it."""

from __future__ import annotations

import signal
import subprocess
import traceback
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotrun.agent.decisions import exit_words
from spotrun.run.events import Cause
from spotrun.run.reasons import REASON_MAX, exit_code_in, in_one_line, lost_a_peer, member_in, reason_in

PROGRESS = "epoch 1:  10%|#         | 1/10\repoch 1:  90%|######### | 9/10\n"
LONG = "no such file: " + " ".join(f"part{number}" for number in range(100))


def raised(do: Callable[[], object]) -> str:
    """What Python prints of what `do` raises."""
    try:
        do()
    except Exception as error:  # noqa: BLE001  any of them is printed
        return "".join(traceback.format_exception(error))
    raise AssertionError("nothing was raised")


def fail(error: Exception) -> None:
    raise error


def chained(explicitly: bool) -> None:
    try:
        fail(KeyError("lr"))
    except KeyError as error:
        raise RuntimeError("the config has no lr") from (error if explicitly else None)


def while_handling() -> None:
    try:
        fail(KeyError("lr"))
    except KeyError:
        fail(RuntimeError("the config has no lr"))


BOOM = raised(lambda: fail(ValueError("boom")))
CUT = 'Traceback (most recent call last):\n  File "a.py"\n'
WORKER = "Caught ValueError in DataLoader worker process 0.\nOriginal "
LAUNCHER = CUT + "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n====\nt.py FAILED\n"
REASONS = {
    "one line": (BOOM, "ValueError: boom"),
    "a long line": (raised(lambda: fail(FileNotFoundError(LONG))), f"FileNotFoundError: {LONG}"),
    "no message": (raised(lambda: fail(AssertionError())), "AssertionError"),
    "several lines": (raised(lambda: fail(ValueError("boom\nat step 3\n  of 9"))), "ValueError: boom"),
    "a first line that announces": (raised(lambda: fail(ValueError("no keys:\n\ta.b"))), "ValueError: no keys: a.b"),
    "a cause": (raised(lambda: chained(True)), "RuntimeError: the config has no lr"),
    "a hidden cause": (raised(lambda: chained(False)), "RuntimeError: the config has no lr"),
    "a context": (raised(while_handling), "RuntimeError: the config has no lr"),
    "a group": (
        raised(lambda: fail(ExceptionGroup("two of them", [ValueError("a"), TypeError("b")]))),
        "ExceptionGroup: two of them (2 sub-exceptions)",
    ),
    "a program that failed": (
        raised(lambda: fail(subprocess.CalledProcessError(2, ["prepare", "--all"]))),
        "subprocess.CalledProcessError: Command '['prepare', '--all']' returned non-zero exit status 2.",
    ),
    "a script's syntax": (
        '  File "t.py", line 3\n    x = = 1\nSyntaxError: invalid syntax\n',
        "SyntaxError: invalid syntax",
    ),
    "a module's syntax": (raised(lambda: compile("f(", "m.py", "exec")), "SyntaxError: '(' was never closed"),
    "a loader's worker": (
        raised(lambda: fail(ValueError(WORKER + raised(lambda: fail(ValueError("sample 7")))))),
        "ValueError: sample 7",
    ),
    "an interpreter that ends noisily": (
        BOOM + "Exception ignored in: <function F.__del__>\n" + raised(lambda: fail(TypeError("late"))),
        "ValueError: boom",
    ),
    "details of an error": (
        "Collecting torch\nERROR: THESE PACKAGES DO NOT MATCH\n    torch==2 from x:\n" + 60 * "        or 3b37\n",
        "ERROR: THESE PACKAGES DO NOT MATCH",
    ),
    "a logger's last words": (BOOM + "wandb: run finished\nwandb: 3 files\n", "ValueError: boom"),
    "a failure that was survived": (BOOM + "step\n" * 500 + "no more data\n", "no more data"),
    "a traceback that was cut": (CUT + BOOM, "ValueError: boom"),
    "ranks": ("".join(f"[rank1]: {line}\n" for line in BOOM.splitlines()), "ValueError: boom"),
    "a launcher that only tells": (BOOM + LAUNCHER, "ValueError: boom"),
    "colours": (f"\x1b[31m{CUT}\x1b[0m\n\x1b[1;31mValueError\x1b[0m: boom\n", "ValueError: boom"),
    "sys.exit": ("no data in /data\n", "no data in /data"),
    "argparse": ("usage: t.py [-h]\nt.py: error: bad value: --lr\n", "t.py: error: bad value: --lr"),
    "pip": ("ERROR: No matching distribution\n\n[notice] A new release\n", "ERROR: No matching distribution"),
    "a shell": ("bash: line 1: trian: command not found\n[spotrun] a note\n", "bash: line 1: trian: command not found"),
    "a progress bar": (PROGRESS, "epoch 1:  90%|######### | 9/10"),
    "nothing": ("", ""),
    "only blank lines": ("\n \n", ""),
}


TORCHRUN = """
Failures:
[1]:
  time      : 2026-11-29_23:41:22
  host      : node
  rank      : 0 (local_rank: 0)
  exitcode  : -15 (pid: 36)  (SIGTERM)
  error_file: <N/A>
  traceback : Signal 15 (SIGTERM) received by PID 36
-------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-29_23:41:22
  host      : node
  rank      : 1 (local_rank: 1)
  exitcode  : {} (pid: 38)  (SIGKILL)
  error_file: <N/A>
  traceback : Signal 9 (SIGKILL) received by PID 38
=======================================================
"""


@pytest.mark.parametrize(
    ("output", "exit_code", "found"),
    [
        (CUT + LAUNCHER + TORCHRUN.format(-9), 1, -9),
        (BOOM + LAUNCHER + TORCHRUN.format(1), 1, 1),
        (TORCHRUN.format(-11) + BOOM + LAUNCHER + TORCHRUN.format(1), 2, 2),
        (BOOM, 1, 1),
    ],
)
def test_torchrun_reports_the_signal_that_ended_a_rank(output: str, exit_code: int, found: int) -> None:
    """As PyTorch 2.13 prints it."""
    assert exit_code_in(output, exit_code) == found


@pytest.mark.parametrize("case", REASONS)
def test_the_reason_is_the_line_that_says_it(case: str) -> None:
    output, reason = REASONS[case]
    assert reason_in(PROGRESS + output if output.strip() else output) == reason


@given(st.text(st.characters(exclude_categories=("C", "Z")), min_size=1, max_size=200), st.text(max_size=30))
def test_an_exceptions_own_line_is_found_whole(message: str, before: str) -> None:
    output = before + "\n" + raised(lambda: fail(ValueError(message.rstrip(":") + ".")))
    assert reason_in(output) == f"ValueError: {message.rstrip(':')}."


def test_long_reason_is_cut_between_words() -> None:
    found = reason_in(raised(lambda: fail(ValueError("word " * 1000))))
    assert found.endswith("word …")
    assert len(found) <= REASON_MAX


def test_end_of_a_trainer_is_reported_in_its_own_words() -> None:
    stale = raised(lambda: fail(ValueError("handled")))
    faults = "Fatal Python error: Segmentation fault\n\nCurrent thread 0x1 (most recent call first):\n  File t.py\n"
    thrown = "terminate called after throwing an instance of 'E'\n  what():  CUDA error\nFatal Python error: Aborted\n"
    told = {
        str(
            exit_words(1, Cause.USER_ERROR, raised(lambda: fail(ValueError("boom"))))
        ): "ValueError: boom (exit code 1)",
        str(exit_words(3, Cause.USER_ERROR, "")): "exit code 3",
        str(exit_words(0, Cause.USER_ERROR, stale)): "ended with exit code 0 before fit() was done",
        str(exit_words(-9, Cause.OUT_OF_MEMORY, stale)): "killed: out of memory, or by a person",
        str(exit_words(-9, Cause.HANG, stale)): "no sign of life; its stacks are in the log",
        str(exit_words(-signal.SIGTERM, Cause.USER_ERROR, stale)): "died of SIGTERM",
        str(exit_words(-signal.SIGSEGV, Cause.USER_ERROR, faults)): (
            "Fatal Python error: Segmentation fault (died of SIGSEGV)"
        ),
        str(exit_words(-signal.SIGABRT, Cause.USER_ERROR, thrown)): "CUDA error (died of SIGABRT)",
        str(exit_words(-(signal.SIGRTMIN + 1), Cause.USER_ERROR, "")): f"died of signal {signal.SIGRTMIN + 1}",
    }
    assert list(told) == list(told.values())
    failed = exit_words(1, Cause.USER_ERROR, raised(lambda: fail(ValueError("boom"))))
    assert failed.but("it failed twice at step 3") == "ValueError: boom (exit code 1; it failed twice at step 3)"


def test_reason_of_an_earlier_agent_is_one_line() -> None:
    cut = raised(lambda: fail(ValueError("boom\nmore")))[20:]
    assert in_one_line(f"exit code 1; it failed twice at step 3\nof 3\n{cut}").startswith(
        "exit code 1; it failed twice"
    )
    whole = raised(lambda: fail(ValueError("boom")))
    assert in_one_line(f"exit code 1\n{whole}") == "exit code 1: ValueError: boom"
    assert in_one_line("setup ended with exit code 4: no pip\n  try: correct setup") == (
        "setup ended with exit code 4: no pip; try: correct setup"
    )
    assert in_one_line("none left") == "none left"
    assert in_one_line("") == ""


@pytest.mark.parametrize(
    ("reason", "lost"),
    [
        ("RuntimeError: [/pytorch/gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.77.0.2]:31337", True),
        ("torch.distributed.DistNetworkError: failed to recv, got 0 bytes. Connection was likely closed.", True),
        ("torch.distributed.DistBackendError: NCCL error in: NCCLUtils.cpp:94, ncclRemoteError: A call failed", True),
        ("torch.distributed.DistBackendError: NCCL error: ncclUnhandledCudaError: Call to CUDA failed.", False),
        ("ValueError: Expected more than 1 value per channel when training", False),
        ("", False),
    ],
)
def test_a_rank_that_lost_another_one_is_known_by_what_its_library_says(reason: str, lost: bool):
    assert lost_a_peer(reason) == lost


@pytest.mark.parametrize(
    ("detail", "member"),
    [
        ("ValueError: 7 (exit code 1) (on 1.1; it failed twice at step 3)", "1.1"),
        ("setup ended with exit code 3: it printed nothing (on 17.0)", "17.0"),
        ("ValueError: on 2.5 GiB (exit code 1; it failed twice at step 3)", ""),
    ],
)
def test_the_member_on_which_a_gang_failed_is_read_from_the_detail(detail: str, member: str):
    assert member_in(detail) == member
