"""Why a program failed, in its own words: the one line of its output that says it. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

REASON_MAX = 1000
"""Characters. Hardly any exception's line is longer; what is gets cut between two words."""
BRIEF_MAX = 120
"""Characters of a reason that stands in full elsewhere."""
DETAIL_MAX = 4096
"""Characters. No spotrun has written a longer detail; what follows is not looked at."""
LOOKED_AT = 20
"""Without a traceback, the reason is in one of the last lines."""
FOLLOWING_MAX = 200
"""After the traceback that ends a program come a long message and the last words of a logger, but no more lines."""

_COLOUR = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_RANK = re.compile(r"^\[rank\d+\]: ?")
_TRACEBACK = re.compile(r"(?:  \+ Exception Group |Original )?Traceback \(most recent call last\):")
_IN_GROUP = "  | "
_SURVIVED = ("Exception ignored in", "Exception in thread", "Error in atexit", "--- Logging error ---")
"""Python goes on after a traceback that follows one of these."""
_ONLY_TELLS = re.compile(r"(?:\S+\.)?ChildFailedError\b")
"""torchrun says by this that a process failed, and that process has said why."""
_FATAL = (re.compile(r"\s+what\(\):\s*(\S.*)"), re.compile(r"(.*\bAssertion .*failed.*)"), re.compile(r"(Fatal .*)"))
_LOST_A_PEER = re.compile(
    r"closed by peer|reset by peer|broken pipe|caused pair closure|connection was likely closed"
    r"|no route to host|network is unreachable"
    r"|client socket has failed|ncclRemoteError|ncclSystemError|NCCL communicator was aborted",
    re.IGNORECASE,
)
"""What gloo, the store of torch.distributed and NCCL say on the ranks that live on."""
_ON_MEMBER = re.compile(r"\(on (\d+\.\d+)[;)]")
_ERROR = re.compile(r"(?:\S+: )*(?:\S*(?i:error|fatal):|Fatal |E: )")


def reason_in(output: str, *, killed: bool = False) -> str:
    """
    The reason in the last lines of a failed program's output, as one line; empty if they have none.

    It is the exception that ended a Python program: its type, and the first line of its message. Of another program it
    is the last line that looks like an error, else the last line. A program that was `killed` by a signal says a reason
    only if it aborted itself; its last lines are otherwise about something else.
    """
    lines = [_readable(line) for line in output.split("\n")]
    lines = [line for line in lines if line.strip() and not line.startswith("[spotrun] ")]
    if killed:
        return shortened(_fatal(lines))
    return shortened(_exception(lines) or _last_words(lines))


def lost_a_peer(reason: str) -> bool:
    """Whether a rank failed because another one had gone: the reason of their end is then that one's."""
    return _LOST_A_PEER.search(reason) is not None


def member_in(detail: str) -> str:
    """The member of a gang on which it happened, 1.1; "" if the detail names none."""
    named = _ON_MEMBER.search(detail)
    return "" if named is None else named[1]


def in_one_line(detail: str) -> str:
    """
    The detail of an event as one line. Agents of earlier versions wrote a sentence and then the end of the output; an
    error with advice has a line for that.
    """
    told, _, advice = detail[:DETAIL_MAX].partition("\n  try: ")
    head, _, output = told.strip().partition("\n")
    reason = reason_in(output)
    return " ".join((head + (f": {reason}" if reason else "") + (f"; try: {advice}" if advice else "")).split())


def in_brief(detail: str, *known: str) -> str:
    """
    The first words of a detail that stands in full elsewhere, without its advice. What is `known` from the sentence
    around it is left out.
    """
    words = in_one_line(detail).partition("; try: ")[0]
    for each in known:
        words = words.replace(each, "it")
    return shortened(words, BRIEF_MAX)


def shortened(text: str, limit: int = REASON_MAX) -> str:
    """The text, or as many whole words of it as there is room for."""
    if len(text) <= limit:
        return text
    cut = text[: limit - 2]
    return f"{cut.rpartition(' ')[0] or cut} …"


def _readable(line: str) -> str:
    """Without colours, without the rank that wrote it, and of a progress bar what it showed last."""
    return _RANK.sub("", _COLOUR.sub("", line).rstrip().rpartition("\r")[2])


def _exception(lines: Sequence[str]) -> str:
    """What ended the program: the exception of its last traceback."""
    found = [*_exceptions(lines)]
    own = [text for text in found if not _ONLY_TELLS.match(text)]
    return (own or found or [""])[-1]


def _exceptions(lines: Sequence[str]) -> Iterator[str]:
    """The exception of each traceback, without those that the program survived."""
    for at, line in enumerate(lines):
        if not _TRACEBACK.match(line) or (at and lines[at - 1].startswith(_SURVIVED)):
            continue
        rest = [after.removeprefix(_IN_GROUP) if line.startswith("  +") else after for after in lines[at + 1 :]]
        end = next((index for index, after in enumerate(rest) if not after[0].isspace()), None)
        if end is not None and len(rest) - end <= FOLLOWING_MAX and not _TRACEBACK.match(rest[end]):
            more = rest[end + 1 : end + 2] if rest[end].endswith(":") else []
            yield " ".join([rest[end], *(text.strip() for text in more)])


def _fatal(lines: Sequence[str]) -> str:
    """The last word of a program that aborted, from the most precise to the least."""
    found = ([match[1] for line in lines if (match := pattern.match(line))] for pattern in _FATAL)
    return next((matches[-1].strip() for matches in found if matches), "")


def _last_words(lines: Sequence[str]) -> str:
    last = [line.strip() for line in lines[-LOOKED_AT:]]
    errors = [line for line in last if _ERROR.match(line)]
    return next(reversed(errors or last), "")
