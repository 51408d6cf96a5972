"""
Writes docs/job-reference.md from the schema of a job file, that as docs/job-schema.json, and docs/cli.md from the
`spotrun` command.

    python -m docs.tools.reference      # or: make reference
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import typer
import yaml
from typer.core import TyperCommand, TyperGroup

from spotrun.cli.app import app
from spotrun.spec.schema import json_schema
from spotrun.spec.template import schema_text
from spotrun.spec.values import MOMENT_PATTERN, STEPS_PATTERN, TIME_OF_DAY_PATTERN
from spotrun.units import DURATION_PATTERN

DOCS = Path(__file__).parents[1]
EXAMPLES: Mapping[str, Any] = yaml.safe_load((DOCS / "tools" / "examples.yaml").read_text())
NOTE = "<!-- Written by `make reference`. Do not edit: a test compares it with {}. -->\n\n"
KINDS = {
    DURATION_PATTERN: "duration",
    STEPS_PATTERN: "steps",
    TIME_OF_DAY_PATTERN: "time of day",
    MOMENT_PATTERN: "day and time",
    "^auto$": "`auto`",
    "^none$": "`none`",
}


def main() -> None:
    for name, text in pages().items():
        (DOCS / name).write_text(text, encoding="utf-8")


def pages() -> dict[str, str]:
    return {"job-reference.md": job_reference(), "cli.md": cli(), "job-schema.json": schema_text()}


# -- the job file ----------------------------------------------------------------------------------------------------


def job_reference() -> str:
    schema = json_schema()
    text = NOTE.format("the schema") + (
        "# The job file\n\n"
        "A job is one YAML file. This page lists every key that it may contain; only `train` or `run` is required. "
        "Keys of a SkyPilot file, such as `resources.disk_size`, [are translated](skypilot.md). "
        "`spotrun validate JOB.yaml` shows every mistake in a file with its line.\n\n"
        "Editors with a YAML language server (VS Code with the YAML extension, for example) complete keys, show their "
        "meaning and mark mistakes. For this, the first line of the job file has to name the JSON Schema:\n\n"
        "```text\n# yaml-language-server: $schema=.spotrun.schema.json\n```\n\n"
        "`spotrun init` writes this line, and stores the schema next to the job as `.spotrun.schema.json`, which is "
        "not uploaded with the run. `spotrun validate --schema` prints the same schema, which is also in "
        "[job-schema.json](job-schema.json).\n\n"
        "Write a duration like `90s`, `10m` or `1h30m`. A dash in the column *default* means that nothing is set. "
        "spotrun ignores keys that start with `x-`. You can put shared values there, with a YAML anchor (`&NAME`), and "
        "insert them elsewhere with `<<: *NAME`. "
        "[examples/resnet50.yaml](../examples/resnet50.yaml) is a complete job.\n\n"
    )
    for path, section in sections(schema):
        title = f"`{path}`" if path else "At the top of the file"
        about = section["description"].replace("\n", " ") if path else "What runs, and under which name."
        text += f"## {title}\n\n{about}\n\n"
        text += "| key | value | default | example | meaning |\n|---|---|---|---|---|\n"
        for key, field in section["properties"].items():
            row = (
                f"`{key}`",
                kind(field, schema),
                default(field),
                example(f"{path}.{key}".strip("."), field),
                meaning(field, schema),
            )
            text += "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in row) + " |\n"
        text += "\n"
    return text.rstrip() + "\n"


def sections(schema: Mapping[str, Any], section: Any = None, path: str = "") -> Iterator[tuple[str, Any]]:
    """Each mapping of the file with the path to it, the file itself first; of a list or of names, what stands there."""
    section = schema if section is None else section
    yield path, section
    for key, field in section["properties"].items():
        if (name := reference_in(field)) is not None:
            below = f"{path}.{key}.NAME" if "patternProperties" in field else f"{path}.{key}"
            yield from sections(schema, schema["$defs"][name], below.strip("."))


def reference_in(field: Mapping[str, Any]) -> str | None:
    kinds = (field, field.get("items", {}), *field.get("patternProperties", {}).values(), *field.get("anyOf", ()))
    target = next((each["$ref"] for each in kinds if "$ref" in each), None)
    return None if target is None else str(target).rpartition("/")[2]


def kind(field: Mapping[str, Any], schema: Mapping[str, Any]) -> str:
    if "$ref" in field:
        return "mapping, see below"
    if "enum" in field:
        return ", ".join(f"`{value}`" for value in field["enum"])
    if "const" in field:
        return f"`{field['const']}`"
    if "anyOf" in field:
        return " or ".join(dict.fromkeys(kind(each, schema) for each in field["anyOf"]))
    if field.get("type") == "array":
        return f"list of {kind(field['items'], schema)}" if reference_in(field) is None else "list, see below"
    if field.get("type") == "object":
        return "mapping" if reference_in(field) is None else "names, each with a mapping, see below"
    if isinstance(field.get("type"), list):
        return " or ".join(field["type"])
    if field["type"] in ("integer", "number"):
        return numbers(field)
    pattern = field.get("pattern", "")
    known = [word for part, word in KINDS.items() if part in pattern]
    return " or ".join(known) if known else {"string": "text"}.get(field["type"], field["type"])


def numbers(field: Mapping[str, Any]) -> str:
    least, above, most = (field.get(key) for key in ("minimum", "exclusiveMinimum", "maximum"))
    word = "whole number" if field["type"] == "integer" else "number"
    low = f" from {least:,}" if least is not None else f" above {above:,}" if above is not None else ""
    return word + low + (f" to {most:,}" if most is not None and most < 2**53 else "")


def default(field: Mapping[str, Any]) -> str:
    value = field.get("default")
    if value is None or value in ({}, []):
        return "–"
    return (
        f"`{value if isinstance(value, str) else json.dumps(value)}`" if not isinstance(value, list) else written(value)
    )


def example(path: str, field: Mapping[str, Any]) -> str:
    return "" if reference_in(field) is not None else written(EXAMPLES[path])


def written(value: Any) -> str:
    """On one line, as in a file."""
    text = yaml.safe_dump(value, default_flow_style=True, width=10_000).removesuffix("...\n").strip()
    return f"`{text}`"


def meaning(field: Mapping[str, Any], schema: Mapping[str, Any]) -> str:
    return str(field.get("description") or schema["$defs"][reference_in(field)]["description"])


# -- the commands ----------------------------------------------------------------------------------------------------


def cli() -> str:
    group = typer.main.get_command(app)
    assert isinstance(group, TyperGroup)
    text = NOTE.format("what the commands say") + (
        "# Commands\n\n"
        "This page has the output of `spotrun VERB --help` for each verb. All times are UTC. A run whose clock is "
        "faster than the real one shows its own times, and says so.\n\n"
        "RUN is the id of a run, its name (the newest one, first of those that this machine knows), the first "
        "characters of either, or the address of the run's folder.\n\n"
    )
    for words, command in [("spotrun", group), *verbs(group, "spotrun")]:
        settings = command.context_settings
        context = typer.Context(command, info_name=words, terminal_width=80, max_content_width=80, **settings)
        text += f"## {words}\n\n```text\n{command.get_help(context)}\n```\n\n"
    told_in = "[Troubleshooting](troubleshooting.md#exit-codes) says what each exit code means, and what to do next."
    return f"{text}## Exit codes\n\n{told_in}\n"


def verbs(group: TyperGroup, path: str) -> Iterator[tuple[str, TyperCommand]]:
    for name, command in group.commands.items():
        if isinstance(command, TyperGroup):
            yield from verbs(command, f"{path} {name}")
        elif not command.hidden:
            assert isinstance(command, TyperCommand)
            yield f"{path} {name}", command


if __name__ == "__main__":
    main()
