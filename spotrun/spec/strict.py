"""The base of all sections of a file."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Model(BaseModel):
    """Frozen; an unknown key is an error; attributes have their resolved types (timedelta, Decimal)."""

    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True)
