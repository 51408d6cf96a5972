"""
Defines RunSpec: a job with all of its values resolved. It is immutable.

`spotrun.spec.file.load_spec` makes a RunSpec from YAML and flags. `to_dict` converts it to JSON for the run's folder,
and `from_dict` converts that JSON to a RunSpec. Each setting has only one name here: `load_spec` replaces the
shorthands of a job file (`run:` at the top, `use_spot`). This module never touches the file system.

Editors and the reference of job files show the descriptions of the fields.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, time, timedelta
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal

from pydantic import (
    Field,
    StrictBool,
    StrictInt,
    ValidationError,
    model_validator,
)

from spotrun.address import DEFAULT_STORE, BucketAddress, parse
from spotrun.errors import SpecInvalid
from spotrun.instance import VOLUME_GIB
from spotrun.secrets.reference import Reference, resolved
from spotrun.spec import fields
from spotrun.spec.clouds import CloudRules, KnownCloud, find_cloud
from spotrun.spec.condition import FIGURE_NAMES
from spotrun.spec.image import SERVER, Image, image_of, refused_login
from spotrun.spec.kinds import AnyOf, Kind
from spotrun.spec.market_script import Action
from spotrun.spec.own_machine import FIGURES, HardwareSpec
from spotrun.spec.problems import problems_of
from spotrun.spec.strict import Model
from spotrun.spec.values import NEWS_KINDS, ON_DEMAND, STORED, Accelerators, is_instance_type, words_of, written_list
from spotrun.units import Steps, Unreadable, format_duration, shown

DEEP_LEARNING_IMAGE = "projects/deeplearning-platform-release/global/images/family/common-cu129-ubuntu-2404-nvidia-580"
DEEP_LEARNING_AMI = "/aws/service/deeplearning/ami/x86_64/oss-nvidia-driver-gpu-pytorch-2.11-ubuntu-24.04/latest/ami-id"


WAIT_MAX = timedelta(minutes=10)
"""
Maximum time from the ledger entry that announces a launch to the request for the launch (protocol 8). On Slurm, this
includes the waiting time in a queue, so no job can wait in a queue for longer than this.
"""
MAX_TIME_LEAST = timedelta(minutes=10)
"""Minimum `max_time` of a Slurm partition. An instance that lives for less time than this is not worth its start."""
STATE_DIR = "spotrun-state"
"""Name of the folder that spotrun makes in the work folder for a command's state, if the job names no folder."""
_EVERY = ("checkpoint", "every")
_VIRTUAL_RANKS = ("elastic", "virtual_ranks")


class TrainSpec(Model):
    """
    The program to run: a Python script or module with arguments, or a shell command; and the files that hold the
    program's state.
    """

    script: fields.ScriptPath | None = Field(
        default=None, description="The Python script, relative to workdir: train.py. It needs no change for spotrun."
    )
    module: fields.ModuleName | None = Field(
        default=None,
        description="A module to run instead of a script, as python -m does: package.train. It may be a file in "
        "workdir or an installed module.",
    )
    args: fields.Arguments = Field(
        default=(), description="The arguments of the script or module, as a list: [--epochs, 90]."
    )
    run: fields.Command | None = Field(default=None, description="A shell command, instead of script and args.")
    state: tuple[fields.StatePath, ...] = Field(
        default=(),
        max_length=100,
        description="For a command without spotrun's checkpoints: the folders and files that it needs to continue, "
        "relative to workdir: [out/, model.ckpt]. spotrun stores them whenever nothing writes to them, and restores "
        "them before the command starts on another instance. Files in $SPOTRUN_STATE_DIR are always stored in this "
        'way. "!out/*.log" excludes files.',
    )

    def _exactly_one(self) -> Iterator[Unreadable]:
        given = [name for name in ("script", "module", "run") if getattr(self, name) is not None]
        if len(given) > 1:
            yield Unreadable(f"has both {' and '.join(given)}", "keep one of them")
        if not given:
            yield Unreadable("nothing to run", "write train: {script: train.py} or run: COMMAND")

    def _only_scripts_have_arguments(self) -> Iterator[Unreadable]:
        if self.run is not None and self.args and self.script is None and self.module is None:
            yield Unreadable("belongs to script, not to run", "write the arguments into run", at=("args",))

    def _one_word_in_each_argument(self) -> Iterator[Unreadable]:
        """
        Refuse `--epochs 2` and `--name "my run"` in one item, unless the item before is an option, whose value it may
        be.
        """
        for index, arg in enumerate(self.args):
            pair = re.fullmatch(r"""--[A-Za-z][\w-]* +(\S+|"[^"]*"|'[^']*')""", arg, re.ASCII)
            if pair and not (index and re.fullmatch(r"--?[A-Za-z][\w-]*", self.args[index - 1], re.ASCII)):
                reason = f"{shown(arg)!r} is one word for the script, with a space in it"
                yield Unreadable(reason, f"write {written_list(words_of(arg))}", at=("args", index))

    checks = (_exactly_one, _only_scripts_have_arguments)
    checks_if_new = (_one_word_in_each_argument,)

    @property
    def state_dir(self) -> str:
        """
        The folder that $SPOTRUN_STATE_DIR names: the first folder in `state`, or a folder that spotrun makes if `state`
        names none.
        """
        named = (path for path in self.state if path.endswith("/") and not path.startswith("!"))
        return next((path.rstrip("/") for path in named), STATE_DIR)

    @property
    def no_state(self) -> tuple[str, ...]:
        """Patterns for files that are not saved as state, although they are in a folder that `state` names."""
        return tuple(path.removeprefix("!") for path in self.state if path.startswith("!"))

    @property
    def state_paths(self) -> tuple[str, ...]:
        """The paths of all state, including $SPOTRUN_STATE_DIR. A path inside another of these paths is left out."""
        paths = sorted({path.rstrip("/") for path in (*self.state, self.state_dir) if not path.startswith("!")})
        return tuple(path for path in paths if not any(path.startswith(f"{other}/") for other in paths))

    @property
    def key(self) -> tuple[str, str]:
        """The key of the job that names the program, such as train.script."""
        return "train", next(name for name in ("script", "module", "run") if getattr(self, name) is not None)

    @property
    def title(self) -> str:
        """The program's name for use in messages: `train.py`."""
        return self.script or self.module or "command"

    def source(self, workdir: Path) -> str | None:
        """Return the file in `workdir` that Python runs; None for a command or an installed module."""
        if self.module is None:
            return self.script
        return next((path for path in files_of_module(self.module) if (workdir / path).is_file()), None)


