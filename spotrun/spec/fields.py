"""
The kinds of values that the models of a spec are made of: how each is read, written, and described to editors.

Reading is in `spotrun.spec.values` and `spotrun.units`; here they become types for pydantic.
"""

from __future__ import annotations

from datetime import time, timedelta
from decimal import Decimal
from typing import Annotated, Any

from pydantic import PlainSerializer, PlainValidator, WithJsonSchema

from spotrun.spec.values import (
    CLOUD_NAME_PATTERN,
    IMAGE_PARAMETER_PATTERN,
    SHARE_PATTERN,
    STEPS_PATTERN,
    TEMPLATE_PATTERN,
    TIME_OF_DAY_PATTERN,
    clean_text,
    matching,
    read_deadline,
    read_positive_duration,
    read_share,
    read_steps,
)
from spotrun.units import (
    DURATION_PATTERN,
    Amount,
    Steps,
    duration_in_seconds,
    parse_amount,
    parse_duration,
    parse_usd,
)

_DURATION_SCHEMA = WithJsonSchema({"type": "string", "pattern": DURATION_PATTERN, "examples": ["90s", "10m", "1h30m"]})
_USD_SCHEMA = WithJsonSchema(
    {"anyOf": [{"type": "number", "exclusiveMinimum": 0}, {"type": "string", "pattern": r"^\d+(\.\d+)?$"}]}
)
_AMOUNT_SCHEMA = WithJsonSchema(
    {
        "anyOf": [
            {"type": "number", "exclusiveMinimum": 0},
            {"type": "string", "pattern": r"^\d+(\.\d+)?\s*(GB)?\+?$"},
        ]
    }
)
TEXT_SCHEMA = WithJsonSchema({"type": "string", "minLength": 1})
as_text = PlainSerializer(lambda value: None if value is None else str(value))


def duration_text(value: Any) -> Any:
    """A duration in seconds (`600s`); anything else as its text, and None as None."""
    return duration_in_seconds(value) if isinstance(value, timedelta) else value if value is None else str(value)


as_seconds = PlainSerializer(duration_text)

Duration = Annotated[timedelta, PlainValidator(parse_duration), as_seconds, _DURATION_SCHEMA]
PositiveDuration = Annotated[timedelta, PlainValidator(read_positive_duration), as_seconds, _DURATION_SCHEMA]
Deadline = Annotated[
    timedelta | time,
    PlainValidator(read_deadline),
    PlainSerializer(lambda value: f"{value:%H:%M}" if isinstance(value, time) else duration_text(value)),
    WithJsonSchema({"type": "string", "pattern": f"{TIME_OF_DAY_PATTERN}|{DURATION_PATTERN}"}),
]
Usd = Annotated[Decimal, PlainValidator(parse_usd), as_text, _USD_SCHEMA]
Share = Annotated[
    Decimal,
    PlainValidator(read_share),
    as_text,
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "number", "exclusiveMinimum": 0, "maximum": 1},
                {"type": "string", "pattern": SHARE_PATTERN},
            ]
        }
    ),
]
AmountField = Annotated[Amount, PlainValidator(parse_amount), as_text, _AMOUNT_SCHEMA]
StepsField = Annotated[
    Steps,
    PlainValidator(read_steps),
    as_text,
    WithJsonSchema({"type": "string", "pattern": STEPS_PATTERN}),
]
Text = Annotated[str, PlainValidator(clean_text), TEXT_SCHEMA]
Command = Annotated[str, PlainValidator(lambda value: clean_text(value, lines=True)), TEXT_SCHEMA]
TemplateName = Annotated[
    str,
    PlainValidator(matching(TEMPLATE_PATTERN, "write the name of an EC2 launch template, like spotrun-node")),
    WithJsonSchema({"type": "string", "pattern": TEMPLATE_PATTERN}),
]
ImageParameter = Annotated[
    str,
    PlainValidator(matching(IMAGE_PARAMETER_PATTERN, "write the path of an SSM parameter, like /my/image")),
    WithJsonSchema({"type": "string", "pattern": IMAGE_PARAMETER_PATTERN}),
]
CloudName = Annotated[
    str,
    PlainValidator(matching(CLOUD_NAME_PATTERN, "use letters, digits, dots and dashes")),
    WithJsonSchema({"type": "string", "pattern": CLOUD_NAME_PATTERN}),
]
