"""References to secrets: a job names the place where a secret is stored, and never contains the secret itself."""

from __future__ import annotations

import re
from typing import NamedTuple

from spotrun.errors import NotInstalled, SpecInvalid, SpotrunError
from spotrun.secrets.redaction import holds_credential
from spotrun.units import Unreadable

ENVIRONMENT, PARAMETER, SECRET = "env", "ssm", "gsm"
WORDS = {
    ENVIRONMENT: "a variable of this machine",
    PARAMETER: "a parameter of AWS",
    SECRET: "a secret of Google Cloud",
}
"""The words with which messages describe a secret, by the kind of its reference."""
REFERENCE_PATTERN = r"^(env:[A-Za-z_][A-Za-z0-9_]*|ssm:(/[A-Za-z0-9_.-]+)+|gsm:[A-Za-z0-9_-]{1,255})$"
SECURE = "SecureString"
"""The type of a parameter that is encrypted."""
PARAMETERS = "/spotrun/"
"""Path below which a run's role is allowed to read parameters, if the run's job names them (infra/aws/account.yaml)."""
SECRETS = "spotrun-"
"""Prefix of the secrets that a run's service account is allowed to read (infra/gcp/conditions/spotrunSecret.yaml)."""


class Reference(NamedTuple):
    """
    The place where a secret's value is stored.

    `env` is an environment variable of the command that launches the run. `ssm` is the path of a SecureString in AWS
    Parameter Store, in the instance's region. `gsm` is a secret in Google Secret Manager, in the instance's project;
    its latest version is read.
    """

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"


class SecretUnreadable(SpotrunError):
    """A secret that a job names does not exist, or cannot be read on this machine."""

    exit_code = SpecInvalid.exit_code


class SecretNotInstalled(NotInstalled, SecretUnreadable):
    """The package that would read the secret is not installed."""


def parse(text: object) -> Reference:
    """
    Parse a reference, such as the name of an environment variable.

    Raises:
        Unreadable: the text is not a reference. The message does not quote the text, because it may be a secret.
    """
    if not isinstance(text, str) or not re.fullmatch(REFERENCE_PATTERN, text, re.ASCII) or holds_credential(text):
        if isinstance(text, str) and text.strip().lower().startswith(f"{SECRET}:"):
            raise Unreadable(
                "is not the name of a secret in Secret Manager",
                "write gsm:spotrun-NAME, where NAME has only letters, digits, - and _; neither a project nor a version "
                "can be named, because the run reads the latest version in its project",
            )
        raise Unreadable(
            "is not a reference, and a value does not belong in a file",
            "leave the value out, and export the variable where spotrun runs; or write where the secret is, like "
            "ssm:/spotrun/NAME on aws or gsm:spotrun-NAME on gcp",
        )
    kind, _, name = text.partition(":")
    return Reference(kind, name)


def resolved(text: str, default: Reference) -> Reference:
    return parse(text) if text else default


def put_command(path: str, region: str, value: str = "…") -> str:
    """Return the command that stores a parameter. It names the region, because the user's default region may differ."""
    return f"aws ssm put-parameter --type {SECURE} --name {path} --value {value} --region {region}"


def encrypt_command(path: str, region: str) -> str:
    """
    Return the command that replaces an unencrypted parameter with an encrypted one. The parameter has to be replaced,
    because its type cannot be changed:
    https://docs.aws.amazon.com/systems-manager/latest/APIReference/API_PutParameter.html
    """
    return f"aws ssm delete-parameter --name {path} --region {region} && {put_command(path, region)}"


def create_command(name: str, project: str) -> str:
    """
    Return the command that creates a secret in Secret Manager and adds its value. If the secret already exists, the
    command's first part fails, and its second part still adds the value. If `project` is "", gcloud chooses it.
    """
    return f"gcloud secrets create {name}{_in(project)}; {add_command(name, project)}"


def add_command(name: str, project: str) -> str:
    """
    Return the command that adds a value to an existing secret. To keep the value out of the shell's history, the
    command reads it as one line of input. It uses `printf`, because `echo` would add a line break.
    """
    return f'IFS= read -rs VALUE; printf %s "$VALUE" | {_gcloud_add(name, project)}'


def add_encoded_command(name: str, project: str) -> str:
    """Return the command that adds the content of a binary file, as base64, to an existing secret."""
    return f"base64 -w0 FILE | {_gcloud_add(name, project)}"


def _gcloud_add(name: str, project: str) -> str:
    return f"gcloud secrets versions add {name} --data-file=-{_in(project)}"


def _in(project: str) -> str:
    return f" --project={project}" if project else ""
