"""Reads the values of secrets on the machine that needs them."""

from __future__ import annotations

from collections.abc import Mapping

from spotrun.errors import Mistakes, needs_extra
from spotrun.secrets.reference import ENVIRONMENT, PARAMETER, SECRET, Reference, SecretNotInstalled, SecretUnreadable


def read_values(
    references: Mapping[str, Reference], environment: Mapping[str, str], *, rights_are_new: bool = True
) -> dict[str, str]:
    """
    Return the values of secrets, keyed by the names of the variables that get them. If `rights_are_new`, retry for a
    while after a denial, because the cloud's servers may not know the instance's rights yet.

    Raises:
        SecretUnreadable: a value cannot be read. No message contains a value.
        StoreUnavailable: Parameter Store or Secret Manager does not answer now.
    """
    values = {
        name: _variable(name, reference, environment)
        for name, reference in references.items()
        if reference.kind == ENVIRONMENT
    }
    if paths := _of_kind(PARAMETER, references):
        values |= _parameters(paths, rights_are_new)
    if secrets := _of_kind(SECRET, references):
        values |= _secrets(secrets, rights_are_new)
    return values


def require_variables(references: Mapping[str, Reference], environment: Mapping[str, str]) -> None:
    """
    Check, before a run is created, that this machine has each environment variable that the references name.

    Raises:
        SecretUnreadable: a variable is not set; SeveralInvalid if several are not.
    """
    mistakes = Mistakes()
    for name, reference in references.items():
        with mistakes:
            if reference.kind == ENVIRONMENT:
                _variable(name, reference, environment)
    mistakes.refuse()


def _of_kind(kind: str, references: Mapping[str, Reference]) -> dict[str, str]:
    return {name: reference.name for name, reference in references.items() if reference.kind == kind}


def _variable(name: str, reference: Reference, environment: Mapping[str, str]) -> str:
    value = environment.get(reference.name, "")
    if not value:
        raise SecretUnreadable(
            f"the variable {reference.name} is not set",
            hint=f"export {reference.name}=VALUE",
            key=("secrets", name),
        )
    return value


def _parameters(paths: Mapping[str, str], rights_are_new: bool) -> dict[str, str]:
    with needs_extra("aws", "a secret in the Parameter Store", SecretNotInstalled):
        from spotrun.secrets.parameter_store import read_parameters
    found = read_parameters(sorted(set(paths.values())), rights_are_new)
    return {name: found[path] for name, path in paths.items()}


def _secrets(named: Mapping[str, str], rights_are_new: bool) -> dict[str, str]:
    with needs_extra("gcp", "a secret in Secret Manager", SecretNotInstalled):
        from spotrun.secrets.secret_manager import read_secrets
    found = read_secrets(sorted(set(named.values())), rights_are_new)
    return {name: found[secret] for name, secret in named.items()}