def files_of_module(name: str) -> tuple[str, str]:
    """Return the paths at which `python -m` looks for the module `name`."""
    path = name.replace(".", "/")
    return f"{path}.py", f"{path}/__main__.py"


class ResourcesSpec(Model):
    """The cloud to train on, and the instances that spotrun is allowed to rent."""

    cloud: KnownCloud = Field(
        default="local", description="The cloud. `local` trains in processes on this machine, at simulated prices."
    )
    home: fields.CloudName | None = Field(
        default=None,
        description="A machine of your own, by its name under `hardware`. It trains whenever it is free and the "
        "deadline allows that; otherwise an instance in the cloud trains. You can also write {any_of: [{cloud: local, "
        "hardware: box}, {cloud: aws}]} below resources.",
    )
    accelerators: fields.Kinds | None = Field(
        default=None,
        description="Accelerators per instance, by name and number: V100:1, {V100: 1} or V100. With {any_of: [T4:1, "
        "A10G:1, c5.xlarge]}, spotrun chooses the kind that costs least per sample. You can also write such a choice "
        "as [T4:1, A10G:1] or {T4: 1, A10G: 1}. The choice may contain instance types, with or without accelerators.",
    )
    instance_type: fields.CloudName | None = Field(default=None, description="Rent only this instance type: g5.xlarge.")
    region: fields.CloudName | None = Field(default=None, description="Rent only in this region: us-east-1.")
    zone: fields.CloudName | None = Field(default=None, description="Rent only in this zone: us-east-1a.")
    cpus: fields.AmountField | None = Field(
        default=None, description="CPUs per instance: 4 is exactly four, 4+ is four or more."
    )
    memory: fields.AmountField | None = Field(
        default=None, description="Memory per instance in GB: 16 is exactly 16 GB, 16+ is 16 GB or more."
    )
    image_id: fields.ContainerImage | None = Field(
        default=None,
        description="The container image in which setup and training run: docker:REPO/NAME:TAG, or "
        "docker:REPO/NAME@sha256:…. The launch looks up the digest of a tag, and the whole run uses this digest. For "
        "a private registry write envs: {SKYPILOT_DOCKER_USERNAME: NAME} and secrets: [SKYPILOT_DOCKER_PASSWORD]. "
        "Default: no container.",
    )
    spot_policy: fields.SpotPolicy = Field(
        default="auto",
        description="`spot` rents only spot, and `on-demand` only on-demand. `auto` rents spot where possible, and "
        "on-demand where needed.",
    )
    max_price: fields.Usd | None = Field(
        default=None, description="The maximum price of an instance, in US dollars per hour: 2.50."
    )

    @property
    def is_choice(self) -> bool:
        """True if the job allows several kinds of instances."""
        return len(self.kinds) > 1

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """The kinds that `accelerators` names, in its order; () if any kind will do."""
        if isinstance(self.accelerators, AnyOf):
            return self.accelerators.kinds
        return () if self.accelerators is None else (self.accelerators,)


class KeepBestSpec(Model):
    """The checkpoints to keep because they have the best values of a metric."""

    metric: fields.Text = Field(description="The name of a metric that the script logs: val_loss.")
    mode: fields.Extremum = Field(
        default="min", description="Whether the smallest or the largest value of the metric is the best."
    )
    count: StrictInt = Field(default=1, ge=1, le=10_000, description="How many of the best checkpoints to keep.")


class CheckpointFilesSpec(Model):
    """The files of the work folder that belong to each checkpoint. A resumed training finds exactly these files."""

    max_gb: fields.Gigabytes = Field(
        default=20.0,
        description="How many GB of files to store, the small files first. The log names the files that were left out.",
    )
    exclude: tuple[fields.FilePattern, ...] = Field(
        default=(),
        max_length=100,
        description='Patterns of files that belong to no checkpoint, read as in .gitignore: [data/, "*.mmap"]. When a '
        "training resumes on the same instance, these files stay as they are. On another instance they are missing.",
    )


