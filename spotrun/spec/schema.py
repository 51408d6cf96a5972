"""Generates the JSON Schema of a spec file, which editors use to complete and check the file."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema

from spotrun.spec.model import RunSpec
from spotrun.spec.problems import OWN
from spotrun.units import format_duration


class _ForEditors(GenerateJsonSchema):
    """
    Generates a schema for editors. It shows defaults as a user would write them. It never allows `null`, because a user
    leaves out the key instead.
    """

    def nullable_schema(self, schema: Any) -> dict[str, Any]:
        return self.generate_inner(schema["schema"])

    def default_schema(self, schema: Any) -> dict[str, Any]:
        if schema.get("default") is None or isinstance(schema["default"], BaseModel):
            return self.generate_inner(schema["schema"])
        return super().default_schema(schema)

    def encode_default(self, default: Any) -> Any:
        return format_duration(default) if isinstance(default, timedelta) else super().encode_default(default)


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of a spec file, including its shorthands."""
    schema = RunSpec.model_json_schema(schema_generator=_ForEditors)
    resources = schema["$defs"]["ResourcesSpec"]["properties"]
    resources["use_spot"] = {"type": "boolean", "description": "As in SkyPilot: true is spot, false is on-demand."}
    place = (
        "As in SkyPilot: cloud, region and zone in one text, aws/us-east-1/us-east-1a; region and zone may be left out."
    )
    resources["infra"] = {"type": "string", "minLength": 1, "description": place}
    resources["any_of"] = {
        "type": "array",
        "minItems": 1,
        "items": {"type": "object"},
        "description": "A machine of your own and a cloud: [{cloud: local, hardware: box}, {cloud: aws}]. Or, as in "
        "SkyPilot, a list of regions, zones and kinds of accelerators of one cloud.",
    }
    patterns = schema["$defs"]["OutputsSpec"]["properties"]["files"]
    outputs = schema["properties"]["outputs"]
    listed = {key: value for key, value in patterns.items() if key not in ("default", "description")}
    schema["properties"]["outputs"] = {"anyOf": [{"$ref": outputs.pop("$ref")}, listed], **outputs}
    command = {"type": "string", "minLength": 1, "description": "A shell command, instead of train."}
    schema["properties"]["run"] = command
    del schema["required"]
    for section in (schema, *schema["$defs"].values()):
        section["patternProperties"] = {f"^{OWN}": {}}
    schema["oneOf"] = [{"required": ["train"]}, {"required": ["run"]}]
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
