"""Recognises, by their host names, the registries to which a cloud's identities can log in."""

from __future__ import annotations

import re
from collections.abc import Mapping

from spotrun.spec.image import Image

AWS, GOOGLE = "aws", "gcp"
ECR = re.compile(
    r"[0-9]{12}\.dkr[.-]ecr(?:-fips)?\.(?P<region>[a-z0-9-]+)\."
    r"(?:amazonaws\.(?:com|com\.cn|eu)|on\.(?:aws|amazonwebservices\.com\.cn))"
)
"""
The host names of ECR: https://docs.aws.amazon.com/AmazonECR/latest/userguide/Registries.html. Names with `dkr-ecr` in
place of `dkr.ecr` also have IPv6 addresses.
"""
ECR_PUBLIC = "public.ecr.aws"
"""AWS's public registry. A login raises its limit on pulls: https://docs.aws.amazon.com/AmazonECR/latest/public."""
ARTIFACT_REGISTRY = re.compile(r"[a-z0-9-]+-docker\.pkg\.dev|(?:(?:us|eu|asia)\.)?gcr\.io")
"""
The host names of Artifact Registry: https://cloud.google.com/artifact-registry/docs/docker/names. Some repositories
there are public.
"""
RIGHTS: Mapping[str, str] = {
    AWS: "grant ecr:GetAuthorizationToken, and ecr:BatchGetImage and ecr:GetDownloadUrlForLayer on that repository",
    GOOGLE: "grant roles/artifactregistry.reader on that repository",
}
"""The rights that are needed to pull an image from a cloud's registries, keyed by cloud."""


def cloud_behind(host: str) -> str:
    """Return the cloud whose identities can log in to `host`; "" for a registry with its own passwords."""
    if host == ECR_PUBLIC or ECR.fullmatch(host):
        return AWS
    return GOOGLE if ARTIFACT_REGISTRY.fullmatch(host) else ""


def region_of(host: str) -> str:
    found = ECR.fullmatch(host)
    assert found is not None
    return found["region"]


def repository_of(image: Image) -> str:
    """Return the name of the image's repository if the image is in a private ECR registry; otherwise ""."""
    return image.path if ECR.fullmatch(image.host) else ""
