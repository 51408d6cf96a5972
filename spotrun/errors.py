"""
Defines every failure that a user of spotrun can meet, with its exit code.

    SpotrunError                 1   the base of all below
    ├── SpecInvalid              2   the YAML or a flag is wrong; nothing was started
    │   ├── SeveralInvalid           several of the errors here, found at once
    │   └── ProbableMistake          only the cloud can say whether it is wrong: listed only along with other errors
    ├── RunNotFound              3   no run of that id, name or address
    ├── RunEnded                 4   the run failed, or was stopped, before it was complete
    ├── StoreError               5   the object store cannot be used
    │   ├── StoreUnavailable         a temporary fault: retry until a deadline
    │   │   ├── LoginExpired         the user has to log in again: report it, and wait
    │   │   └── WritesRefused        the store is full, over quota or read-only: tell the user at once, and wait
    │   ├── LoginMissing             this machine has no credentials that the store accepts: the user has to log in
    │   ├── ObjectMissing            no object of that name
    │   ├── RunCopied                two folders hold the same run
    │   ├── RunMisnamed              the name of a folder is not the name of the run in it
    │   ├── LedgerFlooded            another program appends too many entries, or too fast: end that program
    │   ├── LedgerVersionUnknown     another version of spotrun wrote the ledger: read it with that version
    │   └── LedgerDamaged        8   an entry is missing, moved or changed: appending is not allowed
    │       └── RunGone              the run's folder was moved or deleted while a runner took care of the run
    ├── CheckpointDamaged        6   no checkpoint can be read back intact
    ├── Unreckonable             1   each stored figure is valid, but no result can be computed from them
    ├── FiguresDiffer            1   a cost study does not reproduce the published figures that it quotes
    ├── NotIdentical             9   an interrupted training differs from the uninterrupted one
    ├── LimitExceeded           10   the condition in fail_if is true for the report
    ├── NightUnderWay           11   the last nightly run is still in progress: no run was started
    ├── BillUnexplained         12   the cloud charged an amount that the ledger cannot explain
    ├── NotInstalled            13   a package or a program is not installed
    └── CloudError               7   the cloud refused a request
        ├── InsufficientCapacity     this offering has no capacity   -> try another offering
        ├── QuotaExceeded            a quota of the account is full  -> another region may work
        ├── CloudUnavailable         throttled, 5xx, network         -> try again later
        │   ├── LoginNeeded              the user has to log in again    -> report it, and wait
        │   └── IdentityPending          nothing was requested yet: the role is missing or unknown -> wait
        ├── AccessDenied             credentials or permissions      -> the user has to fix it: report it
        ├── IdentityUnknown          the instance's role is unknown   -> wait, if the role is new
        └── LaunchTokenSpent         the token's instance is gone    -> that launch is over

Exit code 130 is an interrupt by Ctrl-C, 129 by SIGHUP, 143 by SIGTERM. Assertion errors are not listed: they are raised
only by bugs in spotrun.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from pathlib import Path

NO_ROOM = {
    errno.ENOSPC: "make room on its disk",
    errno.EDQUOT: "delete files on that disk, or have your quota raised",
    errno.EROFS: "make its file system writable again",
}
"""The error numbers of a file system that accepts no writes, with the fix for each."""


@contextmanager
def unless_no_room() -> Iterator[None]:
    """
    Ignore errors of writes to a file system that is full or read-only. Use this for writes on which nothing depends.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise


class SpotrunError(Exception):
    """
    A failure that is shown to the user. The message says what failed, with the relevant values; the hint says what to
    do next.

    `hint` is printed after "try: ", on a separate line. `key` is the path of the job's key that is at fault, if any.
    """

    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, hint: str | None = None, key: tuple[str | int, ...] = ()) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.key = key
        self.place: dict[str, object] = {}
        """
        The problem in the form that `found` returns, including the line and column of the key. {} until a caller has
        found the key in the file.
        """

    def __str__(self) -> str:
        return self.message if self.hint is None else f"{self.message}\n  try: {self.hint}"

    @property
    def one_line(self) -> str:
        return self.message if self.hint is None else f"{self.message}; try: {self.hint}"

    def problems_found(self) -> list[dict[str, object]]:
        """Return the problems one by one, each in the form that `found` returns."""
        return [{**found(self.message, self.hint), **self.place, "fix": self.hint}]


def found(problem: str, fix: str | None, *, file: str | None = None, key: str | None = None) -> dict[str, object]:
    """
    Return a problem in the form in which `--json` shows it. `key` is a key of the file or a flag; lines and columns
    count from 1.
    """
    return {"file": file, "line": None, "column": None, "key": key, "problem": problem, "fix": fix}


class SpecInvalid(SpotrunError):
    exit_code = 2


class RunNotFound(SpotrunError):
    exit_code = 3


class RunEnded(SpotrunError):
    exit_code = 4


