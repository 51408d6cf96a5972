"""
Named types for the values of a spec. Each type defines how pydantic reads a value, writes it, and describes it in the
JSON Schema for editors.

The parsers are in `spotrun.spec.values` and `spotrun.units`.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import PlainSerializer, PlainValidator, WithJsonSchema

from spotrun.secrets.reference import REFERENCE_PATTERN
from spotrun.spec import image, values
from spotrun.spec.condition import EXAMPLE
from spotrun.spec.image import read_image
from spotrun.spec.kinds import KINDS_MAX, AnyOf, read_kinds
from spotrun.spec.market_script import TRIGGER_PATTERN, Action, Trigger, parse_trigger
from spotrun.spec.patterns import read_pattern
from spotrun.spec.values import clean_text, matching, one_of
from spotrun.units import DURATION_PATTERN, Amount, Steps, duration_in_seconds, parse_amount, parse_duration, parse_usd


def _deadline_text(value: timedelta | time | datetime) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    return f"{value:%H:%M}" if isinstance(value, time) else duration_text(value)


def duration_text(value: Any) -> Any:
    """Format a duration as seconds (`600s`). Return None for None, and any other value as text."""
    return duration_in_seconds(value) if isinstance(value, timedelta) else value if value is None else str(value)


as_text = PlainSerializer(lambda value: None if value is None else str(value))
as_seconds = PlainSerializer(duration_text)


def _pattern(pattern: str, *examples: str) -> WithJsonSchema:
    shown = {"examples": list(examples)} if examples else {}
    return WithJsonSchema({"type": "string", "pattern": pattern, **shown})


def _either(*schemas: dict[str, Any]) -> WithJsonSchema:
    return WithJsonSchema({"anyOf": list(schemas)})


def _number(least: int, most: int) -> WithJsonSchema:
    return WithJsonSchema({"type": "number", "minimum": least, "maximum": most})


def _choice(*names: str) -> WithJsonSchema:
    return WithJsonSchema({"enum": list(names)})


_TEXT = WithJsonSchema({"type": "string", "minLength": 1})
_DURATION = _pattern(DURATION_PATTERN, "90s", "10m", "1h30m")
_ABOVE_ZERO = {"type": "number", "exclusiveMinimum": 0}
_SCALAR = {"type": ["string", "number", "boolean"]}

# --- texts --------------------------------------------------------------------------------------------------

Text = Annotated[str, PlainValidator(clean_text), _TEXT]
Command = Annotated[str, PlainValidator(values.read_command), _TEXT]
NotifyCommand = Annotated[str, PlainValidator(values.read_notify_command), _TEXT]
ScriptPath = Annotated[str, PlainValidator(values.read_script), _TEXT]
StatePath = Annotated[str, PlainValidator(values.read_state_path), _TEXT]
ModuleName = Annotated[str, PlainValidator(values.read_module), _TEXT]
Arguments = Annotated[
    tuple[str, ...],
    PlainValidator(values.read_args),
    PlainSerializer(list),
    WithJsonSchema({"type": "array", "items": {"type": ["string", "number"]}}),
]
FilePattern = Annotated[str, PlainValidator(read_pattern), _TEXT]
WorkFolder = Annotated[Path, PlainValidator(values.read_workdir), as_text, _TEXT]
StoreAddress = Annotated[str, PlainValidator(values.read_uri), _TEXT]
RunName = Annotated[str, PlainValidator(values.read_name), _pattern(values.NAME_PATTERN)]
CloudName = Annotated[
    str,
    PlainValidator(matching(values.CLOUD_NAME_PATTERN, "use letters, digits, dots and dashes")),
    _pattern(values.CLOUD_NAME_PATTERN),
]
"""The name that a cloud gives to an instance type, a region, a zone or an image."""
ContainerImage = Annotated[
    str, PlainValidator(read_image), _pattern(image.PATTERN, "docker:pytorch/pytorch:2.9.0-cuda12.8-cudnn9-runtime")
]
TemplateName = Annotated[
    str,
    PlainValidator(matching(values.TEMPLATE_PATTERN, "write the name of an EC2 launch template, like spotrun-node")),
    _pattern(values.TEMPLATE_PATTERN),
]
ImageParameter = Annotated[
    str,
    PlainValidator(matching(values.IMAGE_PARAMETER_PATTERN, "write the path of an SSM parameter, like /my/image")),
    _pattern(values.IMAGE_PARAMETER_PATTERN),
]
GoogleName = Annotated[
    str,
    PlainValidator(matching(values.GOOGLE_NAME_PATTERN, "use small letters, digits and dashes, as Google does")),
    _pattern(values.GOOGLE_NAME_PATTERN),
]
Subnetwork = Annotated[
    str,
    PlainValidator(
        matching(values.SUBNETWORK_PATTERN, "write its name, or projects/HOST/regions/REGION/subnetworks/NAME")
    ),
    _pattern(values.SUBNETWORK_PATTERN),
]
GoogleProject = Annotated[
    str,
    PlainValidator(matching(values.GOOGLE_PROJECT_PATTERN, "write the id of a project, like acme-training")),
    _pattern(values.GOOGLE_PROJECT_PATTERN),
]
GoogleImage = Annotated[
    str,
    PlainValidator(matching(values.GOOGLE_IMAGE_PATTERN, "write projects/PROJECT/global/images/NAME or …/family/NAME")),
    _pattern(values.GOOGLE_IMAGE_PATTERN),
]
ServiceAccount = Annotated[
    str,
    PlainValidator(matching(values.SERVICE_ACCOUNT_PATTERN, "write NAME@PROJECT.iam.gserviceaccount.com")),
    _pattern(values.SERVICE_ACCOUNT_PATTERN),
]
SlurmText = Annotated[
    str,
    PlainValidator(matching(values.SLURM_TEXT_PATTERN, "write it like gpu:v100:1")),
    _pattern(values.SLURM_TEXT_PATTERN),
]
NodeFolder = Annotated[
    str,
    PlainValidator(matching(values.NODE_FOLDER_PATTERN, "write an absolute path, like /scratch")),
    _pattern(values.NODE_FOLDER_PATTERN),
]
WebhookVariable = Annotated[
    str, PlainValidator(values.read_webhook), _pattern(values.VARIABLE_PATTERN, "$SLACK_WEBHOOK")
]
FailureCondition = Annotated[
    str, PlainValidator(values.read_condition), WithJsonSchema({"type": "string", "examples": [EXAMPLE]})
]
Environment = Annotated[
    Mapping[str, str],
    PlainValidator(values.read_envs),
    WithJsonSchema({"type": "object", "additionalProperties": _SCALAR}),
]
SecretNames = Annotated[
    Mapping[str, str],
    PlainValidator(values.read_secrets),
    _either(
        {"type": "array", "items": {"type": "string", "pattern": r"^[A-Za-z_][A-Za-z0-9_]*$"}},
        {
            "type": "object",
            "additionalProperties": {"anyOf": [{"type": "string", "pattern": REFERENCE_PATTERN}, {"const": ""}]},
        },
    ),
]
"""
The variables that get the values of secrets, each with the place where its value is stored. If the place is "", it is
derived from the variable's name.
"""

# --- times and amounts --------------------------------------------------------------------------------------

Duration = Annotated[timedelta, PlainValidator(parse_duration), as_seconds, _DURATION]
PositiveDuration = Annotated[timedelta, PlainValidator(values.read_positive_duration), as_seconds, _DURATION]
Deadline = Annotated[
    timedelta | time | datetime,
    PlainValidator(values.read_deadline),
    PlainSerializer(_deadline_text),
    _pattern(f"{values.TIME_OF_DAY_PATTERN}|{values.MOMENT_PATTERN}|{DURATION_PATTERN}", "8h", "07:00", values.MOMENT),
]
NoticeTime = Annotated[
    timedelta | None,
    PlainValidator(values.read_notice),
    PlainSerializer(lambda value: "none" if value is None else duration_text(value)),
    _pattern(rf"^none$|{DURATION_PATTERN}", "120s", "none"),
]
StepCount = Annotated[Steps, PlainValidator(values.read_steps), as_text, _pattern(values.STEPS_PATTERN, "500 steps")]
CheckpointInterval = Annotated[
    Literal["auto"] | timedelta | Steps,
    PlainValidator(values.read_every),
    as_seconds,
    _pattern(rf"^auto$|{values.STEPS_PATTERN}|{DURATION_PATTERN}", "auto", "10m", "500 steps"),
]
Usd = Annotated[
    Decimal, PlainValidator(parse_usd), as_text, _either(_ABOVE_ZERO, {"type": "string", "pattern": r"^\d+(\.\d+)?$"})
]
NodeUsd = Annotated[
    Decimal,
    PlainValidator(values.read_node_usd),
    as_text,
    _either({"type": "number", "minimum": 0}, {"type": "string", "pattern": r"^\d+(\.\d+)?$"}),
]
Share = Annotated[
    Decimal,
    PlainValidator(values.read_share),
    as_text,
    _either({**_ABOVE_ZERO, "maximum": 1}, {"type": "string", "pattern": values.SHARE_PATTERN}),
]
AmountField = Annotated[
    Amount,
    PlainValidator(parse_amount),
    as_text,
    _either(_ABOVE_ZERO, {"type": "string", "pattern": r"^\d+(\.\d+)?\s*(GB)?\+?$"}),
]
Gigabytes = Annotated[float, PlainValidator(values.read_gigabytes), _number(0, 1_000_000)]
TimeScale = Annotated[float, PlainValidator(values.read_time_scale), _number(1, 100_000)]
NodeCount = Annotated[
    int, PlainValidator(values.read_num_nodes), WithJsonSchema({"type": "integer", "minimum": 1, "maximum": 16})
]
_KIND_TEXT = {"type": "string", "pattern": r"^[A-Za-z0-9][A-Za-z0-9._-]*(:\s*\d+)?$"}
_COUNTED = {"type": "object", "minProperties": 1, "additionalProperties": {"type": "integer", "minimum": 1}}
_KIND_LIST = {"type": "array", "minItems": 1, "maxItems": KINDS_MAX, "items": {"anyOf": [_KIND_TEXT, _COUNTED]}}
_ANY_OF = {
    "type": "object",
    "required": ["any_of"],
    "properties": {"any_of": _KIND_LIST},
    "additionalProperties": False,
}
AcceleratorCount = Annotated[
    values.Accelerators,
    PlainValidator(values.read_accelerators),
    as_text,
    _either(_KIND_TEXT, {**_COUNTED, "maxProperties": 1}),
]


def _kinds_text(value: Any) -> Any:
    return {"any_of": [str(kind) for kind in value.kinds]} if isinstance(value, AnyOf) else value and str(value)


Kinds = Annotated[
    values.Accelerators | AnyOf,
    PlainValidator(read_kinds),
    PlainSerializer(_kinds_text),
    _either(_KIND_TEXT, _COUNTED, _KIND_LIST, _ANY_OF),
]
"""One kind of instances, or a choice of several."""
Baseline = Annotated[
    str,
    PlainValidator(values.read_baseline),
    _either(
        {"const": values.ON_DEMAND}, _ABOVE_ZERO, {"type": "string", "pattern": f"^{values.INSTANCE_TYPE_PATTERN}$"}
    ),
]

# --- choices ------------------------------------------------------------------------------------------------

SpotPolicy = Annotated[
    Literal["spot", "on-demand", "auto"],
    PlainValidator(one_of("spot", "on-demand", "auto")),
    _choice("spot", "on-demand", "auto"),
]
CapacityKind = Annotated[
    Literal["spot", "on_demand"], PlainValidator(one_of("spot", "on_demand")), _choice("spot", "on_demand")
]
Extremum = Annotated[Literal["min", "max"], PlainValidator(one_of("min", "max")), _choice("min", "max")]
StrategyName = Annotated[str, PlainValidator(values.read_strategy), _choice(*values.STRATEGY_NAMES)]
NewsKind = Annotated[str, PlainValidator(one_of(*values.NEWS_KINDS)), _choice(*values.NEWS_KINDS)]
Exactness = Annotated[
    Literal["off", "tell", "require", "bits"],
    PlainValidator(one_of("off", "tell", "require", "bits")),
    _choice("off", "tell", "require", "bits"),
]
RetryEvent = Annotated[Literal["error"], PlainValidator(one_of("error")), _choice("error")]
MarketKind = Annotated[
    Literal["calm", "generated"], PlainValidator(one_of("calm", "generated")), _choice("calm", "generated")
]
MarketTrigger = Annotated[
    Trigger, PlainValidator(parse_trigger), as_text, _pattern(TRIGGER_PATTERN, "epoch 2 at 40%", "after 10m")
]
MarketAction = Annotated[
    Action, PlainValidator(lambda value: Action(one_of(*Action)(value))), as_text, _choice(*map(str, Action))
]
