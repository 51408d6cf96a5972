"""
A session of the AWS SDK that shares assumed roles with `aws`.

A profile may name a role that needs an MFA code. Without a cache, each client that reads the profile asks for a new
code. `aws` stores the assumed roles in a cache below the user's home, so one code is enough for all of its commands:
https://docs.aws.amazon.com/cli/latest/userguide/cli-configure-role.html
"""

from __future__ import annotations

import getpass
import sys
from pathlib import Path
from typing import Any

from botocore.credentials import AssumeRoleProvider
from botocore.exceptions import RefreshWithMFAUnsupportedError
from botocore.session import Session
from botocore.utils import JSONFileCache

CACHE = "~/.aws/cli/cache"
NEW_CODE = "type `aws sts get-caller-identity`: it asks for a new code, and the role that it assumes is used here too"
_asked: list[str] = []
"""The prompts for codes that this process has shown."""


class RoleSession(Session):  # type: ignore[misc]
    """
    A session whose assumed roles are in the cache of `aws`. It asks for one MFA code at most in a process, and only a
    user at a terminal. After that, the user renews the role with `aws`.
    """

    def get_credentials(self) -> Any:
        provider = self.get_component("credential_provider").get_provider(AssumeRoleProvider.METHOD)
        provider.cache = JSONFileCache(str(Path(CACHE).expanduser()))
        provider._prompter = _ask_once
        return super().get_credentials()


def _ask_once(prompt: str) -> str:
    if _asked or not sys.stdin.isatty():
        raise RefreshWithMFAUnsupportedError
    _asked.append(prompt)
    return getpass.getpass(prompt)