class SeveralInvalid(SpecInvalid):
    """Several independent checks of a job or of flags failed. `errors` lists their errors."""

    def __init__(self, errors: Sequence[SpotrunError]) -> None:
        super().__init__(f"{len(errors)} problems\n" + "\n".join(f"  {error.one_line}" for error in errors))
        self.errors = errors

    def problems_found(self) -> list[dict[str, object]]:
        return [problem for error in self.errors for problem in error.problems_found()]


class ProbableMistake(SpecInvalid):
    """A value of a job that is probably wrong. Alone it is no reason to refuse the job: only the cloud can tell."""


class Unsound(Exception):
    """A check reads a value of a job that has a mistake of its own, which another check reports."""


class Mistakes:
    """
    Collects the errors of independent checks, so that the user gets all of them at once. Each check is a `with` block.
    If a check cannot use the cloud, or lacks a login or a package, `refuse` is called immediately, because the others
    would fail for the same reason. If a cloud's error has a key of the job, only the resource that the key names is at
    fault. An error that several checks report is kept once.
    """

    def __init__(self) -> None:
        self.errors: list[SpotrunError] = []

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> bool:
        if isinstance(error, SpotrunError):
            found = error.errors if isinstance(error, SeveralInvalid) else [error]
            told = {(each.message, key) for each in self.errors for key in (each.key, ())}
            self.errors += [each for each in found if (each.message, each.key) not in told]
        alone = isinstance(error, (LoginMissing, LoginExpired, NotInstalled))
        if alone or (isinstance(error, CloudError) and not error.key):
            self.refuse()
        return isinstance(error, (SpotrunError, Unsound))

    def refuse(self) -> None:
        """
        Raise the error that was collected, or a SeveralInvalid if there are several. Do nothing if there are none.
        """
        if len(self.errors) == 1:
            raise self.errors[0]
        if self.errors:
            raise SeveralInvalid(self.errors)


class StoreError(SpotrunError):
    exit_code = 5


class StoreUnavailable(StoreError):
    pass


class LoginExpired(StoreUnavailable):
    pass


class WritesRefused(StoreUnavailable):
    pass


class LoginMissing(StoreError):
    pass


class ObjectMissing(StoreError):
    pass


class RunCopied(StoreError):
    pass


class RunMisnamed(StoreError):
    pass


class LedgerFlooded(StoreError):
    pass


class LedgerVersionUnknown(StoreError):
    pass


class LedgerDamaged(StoreError):
    exit_code = 8


class RunGone(LedgerDamaged):
    """The folder of a run was moved or deleted. `asked` lists the instances that spotrun asked the cloud to end."""

    def __init__(self, uri: str, asked: Sequence[str]) -> None:
        left = f"asked to end {', '.join(asked)}" if asked else "the cloud lists no running instance of the run"
        super().__init__(
            f"the folder {uri} was moved or deleted, so nothing can be stored for the run; {left}",
            hint="delete anything that is now in its place, move the folder back, and `spotrun resume` the run",
        )


class CheckpointDamaged(SpotrunError):
    exit_code = 6


class Unreckonable(SpotrunError):
    def __init__(self, cause: ArithmeticError, run: str = "RUN") -> None:
        what = f"the run's stored figures have no computable result ({type(cause).__name__})"
        super().__init__(what, hint=f"see `spotrun events {run}`")


class NotIdentical(SpotrunError):
    exit_code = 9


class FiguresDiffer(SpotrunError):
    """The figures computed from a cost study differ from the published figures that it quotes."""

    def __init__(self, figures: Sequence[str]) -> None:
        several = f"{len(figures)} published figures are" if len(figures) > 1 else "a published figure is"
        listed = "\n".join(f"  {figure}" for figure in figures)
        hint = "correct the study's values, or write the reason for each difference under differs:"
        super().__init__(f"{several} not reproduced:\n{listed}", hint=hint)


class LimitExceeded(SpotrunError):
    exit_code = 10


class NightUnderWay(SpotrunError):
    exit_code = 11


class BillUnexplained(SpotrunError):
    exit_code = 12


class CloudError(SpotrunError):
    exit_code = 7


class InsufficientCapacity(CloudError):
    pass


class QuotaExceeded(CloudError):
    pass


class CloudUnavailable(CloudError):
    pass


class LoginNeeded(CloudUnavailable):
    pass


class IdentityPending(CloudUnavailable):
    pass


class AccessDenied(CloudError):
    pass


class IdentityUnknown(CloudError):
    pass


class LaunchTokenSpent(CloudError):
    pass


# -- packages that are not installed ---------------------------------------------------------------------------------


class NotInstalled(SpotrunError):
    """
    A package or a program is not installed.

    Stores, clouds and readers of secrets raise the subclasses StoreNotInstalled, CloudNotInstalled and
    SecretNotInstalled. Each of these is also a subclass of the usual error: StoreNotInstalled, for example, is a
    StoreError. So a caller that handles StoreError also handles a missing package of the store.
    """

    exit_code = 13


