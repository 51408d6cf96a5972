"""
What Terraform's provider for Google Cloud takes: a slice of its schema, for the resources of infra/gcp alone, which
tests/data/google_provider.py has written.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from tests.support.repository import ROOT

Schema = Mapping[str, Any]
"""Of a resource or block: `arguments` (name: type), `blocks` (name: schema), `required` names; of resources, `told`."""


def schema() -> dict[str, Schema]:
    """Each resource by its type."""
    found: dict[str, Schema] = json.loads((ROOT / "tests" / "data" / "google_provider.json").read_text())["resources"]
    return found


def faults(schema: Schema, body: Mapping[str, Any], place: str) -> Iterator[str]:
    """What the provider would refuse of an argument's name, place or presence. Blocks of `body` are in lists."""
    for name in schema["required"]:
        if name not in body:
            yield f"{place}: {name} is missing"
    for name, value in body.items():
        is_block = isinstance(value, list) and any(isinstance(each, dict) for each in value)
        if is_block and name in schema["blocks"]:
            for each in value:
                yield from faults(schema["blocks"][name], each, f"{place}.{name}")
        elif is_block or name not in schema["arguments"]:
            yield f"{place}: no {'block' if is_block else 'argument'} is called {name}"
