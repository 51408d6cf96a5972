"""
Translates errors of Google's login library into CloudDriver's errors.

A login is of one of four kinds, each of which fails in its own way: a user's login or a key; a login that impersonates
a service account; a federated login, which exchanges a token of another identity provider for one of Google; and a
login of a workforce pool (https://cloud.google.com/docs/authentication/application-default-credentials).
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from pathlib import Path
from typing import Any

import requests
from google.auth import exceptions as auth

from spotrun.clouds.clock_skew import SET_CLOCK
from spotrun.clouds.error_kinds import ClockWrong, CredentialsExpired, CredentialsRefused, NotThere, Unexplained
from spotrun.clouds.gcp.error_codes import LOG_IN, LOG_IN_ANEW, answered_by_another, refused
from spotrun.clouds.patience import CHECK_NETWORK
from spotrun.errors import CloudError, CloudUnavailable

KEY_VARIABLE = "GOOGLE_APPLICATION_CREDENTIALS"
_FEDERATED, _WORKFORCE = "external_account", "external_account_authorized_user"
_IMPERSONATED = "impersonated_service_account"
_GET_TOKEN = "getAccessToken"
_UNIMPERSONATED = "Unable to acquire impersonated credentials"
"""The first words of the library's error if IAM gave it no token of the account that the login impersonates."""
_IMPERSONATE = (
    "grant your login roles/iam.serviceAccountTokenCreator on the service account that it impersonates, or, if the "
    "login is federated, roles/iam.workloadIdentityUser: https://cloud.google.com/iam/docs/service-account-impersonation"
)
_POOL = (
    "check the workload identity pool, its provider and the provider's attribute condition: "
    "https://cloud.google.com/iam/docs/troubleshooting-workload-identity-federation"
)


def meaning_of(action: str, error: Exception) -> CloudError:
    """Return the error of a call that the library could not make. `action` completes the message "cannot …"."""
    match error:
        case auth.RefreshError() if str(error.args[0]).startswith(_UNIMPERSONATED):
            return _unimpersonated(action, str(error.args[-1]))
        case auth.RefreshError() if "timeframe" in str(error):
            return ClockWrong(
                f"Google refuses to {action}: it accepts no signature dated by this machine's clock", hint=SET_CLOCK
            )
        case auth.RefreshError() | auth.OAuthError() if "<html" in str(error).lower():
            return answered_by_another(action, str(error))
        case auth.OAuthError() if (answer := _answer_of(str(error.args[-1]))) is not None:
            return refused(action, *answer)
        case auth.RefreshError() | auth.OAuthError() | auth.DefaultCredentialsError() if (
            not error.retryable and _login().get("type") == _FEDERATED
        ):
            return _of_federation(action, error)
        case auth.DefaultCredentialsError():
            return _nobody(action)
        case auth.RefreshError() | auth.OAuthError() if not error.retryable:
            return CredentialsExpired(
                f"cannot {action}: the login has expired or was revoked: {_short(error)}", hint=_log_in_anew()
            )
        case auth.GoogleAuthError() | requests.exceptions.RequestException():
            return CloudUnavailable(f"cannot {action}: Google cannot be reached: {_short(error)}", hint=CHECK_NETWORK)
    return Unexplained(f"Google's library failed to {action}: {type(error).__name__}: {_short(error)}")


def _unimpersonated(action: str, body: str) -> CloudError:
    """
    Return the error for IAM's answer `body` to generateAccessToken. The library calls this method to impersonate an
    account: https://cloud.google.com/iam/docs/reference/credentials/rest/v1/projects.serviceAccounts/generateAccessToken
    """
    doing = f"give a token of the service account that the login impersonates, needed to {action}"
    answer = _answer_of(body)
    if answer is None:
        return answered_by_another(action, body)
    error = refused(doing, *answer)
    if isinstance(error, NotThere) or _GET_TOKEN in error.message:
        return CredentialsRefused(error.message, hint=_IMPERSONATE)
    return error


def _of_federation(action: str, error: auth.GoogleAuthError) -> CredentialsExpired:
    """
    Return the error of a federated login. OAuthError is Google's refusal of the provider's token; the other errors mean
    that the library could not get such a token: https://google.aip.dev/auth/4117.
    """
    if isinstance(error, auth.OAuthError):
        what = f"cannot {action}: Google does not accept the federated login: {_short(error)}"
        return CredentialsExpired(what, hint=_POOL)
    what = f"cannot {action}: the federated login got no token from its identity provider: {_short(error)}"
    return CredentialsExpired(what, hint=f"renew that token, or correct credential_source in {_login_file()}")


def _answer_of(body: str) -> tuple[int, dict[str, Any]] | None:
    """Return the HTTP status in an answer of one of Google's APIs, and the answer; None if `body` is no such answer."""
    with contextlib.suppress(ValueError):
        found = json.loads(body)
        if isinstance(found, dict) and isinstance(found.get("error"), dict):
            return int(found["error"].get("code", 0)), found
    return None


def _login_file() -> Path:
    """Return the path of the file that has the login; it may not exist."""
    gcloud = os.environ.get("CLOUDSDK_CONFIG") or Path.home() / ".config" / "gcloud"
    return Path(os.environ.get(KEY_VARIABLE) or Path(gcloud) / "application_default_credentials.json")


def _login() -> dict[str, Any]:
    with contextlib.suppress(OSError, ValueError):
        found = json.loads(_login_file().read_text())
        if isinstance(found, dict):
            return found
    return {}


def _log_in_anew() -> str:
    """Return the advice to log in again, in the way in which the user logged in before."""
    login = _login()
    account = re.search(r"/serviceAccounts/([^/:]+):", str(login.get("service_account_impersonation_url", "")))
    if login.get("type") == _IMPERSONATED and account is not None:
        return LOG_IN_ANEW.replace("login`", f"login --impersonate-service-account={account[1]}`")
    if login.get("type") == _WORKFORCE:
        return LOG_IN_ANEW.replace("login`", "login --login-config=FILE`")
    return LOG_IN_ANEW


def _nobody(action: str) -> CredentialsRefused:
    named = os.environ.get(KEY_VARIABLE)
    if not named:
        return CredentialsRefused(f"cannot {action}: there is no login to Google Cloud on this machine", hint=LOG_IN)
    what = "no login" if os.path.exists(named) else "a missing file"
    return CredentialsRefused(
        f"cannot {action}: {KEY_VARIABLE} names {what}: {named}", hint=f"correct it, or unset {KEY_VARIABLE}"
    )


def _short(error: Exception) -> str:
    return str(error.args[0] if error.args else error)[:400]
