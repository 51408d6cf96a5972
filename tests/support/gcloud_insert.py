"""What gcloud asks for when it is told to make an instance like ours: its arguments, and the body that it sends."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.support.repository import ROOT

RECORDED = ROOT / "tests" / "data" / "gcloud_insert.json"
ACCOUNT = "spotrun-0123456789@acme-training.iam.gserviceaccount.com"
_SPOT = "--provisioning-model=SPOT --maintenance-policy=TERMINATE"
_ON_DEMAND = "--provisioning-model=STANDARD --maintenance-policy=TERMINATE"


def arguments(name: str, image: str, *, spot: bool) -> list[str]:
    """The wishes of a launch in gcloud's words. It has none for the notice of two minutes."""
    project, _, family = image.removeprefix("projects/").partition("/global/images/family/")
    return f"""
        compute instances create {name} --zone=us-central1-a --machine-type=g2-standard-4
        --image-project={project} --image-family={family} --boot-disk-size=100GB --boot-disk-type=pd-balanced
        --subnet=spotrun {_SPOT if spot else _ON_DEMAND} --instance-termination-action=DELETE
        --max-run-duration=7200s --no-restart-on-failure --service-account={ACCOUNT} --scopes=cloud-platform
        --shielded-vtpm --shielded-integrity-monitoring --metadata=block-project-ssh-keys=true,enable-oslogin=TRUE
        --labels=spotrun-run=0123456789 --async --quiet
    """.split()


def recorded() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(RECORDED.read_text())
    return found


def plain(body: Any, url: str) -> Any:
    """The same with partial links, which Google takes as well: gcloud writes whom it asks into each."""
    text = json.dumps(body).replace(f"{url}/compute/v1/", "")
    return json.loads(text.replace("projects/acme-training/zones/", "zones/"))


def write(path: Path, bodies: dict[str, Any]) -> None:
    path.write_text(json.dumps(bodies, indent=2, sort_keys=True) + "\n")