class CheckpointSpec(Model):
    """The store of checkpoints, how often to make a checkpoint, and how many checkpoints to keep."""

    uri: fields.StoreAddress = Field(
        default=DEFAULT_STORE,
        description="The store, which holds the whole run folder: a local folder, s3://bucket/prefix or "
        "gs://bucket/prefix.",
    )
    every: fields.CheckpointInterval = Field(
        default="auto",
        description='The interval between checkpoints: 10m, "500 steps", or `auto`. With `auto`, spotrun calculates '
        "the interval that wastes the least time (Young 1974). Additional checkpoints are made soon after training "
        "begins on an instance, at the end of each epoch, before an instance ends, and at the end of the training. "
        "Except for the last one, checkpoints are at least 30s apart.",
    )
    keep_last: StrictInt = Field(default=3, ge=1, le=10_000, description="How many of the newest checkpoints to keep.")
    keep_best: KeepBestSpec | None = Field(
        default=None,
        description="Also keep the checkpoints with the best values of a metric. The value of a checkpoint is the last "
        "one that the script logged before it.",
    )
    keep_every: fields.StepCount | None = Field(
        default=None,
        description='Also keep the first checkpoint of each interval of this many steps: "1000 steps".',
    )
    files: CheckpointFilesSpec = Field(
        default=CheckpointFilesSpec(),
        description="Which of the files that the script has written belong to each checkpoint.",
    )
    exact: fields.Exactness = Field(
        default="tell",
        description="What to do when training changes an object that no checkpoint can hold, such as a socket "
        "or an environment of a library. `tell` names the object in the log, in `status`, in `why` "
        "and in the report. `off` does so too, and also trains a loop of your own whose local variables a resume "
        "would not restore; the others refuse such a loop before its first step. `require` ends the run. "
        "`bits` ends the run too, and has a second effect if "
        "`resources.accelerators` is a choice: the run trains only on the kind of instance that made its first "
        "checkpoint. On another kind, samples and their order would be the same, but bits might differ.",
    )

    @property
    def place(self) -> BucketAddress | str:
        """The address of the store: a prefix of a bucket, or the path of a local folder."""
        return parse(self.uri)

    @property
    def in_bucket(self) -> bool:
        return isinstance(self.place, BucketAddress)


class OutputsSpec(Model):
    """The files of the script that spotrun stores, for `spotrun fetch`. outputs: [...] is short for {files: [...]}."""

    files: tuple[fields.FilePattern, ...] = Field(
        default=("**",),
        max_length=100,
        description='Patterns of files, relative to the work folder: [best.ckpt, "logs/*.csv", "!data/"]. They are '
        "read as in .gitignore, and ! excludes files. Only files that the script wrote or changed are stored. "
        "Default: all these files, except caches and environments. [] stores nothing.",
    )
    max_gb: fields.Gigabytes = Field(
        default=10.0,
        description="How many GB of files to store, the small files first. `spotrun fetch` names the files that were "
        "left out.",
    )


class DataSpec(Model):
    """
    The data that a training reads in addition to its checkpoint. It is assumed to be in the region of checkpoint.uri.
    """

    gb: fields.Gigabytes = Field(
        default=0.0,
        description="How many GB each instance reads when it starts. If the instance is outside the bucket's region, "
        "you pay for this traffic, so spotrun counts its cost when it chooses a region.",
    )


class PolicySpec(Model):
    """Rules for leaving spot and returning to it, and for when a silent trainer counts as hung."""

    deadline: fields.Deadline | None = Field(
        default=None,
        description="When the run must be done. 8h counts from the launch. 07:00 (the next time that it is 07:00) and "
        "2026-12-01T07:00 are in the time zone of the launching machine; 2026-12-01T07:00Z is in UTC. spotrun meets "
        "the deadline at the lowest cost, as `strategy` defines.",
    )
    strategy: fields.StrategyName = Field(
        default="ours",
        description="How spotrun meets a deadline: ours uses spot while the deadline leaves time for it, "
        "on_demand_only never uses spot, and spot_only always uses spot, even if the run is late.",
    )
    expected_work: fields.PositiveDuration | None = Field(
        default=None,
        description="How long the training takes without any interruption, if you know: 4h. If it is not given, a run "
        "with a deadline trains on demand until spotrun has measured its steps.",
    )
    on_demand_after: fields.Duration = Field(
        default=timedelta(minutes=10),
        description="With spot_policy auto and no deadline: change to on-demand after this time without spot.",
    )
    return_to_spot: StrictBool = Field(default=True, description="Go back to spot when it is available again.")
    return_cooldown: fields.Duration = Field(
        default=timedelta(minutes=10),
        description="How long a run on demand waits before it requests spot. The time counts from when training on "
        "demand began, and again from each refusal of spot.",
    )
    hang_after: fields.PositiveDuration = Field(
        default=timedelta(minutes=5),
        description="How long a trainer may make no progress before it counts as hung. If ten steps take longer, the "
        "limit is the time of ten steps; it is never less than 30 s of system time. Before the first step, after fit() "
        "and for a command, the limit is three times as long, and output and computing also count as progress.",
    )


class BudgetSpec(Model):
    """Limits on the cost of the run."""

    max_usd: fields.Usd | None = Field(
        default=None, description="Stop before the run costs more than this many US dollars: 40."
    )
    warn_at: fields.Share | None = Field(
        default=None, description="Warn once when this share of max_usd is spent. Default: 0.8."
    )

    def _a_warning_needs_a_budget(self) -> Iterator[Unreadable]:
        if self.warn_at is not None and self.max_usd is None:
            yield Unreadable("works only with max_usd", "add budget.max_usd, or remove warn_at", at=("warn_at",))

    checks = (_a_warning_needs_a_budget,)


class ReportSpec(Model):
    """Rules for judging a finished run."""

    fail_if: fields.FailureCondition | None = Field(
        default=None,
        description="launch and resume end with exit code 10 if this condition holds for the finished run. Figures: "
        f"{', '.join(FIGURE_NAMES)}. Operators: >, >=, <, <=, ==, !=, and, or.",
    )
    baseline: fields.Baseline = Field(
        default=ON_DEMAND,
        description="What savings are measured against: the on-demand price of the instance type that trained, "
        "another instance type (g5.xlarge), or a machine at this many US dollars per hour (1.20).",
    )
    baseline_usd_per_hour: fields.Usd | None = Field(
        default=None,
        description="The on-demand price of the instance type in `baseline`, in US dollars per hour. `launch` sets it.",
    )

    def _a_price_goes_with_a_type(self) -> Iterator[Unreadable]:
        if self.baseline_usd_per_hour is not None and self.baseline_type is None:
            advice = "name the instance type in baseline, or write the dollars there and remove this key"
            yield Unreadable(
                "works only with a baseline that is an instance type", advice, at=("baseline_usd_per_hour",)
            )

    checks_if_new = (_a_price_goes_with_a_type,)

    @property
    def baseline_type(self) -> str | None:
        """
        The instance type that savings are measured against; None if savings are measured against the type that trained.
        """
        return self.baseline if is_instance_type(self.baseline) else None


