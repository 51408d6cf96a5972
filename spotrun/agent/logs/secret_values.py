"""
Reads the run's secrets on an instance. An agent reads them before it sends any output, so that it can redact them
in that output. It passes them only to the trainer.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from spotrun.agent.logs.console import LOG_NAME
from spotrun.agent.logs.output_redaction import OutputRedaction, forms_of_all, secret_values
from spotrun.secrets.reference import SecretUnreadable
from spotrun.secrets.values import read_values
from spotrun.spec.model import RunSpec


@dataclass(frozen=True)
class Secrets:
    """
    The values of the run's secrets, keyed by the environment variables that receive them. If they could not be read,
    `failure` contains the reason and advice.
    """

    values: Mapping[str, str] = field(default_factory=dict, repr=False)
    failure: str | None = None

    @classmethod
    def of(cls, spec: RunSpec, environment: Mapping[str, str]) -> Secrets:
        try:
            return cls(read_values(spec.secret_references, environment))
        except SecretUnreadable as error:
            return cls(failure=str(error))

    def redaction(self, spec: RunSpec, folder: Path) -> OutputRedaction:
        """
        Return the redaction for all output that leaves the instance. An earlier agent on this instance may have read
        the secrets, and its trainer may have printed them. So if this agent cannot read the secrets, the redaction
        hides all output that is already in the log.
        """
        named = {**os.environ, **spec.envs}
        log = folder / LOG_NAME
        sealed = log.stat().st_size if self.failure is not None and log.exists() else 0
        return OutputRedaction(secret_values(named) | forms_of_all(self.values.values()), sealed)


def kept_from_setup(spec: RunSpec) -> set[str]:
    """
    Return the names of the environment variables that contain the run's secrets. They are removed from the environment
    of the job's `setup`, because only the trainer is allowed to have the secrets. On a local instance, `setup` would
    otherwise inherit them.
    """
    return {name for secret, reference in spec.secret_references.items() for name in (secret, reference.name)}
