"""What is known of a run before it is launched: the market, what other runs have seen of it, and an earlier run."""

from __future__ import annotations

import ast
import os
import platform
import re
import shlex
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from decimal import Decimal
from difflib import get_close_matches
from pathlib import Path
from typing import NamedTuple, TypeVar

from msgspec.structs import replace

from spotrun import address
from spotrun.cli.runs import OpenRun, absent, attended, open_each
from spotrun.clouds.registry import cloud_of
from spotrun.container import hosts
from spotrun.container.engine import find_engine
from spotrun.container.logins import login_to
from spotrun.container.registry import (
    Credentials,
    ImageRefused,
    NotForThisUser,
    RegistryUnavailable,
    credentials_of,
    find,
    this_machine,
)
from spotrun.creation import benched_steps, clock_of, newborn, region_of
from spotrun.doctor.machine import LIGHTNINGS, is_installed
from spotrun.errors import (
    AccessDenied,
    CloudError,
    CloudUnavailable,
    NotInstalled,
    SpecInvalid,
    StoreError,
    StoreUnavailable,
    command_for,
    installer,
)
from spotrun.folder.final_status import read_final_status
from spotrun.folder.market_record import MarketRecord
from spotrun.folder.travelling import require_script, told, travelling
from spotrun.market.quotes import Quotes
from spotrun.market.wishes import may_be_asked, not_in_choice, not_listed, too_dear, unmet, wishes_of
from spotrun.market.world import World, suitable
from spotrun.offering import CapacityType, Offering
from spotrun.policy.least_budget import least_budget_usd
from spotrun.report.unattended import attended_to, left_alone
from spotrun.run.state import RunState
from spotrun.secrets.reference import SecretUnreadable
from spotrun.secrets.values import read_values, require_variables
from spotrun.spec.image import CREDENTIALS, Image
from spotrun.spec.model import ResourcesSpec, RunSpec
from spotrun.spec.own_machine import this_host
from spotrun.spec.spread_state import require_whole_state
from spotrun.store.opening import open_store
from spotrun.store.port import Store
from spotrun.units import Unreadable, format_duration, to_the_cent

Answer = TypeVar("Answer")
SAVED = re.compile("lightning|transformers|from spotrun import|import spotrun", re.IGNORECASE)
"""What a script names whose training has checkpoints, and can be compared by `verify-resume`."""
INSTANCES = "x86_64"
"""The processors of all that the clouds rent out to us."""
NOT_LOOKED_AT = "the image was not looked at"
_WRITE_DIGEST = "write the digest behind the tag: docker:REPO/NAME:TAG@sha256:…"
RUNS_MAX = 10
"""This many runs of the name are looked at, the newest first."""


def quotes_of(spec: RunSpec, offerings: Sequence[Offering]) -> Quotes:
    """
    What the cloud of `spec` charges for these, and has charged lately.

    Raises:
        CloudError: the cloud does not answer.
    """
    return cloud_of(spec).quotes(spec, sorted({found.instance_type for found in offerings}))


def first_look(spec: RunSpec, store: str | None = None) -> tuple[RunState, World]:
    """
    The first state of a run of `spec`, and what it would see of the market. Nothing is written anywhere.

    `store` has the runs, if that is not checkpoint.uri. If it cannot be read yet, less is known; the launch reports it.
    """
    clock, folder = clock_of(spec), store or spec.checkpoint.uri
    known = _asked(folder, lambda store: benched_steps(store, spec, clock)) or {}
    unborn = newborn(spec, clock, _asked(folder, region_of) or "", known)
    driver = cloud_of(spec).driver(spec, clock)
    offered = driver.offerings(must_see=())  # its own market, which begins with it
    if offered and not driver.remarks:
        _require_types(spec, offered)
    offerings = suitable(offered, spec)
    created = unborn.created
    observations = _asked(folder, lambda store: MarketRecord(store).read(created, offerings, created.clock_epoch))
    return unborn, World(offerings=tuple(offerings), instances=(), observations=observations or ())