class NotifySpec(Model):
    """One receiver of notifications about the run. A slow or failing receiver neither stops nor slows the run."""

    webhook: fields.WebhookVariable | None = Field(
        default=None,
        description="POST JSON to the address in this environment variable: $SLACK_WEBHOOK. Slack shows the JSON's "
        "`text`.",
    )
    command: fields.NotifyCommand | None = Field(
        default=None,
        description="Instead of webhook: run this shell command on the runner's machine, with the JSON on its standard "
        "input.",
    )
    on: tuple[fields.NewsKind, ...] = Field(
        default=NEWS_KINDS, description="Which notifications to send. Default: all."
    )

    def _exactly_one(self) -> Iterator[Unreadable]:
        if (self.webhook is None) == (self.command is None):
            yield Unreadable("needs one of webhook and command", "write webhook: $SLACK_WEBHOOK or command: COMMAND")

    checks = (_exactly_one,)

    @property
    def variable(self) -> str | None:
        """The environment variable that holds the address of the webhook."""
        return None if self.webhook is None else self.webhook.removeprefix("$")


class RetrySpec(Model):
    """Retries after a failure of the script itself. spotrun always retries interruptions and missing capacity."""

    on_events: tuple[fields.RetryEvent, ...] = Field(
        default=("error",),
        description="After which events to start the script again. error: the script ended with an error.",
    )
    max_restarts: StrictInt = Field(
        default=2, ge=0, le=10_000, description="How often to start the script again before the run fails."
    )


class ElasticSpec(Model):
    """
    A training whose number of processes may change, for scripts with loop.micro_batches. The result has the same bits
    with any number of processes.
    """

    min_nodes: StrictInt = Field(
        default=1,
        ge=1,
        le=16,
        description="How many of the num_nodes instances are enough to train, after a loss.",
    )
    virtual_ranks: StrictInt | None = Field(
        default=None,
        ge=1,
        le=1024,
        description="Into how many parts each batch is divided. The processes share them, so there can be at most this "
        "many processes. The number decides over the bits of the result, and a run keeps it: write a multiple of the "
        "processes that usually train. Default: the GPUs of all instances.",
    )
    promise: Literal["bits"] = Field(
        default="bits", description="What is the same with any number of processes: all bits of the result."
    )


class ScriptStep(Model):
    """One step of a scripted market. Steps are taken in order, each of them once."""

    when: fields.MarketTrigger = Field(
        description='"epoch N at P%" (epochs count from 1), "upload at P%" (of a checkpoint\'s bytes), or '
        '"after DURATION" (in run time, since the previous step).'
    )
    then: fields.MarketAction = Field(
        description="interrupt: the cloud takes the spot instance. no-spot: the cloud takes the spot instance, and "
        "offers no spot anywhere until a later step spot-returns. rebalance: the cloud only recommends leaving the "
        "instance. cut-off: a member of a gang can no longer reach the other members."
    )
    members: StrictInt | None = Field(
        default=None, ge=1, description="How many members of a gang the step affects at once. Default: 1."
    )
    notice: fields.NoticeTime = Field(
        default=timedelta(seconds=120),
        description="The time between the cloud's warning and the end of the instance: 120s, or none for no warning.",
    )

    @model_validator(mode="before")
    @classmethod
    def _what_takes_nothing_has_no_notice(cls, data: Any) -> Any:
        if not isinstance(data, dict) or data.get("then") not in ("spot-returns", "rebalance", "cut-off"):
            return data
        if data.get("notice", "none") != "none":
            raise Unreadable(
                f"{data['then']} takes no instance, so it cannot have a notice", "remove it", at=("notice",)
            )
        return {**data, "notice": "none"}


class LocalMarketSpec(Model):
    """The local cloud: the speed of its clock, its boot time, and its market."""

    time_scale: fields.TimeScale = Field(
        default=1.0,
        description="Seconds of run time per second of system time: at 60, a minute of the market takes a second.",
    )
    seed: StrictInt = Field(default=0, ge=0, le=2**63 - 1, description="The seed of a generated market.")
    boot: fields.Duration = Field(
        default=timedelta(seconds=40), description="Run time from a launch to a booted instance."
    )
    market: fields.MarketKind = Field(
        default="calm",
        description="calm: fixed prices, and only the script interrupts. generated: prices and interruptions come "
        "from the seed.",
    )
    recommended: fields.Share | None = Field(
        default=None,
        description="In a generated market, the share of interruptions before which the cloud sends a rebalance "
        "recommendation, up to 10 min before the notice. The same number of other recommendations are false alarms. "
        "This is an assumption: AWS publishes no figures.",
    )
    capacity: StrictInt | None = Field(
        default=None,
        ge=1,
        description="How many spot instances of each type this run can have in each zone. Default: any number.",
    )
    script: tuple[ScriptStep, ...] = Field(default=(), description="What happens to the market, step by step.")

    def _only_a_generated_market_recommends(self) -> Iterator[Unreadable]:
        if self.recommended is not None and self.market != "generated":
            yield Unreadable(
                "works only with market: generated",
                "write local.market: generated, or remove recommended",
                at=("recommended",),
            )

    def _only_what_meets_one_meets_members(self) -> Iterator[Unreadable]:
        for index, step in enumerate(self.script):
            if step.members is not None and not step.then.meets_one:
                yield Unreadable(f"{step.then} affects all members", "remove it", at=("script", index, "members"))

    def _spot_returns_after_it_was_gone(self) -> Iterator[Unreadable]:
        gone = False
        for index, step in enumerate(self.script):
            if step.then is Action.SPOT_RETURNS and not gone:
                yield Unreadable("spot is not gone", "add a step no-spot before it", at=("script", index, "then"))
            gone = step.then is Action.NO_SPOT or (gone and step.then is not Action.SPOT_RETURNS)

    checks = (_only_what_meets_one_meets_members, _spot_returns_after_it_was_gone)
    checks_if_new = (_only_a_generated_market_recommends,)


