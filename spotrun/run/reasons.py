"""Finds the line of a failed program's output that gives the reason for the failure. Has no side effects."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

REASON_MAX = 1000
"""Maximum length of a reason, in characters. A longer reason is cut between two words; this is rare."""
BRIEF_MAX = 120
"""Maximum length of a shortened reason, in characters. It is used where another text shows the full reason."""
DETAIL_MAX = 4096
"""
Maximum number of characters that are read of an event's `detail`, the text about a failure. spotrun itself never writes
a longer one.
"""
LOOKED_AT = 20
"""Number of lines, counted from the end, that are searched for a reason if there is no traceback."""
FOLLOWING_MAX = 200
"""
Maximum number of lines after a program's last traceback. If more lines follow, the program is assumed to have survived
that exception. The number leaves room for a long error message, and for the last lines of a logger.
"""

_COLOUR = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_RANK = re.compile(r"^\[rank\d+\]: ?")
_TRACEBACK = re.compile(r"(?:  \+ Exception Group |Original )?Traceback \(most recent call last\):")
_IN_GROUP = "  | "
_SURVIVED = ("Exception ignored in", "Exception in thread", "Error in atexit", "--- Logging error ---")
"""Texts that are printed right before the traceback of an exception that the program survived."""
_ONLY_TELLS = re.compile(r"(?:\S+\.)?ChildFailedError\b")
"""The error with which torchrun reports that a process failed. The reason is in the traceback of that process."""
_FATAL = (re.compile(r"\s+what\(\):\s*(\S.*)"), re.compile(r"(.*\bAssertion .*failed.*)"), re.compile(r"(Fatal .*)"))
_LOST_A_PEER = re.compile(
    r"closed by peer|reset by peer|broken pipe|caused pair closure|connection was likely closed"
    r"|no route to host|network is unreachable"
    r"|client socket has failed|ncclRemoteError|ncclSystemError|NCCL communicator was aborted",
    re.IGNORECASE,
)
"""Messages that gloo, NCCL and the store of torch.distributed print on the other ranks when a rank is lost."""
_ON_MEMBER = re.compile(r"\(on (\d+\.\d+)[;)]")
_ROOT_CAUSE = re.compile(r"Root Cause \(first observed failure\):\n\[\d+\]:\n(?:.*\n){3}\s+exitcode\s+: (-\d+) \(pid: ")
"""The end of torchrun's report, if a signal ended the rank that failed first."""
_ERROR = re.compile(r"(?:\S+: )*(?:\S*(?i:error|fatal):|Fatal |E: )")


def reason_in(output: str, *, killed: bool = False) -> str:
    """
    Return the reason for a program's failure as one line, taken from the last lines of its output. Return "" if they
    give no reason.

    For a Python program, the reason is the exception that ended the program: its type, and the first line of its
    message. For any other program, it is the last line that looks like an error, or else the last line.

    `killed` is True if a signal ended the program. After a signal from outside, a program cannot print the reason. A
    program that aborts itself prints the reason before its signal. So with `killed`, only the messages of such an abort
    count as a reason.
    """
    lines = [_readable(line) for line in output.split("\n")]
    lines = [line for line in lines if line.strip() and not line.startswith("[spotrun] ")]
    if killed:
        return shortened(_fatal(lines))
    return shortened(_exception(lines) or _last_words(lines))


def exit_code_in(output: str, exit_code: int) -> int:
    """
    Return the exit code of the process that failed first. If a signal ended a rank, that is minus the signal's number,
    which torchrun reports in its output; torchrun itself ends with exit code 1.
    """
    found = list(_ROOT_CAUSE.finditer(_COLOUR.sub("", output))) if exit_code == 1 else []
    return int(found[-1][1]) if found else exit_code


def lost_a_peer(reason: str) -> bool:
    """Return True if a rank failed because it lost another rank. The reason is then in the other rank's output."""
    return _LOST_A_PEER.search(reason) is not None


def member_in(detail: str) -> str:
    """Return the name of the gang's member that a detail mentions, such as 1.1; "" if it mentions none."""
    named = _ON_MEMBER.search(detail)
    return "" if named is None else named[1]


def in_one_line(detail: str) -> str:
    """
    Return an event's `detail` as one line.

    If the last line begins with `try:`, its advice is put at the end of the result, after a semicolon. In runs of
    earlier versions of spotrun, a failed program's output may follow the first line. It is replaced with the reason for
    the failure, if `reason_in` finds one, and otherwise dropped.
    """
    told, _, advice = detail[:DETAIL_MAX].partition("\n  try: ")
    head, _, output = told.strip().partition("\n")
    reason = reason_in(output)
    return " ".join((head + (f": {reason}" if reason else "") + (f"; try: {advice}" if advice else "")).split())


def in_brief(detail: str, *known: str) -> str:
    """
    Return the first words of an event's `detail`, without any advice. Use this only if the user can read the full
    detail elsewhere. `known` are phrases that the sentence around the result already contains. In the result, each of
    these phrases is replaced with the word "it".
    """
    words = in_one_line(detail).partition("; try: ")[0]
    for each in known:
        words = words.replace(each, "it")
    return shortened(words, BRIEF_MAX)


def shortened(text: str, limit: int = REASON_MAX) -> str:
    """Shorten the text to at most `limit` characters. Cut it between two words."""
    if len(text) <= limit:
        return text
    cut = text[: limit - 2]
    return f"{cut.rpartition(' ')[0] or cut} …"


def _readable(line: str) -> str:
    """
    Return a line without colours and without the prefix that names its rank. If the line is a progress bar that was
    redrawn repeatedly, return only its last state.
    """
    return _RANK.sub("", _COLOUR.sub("", line).rstrip().rpartition("\r")[2])


def _exception(lines: Sequence[str]) -> str:
    """Return the exception that ended the program, from the last traceback; "" if there is none."""
    found = [*_exceptions(lines)]
    own = [text for text in found if not _ONLY_TELLS.match(text)]
    return (own or found or [""])[-1]


def _exceptions(lines: Sequence[str]) -> Iterator[str]:
    """Yield the exception of each traceback, except those that the program survived."""
    for at, line in enumerate(lines):
        if not _TRACEBACK.match(line) or (at and lines[at - 1].startswith(_SURVIVED)):
            continue
        rest = [after.removeprefix(_IN_GROUP) if line.startswith("  +") else after for after in lines[at + 1 :]]
        end = next((index for index, after in enumerate(rest) if not after[0].isspace()), None)
        if end is not None and len(rest) - end <= FOLLOWING_MAX and not _TRACEBACK.match(rest[end]):
            more = rest[end + 1 : end + 2] if rest[end].endswith(":") else []
            yield " ".join([rest[end], *(text.strip() for text in more)])


def _fatal(lines: Sequence[str]) -> str:
    """
    Return the last message that a program printed when it aborted; "" if there is none. The patterns are tried from the
    most to the least precise. Only the first pattern that matches a line is used.
    """
    found = ([match[1] for line in lines if (match := pattern.match(line))] for pattern in _FATAL)
    return next((matches[-1].strip() for matches in found if matches), "")


def _last_words(lines: Sequence[str]) -> str:
    """
    Return the last line that looks like an error, or else the last line. Indented lines are details of the line before
    them, and there may be many: pip lists each allowed digest of a package.
    """
    last = [line.strip() for line in lines[-LOOKED_AT:]]
    heads = [line for line in lines if not line[0].isspace()][-LOOKED_AT:]
    errors = [line for line in (*heads, *last) if _ERROR.match(line)]
    return next(reversed(errors or last), "")
