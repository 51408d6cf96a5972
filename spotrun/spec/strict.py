"""The base class of all sections of a job file."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Model(BaseModel):
    """A section of a job file: frozen, refuses unknown keys, has resolved types (timedelta, Decimal)."""

    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True)
