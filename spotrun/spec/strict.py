"""The base class of all sections of a job file."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Model(BaseModel):
    """A section of a job file. It is immutable, and refuses unknown keys. Fields can have types such as timedelta."""

    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True)