class AwsSpec(Model):
    """Amazon EC2: where to look for capacity, and how to set up instances. Only used with `cloud: aws`."""

    regions: tuple[fields.CloudName, ...] = Field(
        default=("us-east-1",),
        max_length=30,
        description="The regions to look in, unless `resources` name a region or a zone. Without this key, a new run "
        "looks in the region of your AWS settings, if they name one.",
    )
    instance_types: tuple[fields.CloudName, ...] = Field(
        default=(),
        max_length=100,
        description="Rent only these types: [g5.xlarge]. Default: every x86_64 type that suits `resources`.",
    )
    image_id: fields.CloudName | None = Field(
        default=None, description="The machine image: ami-… Default: the image that image_parameter names."
    )
    image_parameter: fields.ImageParameter = Field(
        default=DEEP_LEARNING_AMI, description="The SSM parameter that names the newest image."
    )
    volume_gb: StrictInt = Field(default=VOLUME_GIB, ge=8, le=16_000, description="The size of the root volume in GiB.")
    advisor: str | None = Field(
        default=None,
        description="A URL or file of Amazon's spot-advisor-data.json. spotrun reads it once, when it creates the run. "
        "Until the run has measurements of its own, spotrun expects types that are rarely interrupted to last longer.",
    )
    launch_template: fields.TemplateName | None = Field(
        default=None,
        description="The name of a launch template. Each launch uses the template's current default version. If the "
        "template and spotrun both set a value, spotrun's value is used.",
    )
    security_group: fields.CloudName = Field(
        default="spotrun-node",
        description="The name of the security group. Instances start in the subnets of its network.",
    )
    instance_profile: fields.CloudName | None = Field(
        default=None,
        description="The name of your own instance profile, whose role all runs then use. Default: spotrun makes a "
        "profile for each run, which allows access only to this run's folder, and removes the profile at the end.",
    )

    def _looks_somewhere(self) -> Iterator[Unreadable]:
        if not self.regions:
            yield Unreadable("names no region", "name one, like us-east-1", at=("regions",))

    checks = (_looks_somewhere,)


class GcpSpec(Model):
    """Google Compute Engine: where to look for capacity, and how to set up instances. Only used with `cloud: gcp`."""

    project: fields.GoogleProject | None = Field(
        default=None, description="The id of the project that pays. Default: the project of your login."
    )
    regions: tuple[fields.CloudName, ...] = Field(
        default=("us-central1",),
        max_length=30,
        description="The regions to look in, unless `resources` name a region or a zone.",
    )
    instance_types: tuple[fields.CloudName, ...] = Field(
        default=(),
        max_length=100,
        description="Rent only these types: [g2-standard-8]. Default: every x86_64 type that suits `resources` and has "
        "its GPUs built in.",
    )
    image: fields.GoogleImage = Field(
        default=DEEP_LEARNING_IMAGE,
        description="The machine image: projects/PROJECT/global/images/NAME, or …/images/family/FAMILY for the newest "
        "image of a family.",
    )
    volume_gb: StrictInt = Field(default=VOLUME_GIB, ge=10, le=16_000, description="The size of the boot disk in GiB.")
    subnetwork: fields.Subnetwork = Field(
        default="spotrun",
        description="The name of the subnetwork in which instances start, the same in each region. Or, for one of "
        "another project (Shared VPC), its path: projects/HOST/regions/REGION/subnetworks/NAME. In other regions, the "
        "subnetwork of this name and project is used.",
    )
    external_address: StrictBool = Field(
        default=True,
        description="If false, instances get no external address. The subnetwork then needs Private Google Access, "
        "and Cloud NAT if `setup` or the script downloads something from elsewhere.",
    )
    secure_boot: StrictBool = Field(
        default=False, description="If true, instances boot only signed software. The image must support it."
    )
    reservation: fields.GoogleName | None = Field(
        default=None, description="The name of a reservation that on-demand instances use. Spot instances use none."
    )
    service_account: fields.ServiceAccount | None = Field(
        default=None,
        description="The address of your own service account, which all runs then use. Default: spotrun makes a "
        "service account for each run, which can reach only this run's folder, and removes the account at the end.",
    )

    def _looks_somewhere(self) -> Iterator[Unreadable]:
        if not self.regions:
            yield Unreadable("names no region", "name one, like us-central1", at=("regions",))

    checks = (_looks_somewhere,)