def about_home(spec: RunSpec) -> str | None:
    """What an hour on the user's own machine costs, and why; None for a job without one."""
    name, home = spec.resources.home, spec.home
    if home is None:
        return None
    elsewhere = "" if home.host in (None, this_host()) else f" It is {home.host}: a runner on this machine rents."
    return f"{name} costs ${home.price_usd_per_hour} an hour: {home.price_in_words}.{elsewhere}"


def alone_at_home(spec: RunSpec) -> str | None:
    """What a forecast leaves out: the same work on the user's own machine. None for a job without one."""
    name, home, work = spec.resources.home, spec.home, spec.policy.expected_work
    if home is None:
        return None
    told = f"The forecast is of the cloud alone. {about_home(spec)}"
    if work is None:
        return told
    takes = work / float(home.speed)
    usd = to_the_cent(float(home.price_usd_per_hour) * (takes / timedelta(hours=1)))
    return f"{told} On {name} alone the work takes {format_duration(takes)} and costs {usd}."


def without_checkpoints(spec: RunSpec) -> str | None:
    """What to say of a job that may have no checkpoints: only trainings by a framework and named state have any."""
    if spec.train.state or _names(spec, SAVED):
        return None
    source = spec.train.source(Path(spec.workdir)) or spec.train.module
    what = "The job is a plain command" if spec.train.run else f"{source} names none of these"
    return (
        f"{what}: spotrun makes checkpoints of trainings by Lightning, by the Trainer of transformers or with a Loop, "
        "and of files that a job names as state. Unless it starts one or writes into $SPOTRUN_STATE_DIR, it begins "
        "anew after each interruption, and the time that it repeats is rework. To keep what it writes: "
        "train: {state: [out/]}."
    )


def _names(spec: RunSpec, words: re.Pattern[str]) -> bool:
    script = spec.train.source(Path(spec.workdir))
    return script is not None and bool(words.search((Path(spec.workdir) / script).read_text(errors="replace")))


def no_choice(spec: RunSpec, offerings: Sequence[Offering]) -> CloudError | SpecInvalid:
    """
    Why a run of `spec` may ask for none of these, which suit it: the key at fault, and what there is instead.

    A limit that all of them exceed is the job's mistake, as a budget is that is too small: no cloud was asked for one.
    """
    if offerings:
        found = too_dear(offerings, spec.resources)
        return SpecInvalid(found.message, hint=found.suggestion, key=found.at)
    hint = f"see `spotrun offers --cloud {spec.resources.cloud}`"
    reason = "no offering suits resources: nothing is offered there"
    return not_offered(spec) or CloudError(reason, hint=hint, key=("resources",))


def not_offered(spec: RunSpec) -> SpecInvalid | None:
    """What a job asks for and its cloud never rents out; None if there is no such thing."""
    offered = _offered_for(spec)
    found = _not_named(spec, offered) or unmet(offered, wishes_of(spec.resources))
    reason = "no offering suits resources: "
    return None if found is None else SpecInvalid(reason + found.message, hint=found.suggestion, key=found.at)


def _require_types(spec: RunSpec, offered: Sequence[Offering]) -> None:
    """
    Raises:
        SpecInvalid: one of the types that the job lists is not among what was offered, nor among all that there is.
    """
    if _not_named(spec, offered) is None:
        return
    cloud = cloud_of(spec)
    everything = cloud.driver(cloud.of_any_type(spec), clock_of(spec)).offerings(must_see=())
    if (found := _not_named(spec, everything)) is not None:
        raise SpecInvalid(found.message, hint=found.suggestion, key=found.at)


def _not_named(spec: RunSpec, offered: Sequence[Offering]) -> Unreadable | None:
    """One of several types or kinds, each of which the job names for itself."""
    return _not_listed(spec, offered) or not_in_choice(offered, spec.resources)


def _not_listed(spec: RunSpec, offered: Sequence[Offering]) -> Unreadable | None:
    """An entry of the types that the section of the job's cloud lists, unless `resources` names the one to look at."""
    cloud = cloud_of(spec)
    types = cloud.types_listed(spec) if spec.resources.instance_type is None else ()
    return not_listed(offered, (cloud.name, "instance_types"), types)