class StoreNotInstalled(NotInstalled, StoreError):
    pass


class CloudNotInstalled(NotInstalled, CloudError):
    pass


@contextmanager
def needs_extra(extra: str, what: str, error: type[NotInstalled] = NotInstalled) -> Iterator[None]:
    """
    Convert an ImportError in the enclosed block into `error`. The block imports a package that only the extra `extra`
    in pyproject.toml installs. `what` names the part of spotrun that needs the package.

    Raises:
        error: a package is not installed. The hint is the command that installs the extra.
    """
    try:
        yield
    except ModuleNotFoundError as missing:
        if missing.name is None or missing.name.partition(".")[0] == "spotrun":
            raise
        raise error(f"{what} needs the Python package {missing.name}", hint=command_for(extra)) from missing


def command_for(extra: str) -> str:
    """
    Return the command that adds an extra to this installation of spotrun. spotrun is not on a package index, so
    installing `spotrun[EXTRA]` by name would not work. So the command installs spotrun again from the same folder or
    URL. If neither is known, the command installs only the packages of the extra.
    """
    import shlex
    import sys
    from importlib.metadata import PackageNotFoundError
    from pathlib import Path

    try:
        packages, origin = packages_of(extra), _origin(extra)
    except PackageNotFoundError:
        return f"install spotrun with pip, and its extra {extra}"
    home = Path(sys.prefix)
    if (home / "pipx_metadata.json").exists():
        return shlex.join(["pipx", "inject", home.name, *packages])
    if origin and (home / "uv-receipt.toml").exists():
        return shlex.join(_with_uv_tool(home / "uv-receipt.toml", extra))
    return shlex.join([*installer(), *(origin or packages)])


def _with_uv_tool(receipt: Path, extra: str) -> list[str]:
    """
    Return the `uv tool install` command that adds an extra. The command repeats the other packages that were installed
    with spotrun, because uv installs a tool from scratch.
    """
    import tomllib

    told = tomllib.loads(receipt.read_text())["tool"]["requirements"]
    extras = {extra, *(name for each in told if each["name"] == "spotrun" for name in each.get("extras", ()))}
    others = [each["name"] + each.get("specifier", "") for each in told if each["name"] != "spotrun"]
    return ["uv", "tool", "install", *_origin(",".join(sorted(extras))), *(f"--with={each}" for each in others)]


def installer() -> list[str]:
    """
    Return the command that installs packages for this Python. The caller appends the packages' names. The command also
    works if this Python's virtual environment is not active.
    """
    import shutil
    import sys
    from importlib.util import find_spec
    from pathlib import Path

    if find_spec("pip") is not None:
        pip = shutil.which("pip")
        active = pip is not None and Path(pip).parent == Path(sys.executable).parent
        return ["pip", "install"] if active else [sys.executable, "-m", "pip", "install"]
    if shutil.which("uv") is not None:
        return ["uv", "pip", "install", "--python", sys.executable]
    return ["pip", "--python", sys.executable, "install"]


def _origin(extra: str) -> list[str]:
    """
    Return the arguments with which pip or uv installs an extra from the folder or URL from which spotrun itself was
    installed. Return [] if that folder is gone, or if spotrun came from a package index.

    See https://packaging.python.org/specifications/direct-url.
    """
    import json
    from importlib.metadata import distributions
    from pathlib import Path
    from urllib.parse import unquote, urlsplit

    texts = (each.read_text("direct_url.json") for each in distributions(name="spotrun"))
    found = json.loads(next(filter(None, texts), "{}"))
    url, inside, vcs = found.get("url", ""), found.get("subdirectory", ""), found.get("vcs_info")
    if url.startswith("file:") and vcs is not None:
        return []  # pip accepts no name with an extra before such an address
    if url.startswith("file:"):
        path = Path(unquote(urlsplit(url).path), inside)
        flags = ["-e"] if found.get("dir_info", {}).get("editable") else []
        return [*flags, f"{path}[{extra}]"] if path.exists() else []
    if vcs is not None:
        url = f"{vcs['vcs']}+{url}@{vcs['commit_id']}"
    return [f"spotrun[{extra}] @ {url}" + (f"#subdirectory={inside}" if inside else "")] if url else []


def packages_of(extra: str) -> list[str]:
    """Return the requirements of an extra, in pip's notation: ["boto3>=1.44", ...]."""
    from importlib.metadata import requires

    from packaging.requirements import Requirement

    found: list[str] = []
    for each in map(Requirement, requires("spotrun") or ()):
        if each.marker is None or not each.marker.evaluate({"extra": extra}):
            continue
        if each.name == "spotrun":  # the extra includes other extras of spotrun
            found += [package for other in sorted(each.extras) for package in packages_of(other)]
        else:
            found.append(f"{each.name}{each.specifier}")
    return found
