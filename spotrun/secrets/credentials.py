"""What keys and tokens of well-known services look like."""

from __future__ import annotations

import re

WELL_KNOWN = r"""
      \b(?:gh[pousr]_|github_pat_|glpat-|hf_|sk-|pk_live_|sk_live_|rk_live_|npm_|pypi-|dop_v1_)[\w-]{8,}
    | \bxox[abeoprs]-[\w-]{8,}
    | \b(?:AKIA|ASIA)[A-Z0-9]{12,}
    | \bAIza[\w-]{20,}
    | \beyJ[\w-]{8,}\.[\w-]{8,}(?:\.[\w-]*)?
    | -----BEGIN[^-]*PRIVATE\ KEY-----.*?(?:-----END[^-]*-----|$)
    | (?<=hooks\.slack\.com/)[^\s$"']+
    | (?<=discord\.com/api/webhooks/)[^\s$"']+
    | (?<=://)[^\s/@$]+@
"""
"""A pattern for re.VERBOSE and re.DOTALL. It does not match a variable (`https://$USER@…`)."""

_PATTERN = re.compile(WELL_KNOWN, re.VERBOSE | re.DOTALL)


def holds_credential(text: str) -> bool:
    """Whether `text` contains a key, a token or the address of a webhook."""
    return _PATTERN.search(text) is not None
