"""
Obtains logins to Google's image registries with this machine's Google login. On an instance, that is its service
account.

The password is an access token that is valid for an hour:
https://cloud.google.com/artifact-registry/docs/docker/authentication#token
"""

from __future__ import annotations

import google.auth
from google.auth import exceptions as auth
from google.auth.transport.requests import Request

from spotrun.container.hosts import GOOGLE
from spotrun.container.registry import Credentials, RegistryUnavailable

USERNAME = "oauth2accesstoken"
SCOPE = "https://www.googleapis.com/auth/cloud-platform"


def login(host: str) -> Credentials | None:
    """
    Return a login to `host`. If this machine has no valid Google login, return None. The image is then pulled without a
    login, which some repositories allow.

    Raises:
        RegistryUnavailable: Google does not issue a token at the moment.
    """
    try:
        credentials, _ = google.auth.default(scopes=[SCOPE])
        if not credentials.valid:
            credentials.refresh(Request())  # type: ignore[no-untyped-call]
    except auth.DefaultCredentialsError:
        return None
    except auth.GoogleAuthError as error:
        if isinstance(error, auth.TransportError) or error.retryable:
            raise RegistryUnavailable(f"Google issues no token for {host}: {error}") from error
        return None
    return Credentials(USERNAME, str(credentials.token), GOOGLE)