class PartitionSpec(Model):
    """
    One partition of a Slurm cluster, and the part of a node that an instance gets. Without `accelerators`, `cpus` and
    `memory`, an instance gets a whole node.
    """

    name: fields.CloudName = Field(description="The name that `sinfo` shows.")
    capacity: fields.CapacityKind = Field(
        description="spot: Slurm may take its nodes for other jobs. on_demand: Slurm never does."
    )
    usd_per_node_hour: fields.NodeUsd = Field(
        description="The price of a node, in US dollars per hour: 0.40. Write 0 if it costs nothing."
    )
    accelerators: fields.AcceleratorCount | None = Field(
        default=None, description="The GPUs that an instance gets, by name and number: V100:1."
    )
    cpus: StrictInt | None = Field(default=None, ge=1, le=100_000, description="The CPUs that an instance gets.")
    memory: StrictInt | None = Field(
        default=None, ge=1, le=1_000_000, description="The memory that an instance gets, in GB."
    )
    gres: fields.SlurmText | None = Field(
        default=None,
        description="Slurm's name and number for these GPUs, if the partition has several kinds: gpu:tesla_v100:1. "
        "Default: the number in `accelerators`, of any kind.",
    )
    qos: fields.CloudName | None = Field(
        default=None, description="The QOS of spotrun's jobs. Default: the cluster's default."
    )
    max_time: fields.PositiveDuration = Field(
        default=timedelta(hours=24),
        description="How long a job may run in the partition (its MaxTime), at least 10m. spotrun replaces an instance "
        "before this time is over.",
    )

    def _lives_long_enough_for_its_start(self) -> Iterator[Unreadable]:
        if self.max_time < MAX_TIME_LEAST:
            advice = "write more, or name a partition whose jobs may run for longer"
            yield Unreadable(f"must be at least {format_duration(MAX_TIME_LEAST)}", advice, at=("max_time",))

    checks = (_lives_long_enough_for_its_start,)


class SlurmSpec(Model):
    """A Slurm cluster: its partitions, and how to request nodes. Only used with `cloud: slurm`."""

    partitions: tuple[PartitionSpec, ...] = Field(
        default=(),
        max_length=100,
        description="The partitions to request nodes from, in any order: spotrun tries the cheapest first.",
    )
    account: fields.CloudName | None = Field(
        default=None, description="The account to charge, as for sbatch --account. Default: your usual one."
    )
    wait: fields.PositiveDuration = Field(
        default=timedelta(minutes=5),
        description="How long a job may wait in a queue, at most 10m. After that, the partition counts as full and "
        "spotrun tries the next one.",
    )
    scratch: fields.NodeFolder = Field(
        default="/tmp",  # noqa: S108  an instance makes a folder of its own there, for its user alone
        description="A folder on each node, in which each instance makes its work folder and environment. "
        "spotrun removes both when the instance ends.",
    )

    def _waits_while_it_may_be_asked_for(self) -> Iterator[Unreadable]:
        if self.wait > WAIT_MAX:
            yield Unreadable(f"must be at most {format_duration(WAIT_MAX)}", "write less", at=("wait",))

    def _names_each_partition_once(self) -> Iterator[Unreadable]:
        names = [each.name for each in self.partitions]
        for index, name in enumerate(names):
            if name in names[:index]:
                yield Unreadable(f"{name} is listed twice", "remove one of them", at=("partitions", index, "name"))

    checks = (_waits_while_it_may_be_asked_for, _names_each_partition_once)


