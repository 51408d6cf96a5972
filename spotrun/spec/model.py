"""
RunSpec: what the user wants, resolved and immutable.

`spotrun.spec.file.load_spec` makes one from YAML and flags; `RunSpec.from_dict(spec.to_dict())` carries it through
the run's folder. The models hold one spelling of each wish: the shorthands of the file (`run:` at the top,
`use_spot`) are resolved before. Nothing here touches the file system.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from string import ascii_lowercase
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PlainSerializer,
    PlainValidator,
    StrictBool,
    StrictInt,
    ValidationError,
    WithJsonSchema,
    model_validator,
)

from spotrun.address import DEFAULT_STORE
from spotrun.errors import SpecInvalid
from spotrun.instance import VOLUME_GIB
from spotrun.secrets.reference import ENVIRONMENT, REFERENCE_PATTERN, Reference, resolved
from spotrun.spec.condition import EXAMPLE, FIGURE_NAMES
from spotrun.spec.fields import (
    TEXT_SCHEMA,
    AmountField,
    CloudName,
    Command,
    Deadline,
    Duration,
    ImageParameter,
    PositiveDuration,
    Share,
    StepsField,
    TemplateName,
    Text,
    Usd,
    as_seconds,
    as_text,
    duration_text,
)
from spotrun.spec.market_script import TRIGGER_PATTERN, Action, Trigger, parse_trigger
from spotrun.spec.problems import problems_of
from spotrun.spec.values import (
    INSTANCE_TYPE_PATTERN,
    NAME_PATTERN,
    NEWS_KINDS,
    ON_DEMAND,
    STEPS_PATTERN,
    STRATEGY_NAMES,
    VARIABLE_PATTERN,
    Accelerators,
    is_instance_type,
    one_of,
    read_accelerators,
    read_args,
    read_baseline,
    read_condition,
    read_envs,
    read_every,
    read_gigabytes,
    read_name,
    read_notice,
    read_notify_command,
    read_num_nodes,
    read_script,
    read_secrets,
    read_time_scale,
    read_uri,
    read_webhook,
    read_workdir,
)
from spotrun.units import (
    DURATION_PATTERN,
    Steps,
    Unreadable,
)

_SCALARS = {"type": ["string", "number", "boolean"]}
DEEP_LEARNING_AMI = "/aws/service/deeplearning/ami/x86_64/oss-nvidia-driver-gpu-pytorch-2.11-ubuntu-24.04/latest/ami-id"
EC2_BOOT = timedelta(seconds=90)
"""Usual for a GPU instance with a Deep Learning AMI; measured as soon as there was one."""


class Model(BaseModel):
    """Frozen; an unknown key is an error; attribute types are the resolved ones (timedelta, Decimal)."""

    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True)


class TrainSpec(Model):
    """What to run: a Python script with arguments, or any shell command."""

    script: Annotated[str, PlainValidator(read_script), TEXT_SCHEMA] | None = Field(
        default=None, description="Python script, relative to workdir. Needs no change for spotrun."
    )
    args: Annotated[
        tuple[str, ...],
        PlainValidator(read_args),
        PlainSerializer(list),
        WithJsonSchema({"type": "array", "items": {"type": ["string", "number"]}}),
    ] = Field(default=(), description="Arguments of the script, one list item each.")
    run: Command | None = Field(default=None, description="Any shell command, instead of script and args.")

    @model_validator(mode="after")
    def _exactly_one(self) -> TrainSpec:
        if self.script is not None and self.run is not None:
            raise Unreadable("has both script and run", "keep one of them")
        if self.script is None and self.run is None:
            raise Unreadable("nothing to run", "write train: {script: train.py} or run: COMMAND")
        if self.run is not None and self.args:
            raise Unreadable("goes with script, not with run", "write the arguments into run", at=("args",))
        return self


class ResourcesSpec(Model):
    """Where to train, and what may be rented."""

    cloud: Annotated[
        Literal["local", "aws", "gcp"],
        PlainValidator(one_of("local", "aws", unbuilt=("gcp",))),
        WithJsonSchema({"enum": ["local", "aws"]}),
    ] = Field(default="local", description="The cloud. `local` rehearses on this machine at simulated prices.")
    accelerators: (
        Annotated[
            Accelerators,
            PlainValidator(read_accelerators),
            as_text,
            WithJsonSchema(
                {
                    "anyOf": [
                        {"type": "string", "pattern": r"^[A-Za-z0-9][A-Za-z0-9._-]*(:\s*\d+)?$"},
                        {
                            "type": "object",
                            "minProperties": 1,
                            "maxProperties": 1,
                            "additionalProperties": {"type": "integer", "minimum": 1},
                        },
                    ]
                }
            ),
        ]
        | None
    ) = Field(default=None, description="Accelerators per instance: V100:1, {V100: 1} or V100.")
    instance_type: CloudName | None = Field(default=None, description="Only this instance type.")
    region: CloudName | None = Field(default=None, description="Only this region.")
    zone: CloudName | None = Field(default=None, description="Only this zone.")
    cpus: AmountField | None = Field(default=None, description="CPUs per instance: 4 is exactly four, 4+ four or more.")
    memory: AmountField | None = Field(default=None, description="Memory per instance in GB: 16 exactly, 16+ or more.")
    spot_policy: Annotated[
        Literal["spot", "on-demand", "auto"],
        PlainValidator(one_of("spot", "on-demand", "auto")),
        WithJsonSchema({"enum": ["spot", "on-demand", "auto"]}),
    ] = Field(
        default="auto",
        description="spot only, on-demand only, or auto: spot where possible, on-demand when needed.",
    )
    max_price: Usd | None = Field(
        default=None, description="Never rent above this price, in USD per hour per instance."
    )


class KeepBestSpec(Model):
    """Which checkpoints are worth keeping for what they score."""

    metric: Text = Field(description="A metric that the script logs, by its name: val_loss.")
    mode: Annotated[
        Literal["min", "max"], PlainValidator(one_of("min", "max")), WithJsonSchema({"enum": ["min", "max"]})
    ] = Field(default="min", description="Whether its smallest or its largest value is the best.")
    count: StrictInt = Field(default=1, ge=1, le=10_000, description="How many of them are kept.")


class CheckpointSpec(Model):
    """Where checkpoints go, how often, and how many are kept."""

    uri: Annotated[str, PlainValidator(read_uri), TEXT_SCHEMA] = Field(
        default=DEFAULT_STORE,
        description="The store: it holds the whole run folder. A local folder, s3://bucket/prefix or gs://bucket/prefix.",
    )
    every: Annotated[
        Literal["auto"] | timedelta | Steps,
        PlainValidator(read_every),
        as_seconds,
        WithJsonSchema({"type": "string", "pattern": rf"^auto$|{STEPS_PATTERN}|{DURATION_PATTERN}"}),
    ] = Field(
        default="auto",
        description='auto (wastes least time, Young 1974), a duration like 10m, or "500 steps".',
    )
    keep_last: StrictInt = Field(default=3, ge=1, le=10_000, description="How many checkpoints are kept, the newest.")
    keep_best: KeepBestSpec | None = Field(
        default=None,
        description="Besides these the best by a metric: of each value the first checkpoint after it was logged.",
    )
    keep_every: StepsField | None = Field(
        default=None, description='Besides these the first in each so many steps: "1000 steps".'
    )


class DataSpec(Model):
    """What a training reads beside its checkpoint, where that lies in the region of checkpoint.uri."""

    gb: Annotated[
        float,
        PlainValidator(read_gigabytes),
        WithJsonSchema({"type": "number", "minimum": 0, "maximum": 1_000_000}),
    ] = Field(
        default=0.0,
        description="How many GB each instance reads when it starts: in another region than the bucket's they are paid "
        "for, which counts in the choice of a region.",
    )


class PolicySpec(Model):
    """When to leave spot, when to come back, and when a silent trainer counts as hung."""

    deadline: Deadline | None = Field(
        default=None,
        description="Be done in time, at least cost: 8h counts from the launch, 07:00 is the next time the clock of "
        "the launching machine shows it. With it, strategy decides instead of on_demand_after.",
    )
    strategy: Annotated[
        str, PlainValidator(one_of(*STRATEGY_NAMES)), WithJsonSchema({"enum": list(STRATEGY_NAMES)})
    ] = Field(default="ours", description="How a deadline is kept. The others are there to compare with.")
    expected_work: PositiveDuration | None = Field(
        default=None,
        description="How long the training itself takes, where you know it. Without it a run with a deadline begins on "
        "demand, until its steps are measured.",
    )
    on_demand_after: Duration = Field(
        default=timedelta(minutes=10),
        description="With spot_policy auto: on-demand after this long without spot.",
    )
    return_to_spot: StrictBool = Field(default=True, description="Go back to spot when it is there again.")
    return_cooldown: Duration = Field(
        default=timedelta(minutes=10),
        description="How long on-demand is kept, or spot was last refused, before spot is asked for again.",
    )
    hang_after: PositiveDuration = Field(
        default=timedelta(minutes=5), description="Without progress for this long the trainer counts as hung."
    )


class BudgetSpec(Model):
    """What the run may cost."""

    max_usd: Usd | None = Field(default=None, description="Stop before the run costs more than this many US dollars.")
    warn_at: Share | None = Field(
        default=None, description="Warn once when this share of max_usd is spent; 0.8 where it is left out."
    )

    @model_validator(mode="after")
    def _a_warning_needs_a_budget(self) -> BudgetSpec:
        if self.warn_at is not None and self.max_usd is None:
            raise Unreadable("goes with max_usd", "add budget.max_usd, or remove it", at=("warn_at",))
        return self


class ReportSpec(Model):
    """What the report of a finished run is judged by."""

    fail_if: (
        Annotated[str, PlainValidator(read_condition), WithJsonSchema({"type": "string", "examples": [EXAMPLE]})] | None
    ) = Field(
        default=None,
        description="launch and resume end with exit code 10 where this holds of the finished run. Figures: "
        f"{', '.join(FIGURE_NAMES)}; >, >=, <, <=, ==, !=; and, or.",
    )
    baseline: Annotated[
        str,
        PlainValidator(read_baseline),
        WithJsonSchema(
            {
                "anyOf": [
                    {"const": ON_DEMAND},
                    {"type": "number", "exclusiveMinimum": 0},
                    {"type": "string", "pattern": f"^{INSTANCE_TYPE_PATTERN}$"},
                ]
            }
        ),
    ] = Field(
        default=ON_DEMAND,
        description="What savings are told against: the on-demand price of the instance type that trained, or what "
        "would have been rented instead: another instance type, or a machine at so many US dollars per hour.",
    )
    baseline_usd_per_hour: Usd | None = Field(
        default=None, description="What an hour of that other instance type costs on demand; `launch` looks it up."
    )

    @property
    def baseline_type(self) -> str | None:
        """The instance type that savings are told against, where it is not the one that trained."""
        return self.baseline if is_instance_type(self.baseline) else None


class NotifySpec(Model):
    """Whom to tell of a run, and of what. Neither a server nor a command can stop or slow the run."""

    webhook: (
        Annotated[str, PlainValidator(read_webhook), WithJsonSchema({"type": "string", "pattern": VARIABLE_PATTERN})]
        | None
    ) = Field(
        default=None,
        description="POST JSON to the address in this environment variable: $SLACK_WEBHOOK. Slack shows its `text`.",
    )
    command: Annotated[str, PlainValidator(read_notify_command), TEXT_SCHEMA] | None = Field(
        default=None, description="Or run this shell command where the runner is, with the JSON on its standard input."
    )
    on: tuple[Annotated[str, PlainValidator(one_of(*NEWS_KINDS)), WithJsonSchema({"enum": list(NEWS_KINDS)})], ...] = (
        Field(default=NEWS_KINDS, description="What to tell of. Default: everything.")
    )

    @model_validator(mode="after")
    def _exactly_one(self) -> NotifySpec:
        if (self.webhook is None) == (self.command is None):
            raise Unreadable("needs one of webhook and command", "write webhook: $SLACK_WEBHOOK or command: COMMAND")
        return self

    @property
    def variable(self) -> str | None:
        """The environment variable that holds the address of the webhook."""
        return None if self.webhook is None else self.webhook.removeprefix("$")


class RetrySpec(Model):
    """What to do when the script itself fails. Interruptions and missing capacity are always retried."""

    on_events: tuple[
        Annotated[Literal["error"], PlainValidator(one_of("error")), WithJsonSchema({"enum": ["error"]})], ...
    ] = Field(default=("error",), description="error: the script ended with an error.")
    max_restarts: StrictInt = Field(default=2, ge=0, le=10_000, description="How often the script is started again.")


class ScriptStep(Model):
    """One step of a scripted market. Steps fire in order, each once."""

    when: Annotated[
        Trigger,
        PlainValidator(parse_trigger),
        as_text,
        WithJsonSchema({"type": "string", "pattern": TRIGGER_PATTERN}),
    ] = Field(
        description='"epoch N at P%" (epochs counted from 1), "upload at P%" (of a checkpoint\'s bytes), '
        '"after DURATION" (of run time since the step before).'
    )
    then: Annotated[
        Action,
        PlainValidator(lambda value: Action(one_of(*Action)(value))),
        as_text,
        WithJsonSchema({"enum": [str(action) for action in Action]}),
    ] = Field(
        description="interrupt: the spot instance is taken. no-spot: it is taken and there is no spot anywhere "
        "until a later step spot-returns. rebalance: the cloud recommends to leave it, and does no more."
    )
    notice: Annotated[
        timedelta | None,
        PlainValidator(read_notice),
        PlainSerializer(lambda value: "none" if value is None else duration_text(value)),
        WithJsonSchema({"type": "string", "pattern": rf"^none$|{DURATION_PATTERN}"}),
    ] = Field(default=timedelta(seconds=120), description="Warning before the instance is taken; none: without one.")

    @model_validator(mode="before")
    @classmethod
    def _what_takes_nothing_has_no_notice(cls, data: Any) -> Any:
        if not isinstance(data, dict) or data.get("then") not in ("spot-returns", "rebalance"):
            return data
        if data.get("notice", "none") != "none":
            raise Unreadable(f"{data['then']} takes no instance and has no notice", "remove it", at=("notice",))
        return {**data, "notice": "none"}


class LocalMarketSpec(Model):
    """The local cloud: how fast its clock runs, how it boots, and what its market does."""

    time_scale: Annotated[
        float,
        PlainValidator(read_time_scale),
        WithJsonSchema({"type": "number", "minimum": 1, "maximum": 100_000}),
    ] = Field(default=1.0, description="Run seconds per real second: 60 makes a market minute take a second.")
    seed: StrictInt = Field(default=0, ge=0, le=2**63 - 1, description="The seed of a generated market.")
    boot: Duration = Field(default=timedelta(seconds=40), description="Run time from launch to a booted instance.")
    market: Annotated[
        Literal["calm", "generated"],
        PlainValidator(one_of("calm", "generated")),
        WithJsonSchema({"enum": ["calm", "generated"]}),
    ] = Field(
        default="calm",
        description="calm: fixed prices and no interruption but the script's. generated: from the seed.",
    )
    recommended: Share | None = Field(
        default=None,
        description="Of a generated market's interruptions, the share that a rebalance recommendation precedes by up "
        "to 10 min before the notice, with as many that nothing follows. An assumption: AWS publishes no figures.",
    )
    script: tuple[ScriptStep, ...] = Field(default=(), description="What happens to the market, step by step.")

    @model_validator(mode="after")
    def _spot_returns_after_it_was_gone(self) -> LocalMarketSpec:
        gone = False
        for index, step in enumerate(self.script):
            if step.then is Action.SPOT_RETURNS and not gone:
                raise Unreadable("spot is not gone here", "add a step no-spot before it", at=("script", index, "then"))
            gone = step.then is Action.NO_SPOT or (gone and step.then is not Action.SPOT_RETURNS)
        return self


def regions_of(resources: ResourcesSpec, aws: AwsSpec) -> tuple[str, ...]:
    """Where EC2 is asked for capacity; a place named under resources is the only one to look at."""
    region = resources.region or (resources.zone and resources.zone.rstrip(ascii_lowercase))
    return aws.regions if region is None else (region,)


def instance_types_of(resources: ResourcesSpec, aws: AwsSpec) -> tuple[str, ...]:
    """The only ones to ask EC2 for; all that suit where it is empty."""
    return aws.instance_types if resources.instance_type is None else (resources.instance_type,)


class AwsSpec(Model):
    """Amazon EC2: where to look for capacity, and what is around an instance. Counts with `cloud: aws` alone."""

    regions: tuple[CloudName, ...] = Field(
        default=("us-east-1",), max_length=30, description="Where to look, unless resources name a place."
    )
    instance_types: tuple[CloudName, ...] = Field(
        default=(), max_length=100, description="Only these types. Default: every x86_64 type that suits resources."
    )
    image_id: CloudName | None = Field(
        default=None, description="The machine image: ami-… Default: see image_parameter."
    )
    image_parameter: ImageParameter = Field(
        default=DEEP_LEARNING_AMI, description="The SSM parameter that names the newest image."
    )
    volume_gb: StrictInt = Field(default=VOLUME_GIB, ge=8, le=16_000, description="The root volume, in GiB.")
    advisor: str | None = Field(
        default=None,
        description="Where Amazon's spot-advisor-data.json is, a URL or a file: read once, when the run is created. "
        "Types that are seldom taken are then expected to last longer, until the run has seen better.",
    )
    launch_template: TemplateName | None = Field(
        default=None, description="Its name: launches go by its default version of then, and what spotrun asks wins."
    )
    security_group: CloudName = Field(
        default="spotrun-node", description="Its name; in its network the subnets are found."
    )
    instance_profile: CloudName | None = Field(
        default=None,
        description="The name of an instance profile of your own, whose role then serves all runs. Default: spotrun "
        "makes one for each run, which reaches that run's folder alone, and removes it at the end.",
    )

    @model_validator(mode="after")
    def _looks_somewhere(self) -> AwsSpec:
        if not self.regions:
            raise Unreadable("names no region", "name one, like us-east-1", at=("regions",))
        return self


class RunSpec(Model):
    """One training run for spotrun."""

    name: Annotated[str, PlainValidator(read_name), WithJsonSchema({"type": "string", "pattern": NAME_PATTERN})] = (
        Field(description="Name of the run: small letters, digits and dashes. Default: the name of the file.")
    )
    workdir: Annotated[Path, PlainValidator(read_workdir), as_text, TEXT_SCHEMA] = Field(
        description="The folder to upload and to train in, relative to this file. Default: this file's folder."
    )
    train: TrainSpec = Field(description="What to run: script and args, or run.")
    setup: Command | None = Field(default=None, description="Shell command that runs on each instance before training.")
    pack_setup: StrictBool = Field(
        default=True,
        description="Pack what setup has changed in its environment and in the work folder, and unpack it on the next "
        "instance instead of running setup again. false: it also does what no files show, like sysctl.",
    )
    envs: Annotated[
        Mapping[str, str],
        PlainValidator(read_envs),
        WithJsonSchema({"type": "object", "additionalProperties": _SCALARS}),
    ] = Field(
        default={},
        description="Environment of setup and training. Numbers and booleans become text as in SkyPilot.",
    )
    secrets: Annotated[
        Mapping[str, str],
        PlainValidator(read_secrets),
        WithJsonSchema(
            {
                "anyOf": [
                    {"type": "array", "items": {"type": "string", "pattern": r"^[A-Za-z_][A-Za-z0-9_]*$"}},
                    {
                        "type": "object",
                        "additionalProperties": {
                            "anyOf": [{"type": "string", "pattern": REFERENCE_PATTERN}, {"const": ""}]
                        },
                    },
                ]
            }
        ),
    ] = Field(
        default={},
        description="Variables of the training alone, by name: their values are read on the instance and are nowhere "
        "else. On aws from the SecureString /spotrun/NAME of the Parameter Store, or {NAME: ssm:/spotrun/other}; on "
        "the local cloud from the variable NAME of whoever launches, or {NAME: env:OTHER}.",
    )
    resources: ResourcesSpec = Field(default=ResourcesSpec(), description="Where to train, and what may be rented.")
    checkpoint: CheckpointSpec = Field(default=CheckpointSpec(), description="Where checkpoints go, and how often.")
    data: DataSpec = Field(default=DataSpec(), description="What each instance reads when it starts.")
    policy: PolicySpec = Field(default=PolicySpec(), description="When to leave spot and when to come back.")
    max_duration: PositiveDuration | None = Field(
        default=None, description="Stop the run after this long, whatever it does."
    )
    budget: BudgetSpec = Field(default=BudgetSpec(), description="What the run may cost.")
    report: ReportSpec = Field(default=ReportSpec(), description="What the report of a finished run is judged by.")
    notify: tuple[NotifySpec, ...] = Field(
        default=(), max_length=8, description="Whom to tell of the run: webhooks and commands."
    )
    retry: RetrySpec = Field(default=RetrySpec(), description="What to do when the script itself fails.")
    num_nodes: Annotated[int, PlainValidator(read_num_nodes), WithJsonSchema({"const": 1})] = Field(
        default=1, description="Nodes that train together. Only 1 so far."
    )
    local: LocalMarketSpec = Field(default=LocalMarketSpec(), description="The local cloud's clock and market.")
    aws: AwsSpec = Field(default=AwsSpec(), description="Where to look on EC2, and what is around an instance.")

    @property
    def boot(self) -> timedelta:
        """What passes from a launch to a booted instance, as far as that is known before the first one."""
        return self.local.boot if self.resources.cloud == "local" else EC2_BOOT

    @property
    def secret_references(self) -> dict[str, Reference]:
        """Where the value of each secret is, by the name of its variable."""
        return {name: resolved(name, text, self.resources.cloud) for name, text in self.secrets.items()}

    @model_validator(mode="after")
    def _secrets_can_be_had_and_are_nowhere_else(self) -> RunSpec:
        for name, reference in self.secret_references.items():
            if name in self.envs:
                raise Unreadable("is among envs too", "remove it there", at=("secrets", name))
            if reference.kind == ENVIRONMENT and self.resources.cloud != "local":
                advice = f"keep it in the Parameter Store, and write ssm:/spotrun/{name}"
                raise Unreadable("a variable of this machine is not on an instance", advice, at=("secrets", name))
        return self

    @model_validator(mode="after")
    def _instances_can_reach_the_store(self) -> RunSpec:
        uri = self.checkpoint.uri
        if self.resources.cloud == "aws" and not uri.startswith("s3://"):
            advice = "write s3://BUCKET/PREFIX, or give it by --store or SPOTRUN_STORE"
            raise Unreadable(f"{uri} is out of reach of instances on aws", advice, at=("checkpoint", "uri"))
        return self

    @model_validator(mode="after")
    def _a_deadline_is_kept_on_demand_if_need_be(self) -> RunSpec:
        policy, spot_only = self.policy, self.resources.spot_policy == "spot"
        if policy.deadline is None and policy.strategy != "ours":
            raise Unreadable("goes with a deadline", "add policy.deadline, or remove it", at=("policy", "strategy"))
        if policy.deadline is not None and spot_only and policy.strategy != "spot_only":
            advice = "write spot_policy: auto, or policy.strategy: spot_only"
            raise Unreadable("spot alone keeps no deadline", advice, at=("policy", "deadline"))
        return self

    def to_dict(self) -> dict[str, Any]:
        """The resolved spec as JSON: durations in seconds (`600s`), dollars as text, absent keys left out."""
        resolved: dict[str, Any] = _without_nones(self.model_dump(mode="json"))
        return resolved

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> RunSpec:
        """
        Exactly the spec that `to_dict` was called on.

        Raises:
            SpecInvalid: it was written by hand or by a newer spotrun; every problem is listed.
        """
        try:
            return cls.model_validate(dict(data))
        except ValidationError as error:
            raise SpecInvalid("\n".join(str(problem) for problem in problems_of(error, cls))) from error

    @property
    def spec_sha256(self) -> str:
        """The same for two specs exactly when they are equal."""
        text = json.dumps(self.to_dict(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()


def _without_nones(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nones(item) for key, item in value.items() if item is not None}
    return [_without_nones(item) for item in value] if isinstance(value, list) else value