class Suitable(NamedTuple):
    """What a run may ask for, and the least budget with which it begins; None if no budget lets it."""

    offerings: Sequence[Offering]
    least_usd: Decimal | None


def suitable_for(spec: RunSpec, part_of: str = "") -> Suitable:
    """
    What a run of `spec` finds on the market now. `part_of` is as in RunCreated.

    Raises:
        SpecInvalid, CloudError: it may ask for nothing that is offered.
    """
    unborn, world = first_look(spec)
    if part_of:
        unborn = replace(unborn, created=replace(unborn.created, part_of=part_of))
    asked = [each for each in world.offerings if may_be_asked(each, spec.resources)]
    if not asked:
        raise no_choice(spec, world.offerings)
    return Suitable(asked, least_budget_usd(unborn, spec, world))


def require_job(spec: RunSpec) -> list[str]:
    """
    See whether a job has what several runs of it need beside their offerings; what to say of it.

    Raises:
        SpecInvalid, NotInstalled, SecretUnreadable, StoreError, CloudError: it has not.
    """
    here = cloud_of(spec).here
    notes = [check_script(spec, here=here), left_behind(spec), *unseen(spec)]
    if here:
        require_framework(spec)
    require_variables(spec.secret_references, os.environ)
    return [each for each in notes if each is not None]


