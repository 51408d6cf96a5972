"""Reading the values of secrets, where they are used and nowhere else."""

from __future__ import annotations

from collections.abc import Mapping

from spotrun.secrets.reference import ENVIRONMENT, PARAMETER, Reference, SecretUnreadable


def read_values(references: Mapping[str, Reference], environment: Mapping[str, str]) -> dict[str, str]:
    """
    The values, by the names of the variables that are to hold them.

    Raises:
        SecretUnreadable: one of them cannot be had. No message holds a value.
        StoreUnavailable: the Parameter Store cannot be asked just now.
    """
    values = {
        name: _variable(name, reference, environment)
        for name, reference in references.items()
        if reference.kind == ENVIRONMENT
    }
    paths = {name: reference.name for name, reference in references.items() if reference.kind == PARAMETER}
    if paths:
        values |= _parameters(paths)
    return values


def require_variables(references: Mapping[str, Reference], environment: Mapping[str, str]) -> None:
    """
    Before a run is created: those that are variables are set here.

    Raises:
        SecretUnreadable: one is not.
    """
    for name, reference in references.items():
        if reference.kind == ENVIRONMENT:
            _variable(name, reference, environment)


def _variable(name: str, reference: Reference, environment: Mapping[str, str]) -> str:
    value = environment.get(reference.name, "")
    if not value:
        raise SecretUnreadable(
            f"secret {name}: the variable {reference.name} is not set", hint=f"export {reference.name}"
        )
    return value


def _parameters(paths: Mapping[str, str]) -> dict[str, str]:
    try:
        from spotrun.secrets.parameter_store import read_parameters
    except ModuleNotFoundError as error:
        hint = "pip install 'spotrun[aws]'"
        raise SecretUnreadable(f"ssm: needs the Python package {error.name}", hint=hint) from error
    found = read_parameters(sorted(set(paths.values())))
    return {name: found[path] for name, path in paths.items()}
