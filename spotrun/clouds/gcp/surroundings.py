"""Finds a region's zones, and the image and subnetwork for a launch there."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import NamedTuple

from spotrun.clouds.error_kinds import BadImage, BadSurroundings, NotThere
from spotrun.clouds.gcp.calls import COMPUTE, Call, Google
from spotrun.clouds.gcp.error_codes import ProjectMissing

_NAME_IMAGE = "set gcp.image to another image: see `gcloud compute images list`"


class Image(NamedTuple):
    """
    A machine image. `path` names exactly this image, not its family, because the family may get a newer image.
    `made_on` is the day on which the image was made; "" if unknown.
    """

    path: str
    volume_gib: int
    made_on: str = ""


def zones_of(google: Google, project: str, region: str) -> list[str]:
    """
    Return the zones of a region that are in operation.

    Raises:
        BadSurroundings: the project cannot see this region.
    """
    rows = google.items("list zones", Call(COMPUTE, "GET", f"projects/{project}/zones"))
    of_region = {row["name"]: str(row.get("region", "")).rpartition("/")[2] for row in rows}
    if region not in of_region.values():
        raise no_such_region([region], of_region.values())
    return sorted(row["name"] for row in rows if of_region[row["name"]] == region and row.get("status", "UP") == "UP")


def no_such_region(named: Sequence[str], known: Iterable[str]) -> BadSurroundings:
    close = get_close_matches(named[0], set(known), 1)
    hint = f"did you mean {close[0]}?" if close else "`gcloud compute regions list` shows the names"
    return BadSurroundings(f"Google lists no region called {', '.join(named)}", hint=hint)


def find_image(google: Google, path: str) -> Image:
    """
    Return the named image, or the newest image of the named family.

    Raises:
        BadImage: the image is missing or obsolete.
        ProjectMissing: the image's project does not exist.
    """
    owner, name = path.split("/global/images/")
    try:
        row = google.ask(f"find the image {path}", Call(COMPUTE, "GET", f"{owner}/global/images/{name}"))
    except ProjectMissing as error:
        raise ProjectMissing(error.message, hint=_NAME_IMAGE) from error
    if row.get("deprecated", {}).get("state") in ("OBSOLETE", "DELETED"):
        raise BadImage(f"the image {path} is obsolete, and no launch can use it", hint=_NAME_IMAGE)
    made_on = str(row.get("creationTimestamp", "")).partition("T")[0]
    return Image(f"{owner}/global/images/{row['name']}", int(row.get("diskSizeGb", 0)), made_on)


def find_subnetwork(google: Google, project: str, region: str, name: str) -> str:
    """
    Return the path of a region's subnetwork. `name` is its name, or the path of a subnetwork in another project.

    Raises:
        BadSurroundings: the region has no subnetwork of this name.
        ProjectMissing: the subnetwork's project does not exist.
    """
    of, _, short = name.rpartition("/subnetworks/")
    path = f"{of.partition('/regions/')[0] or f'projects/{project}'}/regions/{region}/subnetworks/{short}"
    try:
        google.ask(f"find the subnetwork {short} in {region}", Call(COMPUTE, "GET", path))
    except ProjectMissing as error:
        correct = f"correct the project in gcp.subnetwork: projects/HOST/regions/{region}/subnetworks/{short}"
        raise ProjectMissing(error.message, hint=correct if of else error.hint) from error
    except NotThere as error:
        raise BadSurroundings(
            f"{region} has no subnetwork called {short}" + (f" in {of.partition('/regions/')[0]}" if of else ""),
            hint=f"correct gcp.subnetwork, or add {region} to the `subnets` of infra/gcp",
        ) from error
    return path
