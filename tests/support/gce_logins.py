"""
Who is asking: tokens, and keys of service accounts with which google-auth gets one.

https://developers.google.com/identity/protocols/oauth2/service-account#httprest
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from urllib.parse import parse_qs

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from tests.support.gce_answers import Json, Refusal
from tests.support.gce_catalog import PROJECT

TOKEN_PATH = "/token"
TOKEN = "ya29.c.a-token_of.tests"
"""Which the metadata server of tests gives to whoever asks."""
RUNNER = f"runner@{PROJECT}.iam.gserviceaccount.com"
LIFE_S = 3599


@dataclass(eq=False)
class InvalidGrant(Refusal):
    """As the login says it, in a form of its own."""

    @property
    def body(self) -> Json:
        return {"error": self.reason, "error_description": self.message}


class Logins:
    """`tokens` are principals by token; those in `expired` are told so. Principals in `refused` get none."""

    def __init__(self) -> None:
        self.tokens = {TOKEN: RUNNER}
        self.expired: set[str] = set()
        self.refused: set[str] = set()

    def token(self, form: bytes) -> Json:
        """
        For the signed claim of a service account. Nobody here looks at the signature.

        Raises:
            InvalidGrant: this account is not let in.
        """
        (assertion,) = parse_qs(form.decode())["assertion"]
        claim = assertion.split(".")[1]
        who = json.loads(base64.urlsafe_b64decode(claim + "=" * (-len(claim) % 4)))["iss"]
        if who in self.refused:
            raise InvalidGrant(400, "invalid_grant", "Invalid JWT Signature.")
        token = f"ya29.c.of-{who}"
        self.tokens[token] = who
        return {"access_token": token, "expires_in": LIFE_S, "token_type": "Bearer"}

    def key(self, path: Path, who: str, url: str) -> Path:
        """For GOOGLE_APPLICATION_CREDENTIALS: with it google-auth logs in as this account, at this server."""
        told = {
            "type": "service_account",
            "project_id": PROJECT,
            "client_email": who,
            "private_key_id": "1",
            "private_key": _private_key(),
            "token_uri": f"{url}{TOKEN_PATH}",
        }
        path.write_text(json.dumps(told))
        return path


@cache
def _private_key() -> str:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    form = serialization.PrivateFormat.PKCS8
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()).decode()