class RunSpec(Model):
    """One training run for spotrun."""

    name: fields.RunName = Field(
        description="The name of the run: lower-case letters, digits and dashes. Default: the name of the file."
    )
    workdir: fields.WorkFolder = Field(
        description="The folder to upload and to train in, relative to this file. Default: this file's folder. Files "
        "that .gitignore or .spotrunignore names are not uploaded."
    )
    workdir_max_gb: fields.Gigabytes = Field(
        default=0.1,
        description="The most that workdir may have, in GB. Each launch packs it in memory, uploads it whole, and each "
        "instance downloads it: keep large data in a bucket.",
    )
    train: TrainSpec = Field(description="The program to run: script and args, or run.")
    setup: fields.Command | None = Field(
        default=None,
        description="A shell command that runs on each instance before training: pip install -r requirements.txt.",
    )
    pack_setup: StrictBool = Field(
        default=True,
        description="Store the files that setup changed in the environment and in the work folder, and unpack them on "
        "the next instance instead of running setup again. Write false if setup does more than change files, for "
        "example with sysctl.",
    )
    envs: fields.Environment = Field(
        default={},
        description="Environment variables of setup and training. Numbers and booleans become text, as in SkyPilot.",
    )
    secrets: fields.SecretNames = Field(
        default={},
        description="The names of environment variables with secret values: [WANDB_API_KEY]. Only training gets these "
        "variables, and setup does not. The instance reads the values when it needs them; they are stored nowhere "
        "else. On aws, the value of NAME is the SecureString /spotrun/NAME of the Parameter "
        "Store; {NAME: ssm:/spotrun/other} names another one. On gcp, it is the secret spotrun-NAME of "
        "Secret Manager, or {NAME: gsm:spotrun-other}. On the local cloud, it is the variable NAME "
        "of the environment that you launch from, or {NAME: env:OTHER}.",
    )
    resources: ResourcesSpec = Field(
        default=ResourcesSpec(), description="The cloud to train on, and the instances that spotrun is allowed to rent."
    )
    hardware: Mapping[fields.CloudName, HardwareSpec] = Field(
        default={},
        max_length=20,
        description="Machines of your own, by name. Cost and power of a machine determine the price of an hour.",
    )
    checkpoint: CheckpointSpec = Field(default=CheckpointSpec(), description="Where checkpoints go, and how often.")
    outputs: OutputsSpec = Field(default=OutputsSpec(), description="Which files of the script to store.")
    data: DataSpec = Field(default=DataSpec(), description="How much data each instance reads when it starts.")
    policy: PolicySpec = Field(
        default=PolicySpec(), description="When to leave spot, when to return, and when a trainer counts as hung."
    )
    max_duration: fields.PositiveDuration | None = Field(
        default=None, description="Stop the run after this time, whatever it is doing: 12h."
    )
    budget: BudgetSpec = Field(default=BudgetSpec(), description="Limits on the cost of the run.")
    report: ReportSpec = Field(default=ReportSpec(), description="Rules that judge a finished run.")
    notify: tuple[NotifySpec, ...] = Field(
        default=(), max_length=8, description="Webhooks and commands that receive notifications about the run."
    )
    retry: RetrySpec = Field(default=RetrySpec(), description="What to do when the script itself fails.")
    num_nodes: fields.NodeCount = Field(
        default=1, description="How many instances train together. Only the local cloud and slurm support more than 1."
    )
    elastic: ElasticSpec | None = Field(
        default=None,
        description="For a training on instances with different numbers of GPUs. Default: all have as many.",
    )
    local: LocalMarketSpec = Field(default=LocalMarketSpec(), description="The local cloud's clock and market.")
    aws: AwsSpec = Field(default=AwsSpec(), description="Where to look on EC2, and how to set up instances.")
    gcp: GcpSpec = Field(default=GcpSpec(), description="Where to look on Compute Engine, and how to set up instances.")
    slurm: SlurmSpec = Field(
        default=SlurmSpec(), description="The partitions of a Slurm cluster, and how to request nodes."
    )

    @property
    def cloud(self) -> CloudRules[RunSpec]:
        """The rules of the job's cloud, and the delays to expect there."""
        found: CloudRules[RunSpec] = find_cloud(self.resources.cloud)
        return found

    @property
    def boot(self) -> timedelta:
        """
        The expected time from a launch to a booted instance. It is used until a boot of the run has been measured.
        """
        return self.cloud.boot(self)

    @property
    def home(self) -> HardwareSpec | None:
        """The user's own machine, which trains when it is free; None if the job uses only the cloud."""
        return None if self.resources.home is None else self.hardware[self.resources.home]

    @property
    def secret_references(self) -> dict[str, Reference]:
        """The variables that get the values of secrets, each with the place of its value."""
        return {name: resolved(text, self.cloud.secret(name)) for name, text in self.secrets.items()}

    @property
    def webhook_references(self) -> dict[str, Reference]:
        """
        The variables that hold the addresses of webhooks, each with the place from which a runner without the user's
        environment reads the address.
        """
        known, named = self.secret_references, [each.variable for each in self.notify]
        return {name: known.get(name) or self.cloud.secret(name) for name in named if name is not None}

    @property
    def image(self) -> Image | None:
        text = self.resources.image_id
        return None if text is None else image_of(text, self.envs.get(SERVER, ""))

    def with_image(self, image: Image) -> RunSpec:
        """Return the same job with exactly this image."""
        resources = self.resources.model_copy(update={"image_id": str(image)})
        return self.model_copy(update={"resources": resources})

    def _login_is_whole(self) -> Iterator[Unreadable]:
        refusal = None if self.resources.image_id is None else refused_login(self.envs, self.secrets)
        if refusal is not None:
            yield refusal

    def _no_secret_is_in_envs(self) -> Iterator[Unreadable]:
        for name in self.secrets:
            if name in self.envs:
                yield Unreadable("is also in envs", "remove it from envs", at=("secrets", name))

    def _only_trainings_count_steps(self) -> Iterator[Unreadable]:
        if self.train.state and isinstance(self.checkpoint.every, Steps):
            advice = "write a time like 10m, or remove train.state: a training's files are in its checkpoints anyway"
            yield Unreadable("counts steps, and a command with train.state has no steps", advice, at=_EVERY)

    def _only_trainings_are_elastic(self) -> Iterator[Unreadable]:
        if self.elastic is not None and self.train.state:
            advice = "remove elastic, or remove train.state: the checkpoints of a Loop have its files anyway"
            yield Unreadable(
                "divides the batches of a Loop, and a command with train.state has none", advice, at=("elastic",)
            )

    def _elastic_gang_fits(self) -> Iterator[Unreadable]:
        if self.elastic is None:
            return
        if self.elastic.min_nodes > self.num_nodes:
            advice = f"write at most {self.num_nodes}, or more num_nodes"
            yield Unreadable(f"is more than num_nodes, which is {self.num_nodes}", advice, at=("elastic", "min_nodes"))
        given, least = self.elastic.virtual_ranks, self.num_nodes * self._gpus
        if given is None and least == 1:
            yield Unreadable("is missing", "write into how many parts to divide a batch: 4", at=_VIRTUAL_RANKS)
        elif given is not None and given < least:
            several = f"{least} GPUs" if self._gpus > 1 else f"{least} instances"
            yield Unreadable(f"is too few for {several} of this job", f"write at least {least}", at=_VIRTUAL_RANKS)

    @property
    def virtual_ranks(self) -> int | None:
        """The number of virtual ranks of an elastic training; None if the number of processes does not change."""
        return None if self.elastic is None else self.elastic.virtual_ranks or self.num_nodes * self._gpus

    @property
    def _gpus(self) -> int:
        """The maximum number of GPUs of an instance, as far as the job names it; at least 1."""
        return max((kind.count for kind in self.resources.kinds if isinstance(kind, Accelerators)), default=1)

    def _own_machine_is_known(self) -> Iterator[Unreadable]:
        home = self.resources.home
        if home is not None and home not in self.hardware:
            close = get_close_matches(home, self.hardware, 1, cutoff=0.5)
            known = f"did you mean {close[0]}?" if close else f"known machines: {', '.join(self.hardware)}"
            advice = known if self.hardware else f"add hardware: {{{home}: {FIGURES}}}"
            yield Unreadable(f"there is no {home} under hardware", advice, at=("resources", "home"))

    def _a_strategy_meets_a_deadline(self) -> Iterator[Unreadable]:
        if self.policy.strategy != "ours" and self.policy.deadline is None:
            yield Unreadable(
                "works only with a deadline", "add policy.deadline, or remove strategy", at=("policy", "strategy")
            )

    def _spot_alone_meets_no_deadline(self) -> Iterator[Unreadable]:
        policy, spot_only = self.policy, self.resources.spot_policy == "spot"
        if spot_only and policy.deadline is not None and policy.strategy != "spot_only":
            advice = "write spot_policy: auto, or policy.strategy: spot_only"
            yield Unreadable("spot alone cannot guarantee a deadline", advice, at=("policy", "deadline"))

    def _strategy_rents_as_allowed(self) -> Iterator[Unreadable]:
        if self.policy.strategy == "spot_only" and self.resources.spot_policy == "on-demand":
            advice = "write strategy: on_demand_only, or another spot_policy"
            yield Unreadable("resources.spot_policy is on-demand", advice, at=("policy", "strategy"))

    def _cloud_allows_it(self) -> Iterator[Unreadable]:
        yield from self.cloud.refusals(self)

    def _nodes_are_few(self) -> Iterator[Unreadable]:
        if self.num_nodes > (most := self.cloud.members_max):
            train = "node trains" if most == 1 else "nodes train"
            reason = f"on cloud {self.cloud.name} at most {most} {train}, not {self.num_nodes}"
            yield Unreadable(reason, f"write {most}", at=("num_nodes",))
        elif self.num_nodes > 1 and self.resources.home is not None:
            yield Unreadable(
                "your own machine cannot train in a gang", "write 1, or remove resources.home", at=("num_nodes",)
            )

    def _own_machine_is_one_kind(self) -> Iterator[Unreadable]:
        if self.resources.home is not None and self.resources.is_choice:
            advice = f"name one kind, like {self.resources.kinds[0]}, or remove resources.home"
            yield Unreadable(
                "cannot be a choice of kinds if the job has resources.home", advice, at=("resources", "accelerators")
            )

    def _own_machine_has_other_bits(self) -> Iterator[Unreadable]:
        if self.resources.home is not None and self.checkpoint.exact == "bits":
            advice = "write exact: require, or remove resources.home"
            yield Unreadable("bits may differ between two kinds of machines", advice, at=("checkpoint", "exact"))

    def _deadline_can_be_met(self) -> Iterator[Unreadable]:
        longest = self._longest()
        if longest is not None and longest <= timedelta():
            yield Unreadable("has passed", f"write a later one, like {_in_a_day()}", at=("policy", "deadline"))
        elif longest is not None and longest <= self._needed()[0]:
            reason = f"cannot be met even on demand: {self._needed()[1]}"
            or_work = "" if self.policy.expected_work is None else ", or correct expected_work"
            yield Unreadable(reason, f"give a later deadline{or_work}", at=("policy", "deadline"))

    def _duration_is_long_enough(self) -> Iterator[Unreadable]:
        if self.max_duration is not None and self.max_duration <= self._needed()[0]:
            yield Unreadable(
                f"stops the run before it can be done: {self._needed()[1]}", "write a longer time", at=("max_duration",)
            )

    checks_if_new = (
        _login_is_whole,
        _no_secret_is_in_envs,
        _only_trainings_count_steps,
        _only_trainings_are_elastic,
        _elastic_gang_fits,
        _own_machine_is_known,
        _a_strategy_meets_a_deadline,
        _spot_alone_meets_no_deadline,
        _strategy_rents_as_allowed,
        _cloud_allows_it,
        _nodes_are_few,
        _own_machine_is_one_kind,
        _own_machine_has_other_bits,
        _deadline_can_be_met,
        _duration_is_long_enough,
    )

    def _needed(self) -> tuple[timedelta, str]:
        """Return the shortest time that the job can take, and how it was computed."""
        work = None if self.resources.is_choice else self.policy.expected_work  # another kind may be faster
        takes = "" if work is None else f"policy.expected_work is {format_duration(work)}, and "
        return (work or timedelta()) + self.boot, f"{takes}an instance boots in {format_duration(self.boot)}"

    def _longest(self) -> timedelta | None:
        """
        Return the time from now to the job's deadline; None if the job has no deadline. A deadline that is a time of
        day may be up to a day away.
        """
        deadline = self.policy.deadline
        if isinstance(deadline, datetime):
            return deadline.astimezone(UTC) - datetime.now(UTC)
        return timedelta(hours=25) if isinstance(deadline, time) else deadline  # once a year a day has 25 hours

    def to_dict(self, *, with_defaults: bool = True) -> dict[str, Any]:
        """Return the resolved spec as JSON without absent keys. Durations are in seconds (`600s`); dollars are text."""
        resolved: dict[str, Any] = _without_nones(self.model_dump(mode="json", exclude_defaults=not with_defaults))
        return resolved

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> RunSpec:
        """
        Convert JSON from `to_dict` back to a spec.

        Raises:
            SpecInvalid: `data` was written by hand or by a newer version of spotrun. The message lists all problems.
        """
        try:
            return cls.model_validate(dict(data), context=STORED)
        except ValidationError as error:
            raise SpecInvalid("\n".join(str(problem) for problem in problems_of(error, cls))) from error

    @property
    def spec_sha256(self) -> str:
        """The digest of the spec. Two specs have the same digest only if they are equal."""
        return sha256_of(self.to_dict())


def sha256_of(resolved: Mapping[str, Any]) -> str:
    """Return the digest of a spec that `to_dict` has converted."""
    return hashlib.sha256(json.dumps(resolved, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _in_a_day() -> str:
    return f"{datetime.now(UTC).astimezone() + timedelta(days=1):%Y-%m-%dT%H:%M}"


def _without_nones(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nones(item) for key, item in value.items() if item is not None}
    return [_without_nones(item) for item in value] if isinstance(value, list) else value