def check_script(spec: RunSpec, *, here: bool) -> str | None:
    """
    What to say of a script that this Python cannot read. That of an instance elsewhere may be newer.

    Raises:
        SpecInvalid: the script would run `here`, with this Python; or it spreads its state over several instances.
    """
    require_whole_state(spec)
    script = spec.train.source(Path(spec.workdir))
    if script is None:
        return None
    try:
        with warnings.catch_warnings(action="ignore"):
            compile((Path(spec.workdir) / script).read_bytes(), script, "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        at = f", line {error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        reason = f"{script}{at}: {error.msg if isinstance(error, SyntaxError) else error}"
        if here:
            raise SpecInvalid(reason, hint=f"correct {script}", key=spec.train.key) from None
        return f"{reason}, says Python {platform.python_version()} of this machine"
    return None


def left_behind(spec: RunSpec, *, all_of_them: bool = False) -> str | None:
    """
    What to say of files of the work folder that do not travel: the first ones, or all of them.

    Raises:
        SpecInvalid: the script is one of them, or a file of rules cannot be read.
    """
    found = travelling(Path(spec.workdir), spec.checkpoint.uri)
    if (source := spec.train.source(Path(spec.workdir))) is not None:
        require_script(found, source)
    return told(found, sys.maxsize) if all_of_them else told(found)


def _offered_for(spec: RunSpec) -> Sequence[Offering]:
    """All that the cloud rents out; of other types and accelerators too, if it has none of those that `spec` names."""
    cloud, clock = cloud_of(spec), clock_of(spec)
    if offered := cloud.driver(spec, clock).offerings(must_see=()):
        return offered
    return cloud.driver(cloud.of_any_type(spec), clock).offerings(must_see=())


def with_baseline_price(spec: RunSpec) -> RunSpec:
    """
    The same, with the current on-demand price of its `report.baseline` if that names an instance type.

    Raises:
        SpecInvalid: the cloud does not rent it out there.
        CloudError: the cloud cannot be asked.
    """
    kind = spec.report.baseline_type
    if kind is None or spec.report.baseline_usd_per_hour is not None:
        return spec
    resources = spec.resources.model_copy(update={"instance_type": kind})
    elsewhere = spec.model_copy(update={"resources": resources})
    offered = cloud_of(elsewhere).driver(elsewhere, clock_of(spec)).offerings(must_see=())
    region = spec.resources.region
    here = [each for each in offered if region is None or region.casefold() == each.region.casefold()]
    on_demand = [each for each in here if each.capacity_type is CapacityType.ON_DEMAND]
    price = min((each.price_usd_per_hour for each in on_demand if each.instance_type == kind), default=None)
    if price is None:
        nearest = get_close_matches(kind, {each.instance_type for each in on_demand}, 1)
        raise SpecInvalid(
            f"report.baseline: {spec.resources.cloud} does not rent out {kind} there",
            hint=f"did you mean {nearest[0]}?" if nearest else "see `spotrun offers`, or write US dollars per hour",
            key=("report", "baseline"),
        )
    report = spec.report.model_copy(update={"baseline_usd_per_hour": price})
    return spec.model_copy(update={"report": report})


def with_image(spec: RunSpec, environment: Mapping[str, str]) -> tuple[RunSpec, list[str]]:
    """
    The same, with the digest of its container image; and what to say of that.

    An image that this very machine has, and trains in, need be in no registry.

    Raises:
        SpecInvalid: there is no such image, or not for this user, or not for the processors of instances.
        NotInstalled: this machine would run it, or does so while it is free, and has no engine for that.
        RegistryUnavailable: nobody knows which digest a tag has, or this machine, which would train in it, has neither
            the image nor its registry.
    """
    image, here = spec.image, cloud_of(spec).here
    if image is None:
        return spec, []
    if spec.resources.home is not None:
        find_engine()
    if here and (digest := _digest_here(image)):
        return spec.with_image(image.with_digest(digest)), []
    try:
        login, why_not = _login(spec, environment)
        if image.digest and why_not:
            return spec, [f"{NOT_LOOKED_AT}: {why_not}"]
        found = find(image, login, this_machine() if here else INSTANCES)
    except RegistryUnavailable as error:
        if here and (image.is_local or not image.digest):
            hint = f"build or pull it here, as {image.name}, or see whether the registry runs"
            raise RegistryUnavailable(f"this machine has no {image}, and {error.message}", hint=hint) from error
        if not image.digest:
            raise
        return spec, [f"{NOT_LOOKED_AT}: {error.one_line}"]
    except NotForThisUser as error:
        if here:
            raise
        if not _logs_in(spec, image):
            hint = f"instances on {spec.resources.cloud} have no identity there: name an image of another registry"
            raise ImageRefused(error.message, hint=hint, key=error.key) from error
        # instances have another identity than whoever launches them
        if not image.digest:
            hint = f"{error.hint}; or {_WRITE_DIGEST}"
            raise RegistryUnavailable(f"the digest of the image is not known: {error.message}", hint=hint) from error
        return spec, [f"{NOT_LOOKED_AT}: {error.message}"]
    size = "" if found.size_bytes is None else f", {found.size_bytes / 1e6:,.0f} MB to pull"
    return spec.with_image(image.with_digest(found.digest)), [f"image {image.name} is {found.digest}{size}"]


def with_image_here(spec: RunSpec, environment: Mapping[str, str]) -> RunSpec:
    """The same for a job that is tried on this machine, wherever it would train. Raises as `with_image`."""
    resources = ResourcesSpec(image_id=spec.resources.image_id)
    found, _ = with_image(spec.model_copy(update={"resources": resources}), environment)
    return spec if found.image is None else spec.with_image(found.image)


def _digest_here(image: Image) -> str:
    """
    Raises:
        NotInstalled: this machine runs no containers.
    """
    engine = find_engine()
    if image.digest:
        return image.digest if engine.has(image) else ""
    return engine.digest_of(image)


def _login(spec: RunSpec, environment: Mapping[str, str]) -> tuple[Credentials | None, str]:
    """
    The user at the registry; or why it cannot be read from here, where only instances may read it. A cloud's own login
    counts only if instances have one too.

    Raises:
        RegistryUnavailable: that, for a tag; or nobody knows.
        NotForThisUser: nobody is logged in here.
    """
    references = {name: place for name, place in spec.secret_references.items() if name in CREDENTIALS}
    image, here = spec.image, cloud_of(spec).here
    assert image is not None
    try:
        values = read_values(references, environment, rights_are_new=False)
    except (SecretUnreadable, StoreUnavailable) as error:
        if here:
            raise
        if not image.digest:
            what = f"the digest of the image is not known: {error.message}"
            raise RegistryUnavailable(what, hint=_WRITE_DIGEST) from error
        return None, error.message
    if here or _logs_in(spec, image):
        return login_to(image, spec.envs, values), ""
    return credentials_of(spec.envs, values), ""


def _logs_in(spec: RunSpec, image: Image) -> bool:
    """Whether instances have an identity of the cloud whose registry it is."""
    return spec.resources.cloud == hosts.cloud_of(image.host)


def require_framework(spec: RunSpec) -> None:
    """
    Check that a training on this machine finds PyTorch and Lightning, if its script imports them and no `setup` might
    bring them.

    Raises:
        NotInstalled: one of them is missing.
    """
    source = spec.train.source(Path(spec.workdir))
    if source is None or spec.setup is not None or "PYTHONPATH" in spec.envs or spec.image is not None:
        return
    script = Path(spec.workdir, source)
    for package in ("torch", *LIGHTNINGS):
        own = any(script.with_name(name).exists() for name in (package, f"{package}.py"))
        if package in _imports_of(script) and not own and not is_installed(package):
            unified = shlex.join([*installer(), "lightning"])
            raise NotInstalled(
                f"{source} imports {package}, which is not installed for {sys.executable}",
                hint=unified if package == "lightning" else command_for("lightning"),
            )


def _imports_of(script: Path) -> set[str]:
    """The packages that a script cannot begin without; none where it is no Python that we can read."""
    try:
        tree = ast.parse(script.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return set()
    modules = [each.module or "" for each in tree.body if isinstance(each, ast.ImportFrom) and each.level == 0]
    modules += [name.name for each in tree.body if isinstance(each, ast.Import) for name in each.names]
    return {module.partition(".")[0] for module in modules}


def unseen(spec: RunSpec) -> Iterator[str]:
    """
    Look, without changing anything, for what a launch needs beside its offerings: the bucket, and the identity that the
    job names. Told is what could not be looked at.

    Raises:
        StoreError, CloudError: it is not there, or is not for this user; with the key of the job.
    """
    try:
        _look_at_bucket(spec)
        cloud_of(spec).require_identity(spec)
    except (StoreUnavailable, CloudUnavailable, AccessDenied) as error:
        yield f"not looked at: {error.one_line}"


def _look_at_bucket(spec: RunSpec) -> None:
    """A folder that is not there is made by the launch."""
    uri = spec.checkpoint.uri
    if isinstance(address.parse(uri), address.BucketAddress):
        try:
            open_store(uri).folders()
        except StoreError as error:
            error.key = error.key or ("checkpoint", "uri")
            raise


def earlier_run(spec: RunSpec) -> RunState | None:
    """The newest run of that name that can be read, if there is one in its store."""
    return _asked(spec.checkpoint.uri, lambda store: next((run.ledger.refresh() for run in _runs(spec, store)), None))


def going_on(spec: RunSpec) -> list[str]:
    """What to say of each run of that name that trains or may be billed, the newest first."""

    def said(store: Store) -> list[str]:
        runs = [run for run in _runs(spec, store)[:RUNS_MAX] if not read_final_status(run.store, run.created.uid)]
        found = [(run, run.ledger.refresh(), attended(run)) for run in runs]
        return [
            attended_to(run.typed, state) if looked_after else left_alone(run.typed, state)
            for run, state, looked_after in found
            if state.terminal is None and (looked_after or not all(each.settled for each in state.launches.values()))
        ]

    return _asked(spec.checkpoint.uri, said) or []


def _runs(spec: RunSpec, store: Store) -> list[OpenRun]:
    """The runs of that name that can be read, the newest first."""
    runs, _ = open_each(store, [name for name in store.folders() if name.rpartition("-")[0] == spec.name])
    return sorted(runs, key=lambda run: run.created.clock_epoch, reverse=True)


def _asked(folder: str, question: Callable[[Store], Answer]) -> Answer | None:
    """The answer of a store; None if it cannot be read, because only the launch needs it."""
    if absent(folder):
        return None
    try:
        return question(open_store(folder))
    except StoreError:
        return None
