"""Which registries belong to a cloud, by their host names: an identity of that cloud may log in to them."""

from __future__ import annotations

import re
from collections.abc import Mapping

from spotrun.spec.image import Image

AWS, GOOGLE = "aws", "gcp"
ECR = re.compile(
    r"[0-9]{12}\.dkr[.-]ecr(?:-fips)?\.(?P<region>[a-z0-9-]+)\."
    r"(?:amazonaws\.(?:com|com\.cn|eu)|on\.(?:aws|amazonwebservices\.com\.cn))"
)
"""https://docs.aws.amazon.com/AmazonECR/latest/userguide/Registries.html; with a dash it has addresses of IPv6 too."""
ECR_PUBLIC = "public.ecr.aws"
"""Lets everybody pull, and who has logged in pull more: https://docs.aws.amazon.com/AmazonECR/latest/public."""
ARTIFACT_REGISTRY = re.compile(r"[a-z0-9-]+-docker\.pkg\.dev|(?:(?:us|eu|asia)\.)?gcr\.io")
"""https://cloud.google.com/artifact-registry/docs/docker/names; some of its repositories are for everybody."""
RIGHTS: Mapping[str, str] = {
    AWS: "grant ecr:GetAuthorizationToken, and ecr:BatchGetImage and ecr:GetDownloadUrlForLayer on that repository",
    GOOGLE: "grant roles/artifactregistry.reader on that repository",
}
"""What whoever pulls from there needs."""


def cloud_of(host: str) -> str:
    """The cloud whose identities log in there; "" if a registry wants a password of its own."""
    if host == ECR_PUBLIC or ECR.fullmatch(host):
        return AWS
    return GOOGLE if ARTIFACT_REGISTRY.fullmatch(host) else ""


def region_of(host: str) -> str:
    """Of a registry of ECR."""
    found = ECR.fullmatch(host)
    assert found is not None
    return found["region"]


def repository_of(image: Image) -> str:
    """The name of its repository, where that is one of ECR's that are not for everybody; else ""."""
    return image.path if ECR.fullmatch(image.host) else ""
