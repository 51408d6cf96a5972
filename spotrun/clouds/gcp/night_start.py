"""
Fetches the archive of spotrun and runs it. This is the program that Cloud Run starts. It uses only the standard
library, because the container image has no other packages.

nights.py sends this file unchanged, as the argument of `python3 -c`, so no container image has to be built or stored.
https://cloud.google.com/run/docs/container-contract#metadata-server
https://cloud.google.com/storage/docs/json_api/v1/objects/get
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import runpy
import sys
import tempfile
import zipfile
from urllib.parse import quote
from urllib.request import Request, urlopen

TIMEOUT_S = 60.0


def main() -> None:
    bucket, _, name = os.environ["SPOTRUN_ARCHIVE"].partition("/")
    data = _asked(
        f"{_storage()}b/{quote(bucket, safe='')}/o/{quote(name, safe='')}?alt=media",
        {"Authorization": f"Bearer {_token()}"},
    )
    found = hashlib.sha256(data).hexdigest()
    if found != os.environ["SPOTRUN_ARCHIVE_SHA256"]:
        raise SystemExit(f"gs://{bucket}/{name} is not what was installed: sha256 {found}; install the night again")
    folder = tempfile.mkdtemp(prefix="spotrun-")
    zipfile.ZipFile(io.BytesIO(data)).extractall(folder)
    sys.path.insert(0, folder)
    os.environ["HOME"] = folder  # any user of the container may write there
    runpy.run_module("spotrun.night.server", run_name="__main__", alter_sys=True)


def _token() -> str:
    host = os.environ.get("GCE_METADATA_HOST") or "metadata.google.internal"
    place = f"http://{host}/computeMetadata/v1/instance/service-accounts/default/token"
    return str(json.loads(_asked(place, {"Metadata-Flavor": "Google"}))["access_token"])


def _storage() -> str:
    return os.environ.get("CLOUDSDK_API_ENDPOINT_OVERRIDES_STORAGE") or "https://storage.googleapis.com/storage/v1/"


def _asked(address: str, headers: dict[str, str]) -> bytes:
    asked = Request(address, headers=headers)  # noqa: S310  both addresses are of http
    with urlopen(asked, timeout=TIMEOUT_S) as answer:  # noqa: S310
        return bytes(answer.read())


if __name__ == "__main__":
    main()
