"""
What a call asks IAM for: the action, each resource with its condition keys, and what else the call leads to.

By https://docs.aws.amazon.com/service-authorization/latest/reference/list_amazonec2.html and its like for S3. A call or
a parameter that is not known here raises NotImplementedError: somebody has to look up what it takes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, parse_qsl, unquote, urlsplit

from tests.support.ec2_server import ACCOUNT, REGION
from tests.support.iam import Asked

Parameters = Mapping[str, str]
_WITHOUT_RESOURCES = {
    *("DescribeImages", "DescribeInstanceTypeOfferings", "DescribeInstanceTypes", "DescribeInstances"),
    *("DescribeLaunchTemplateVersions", "DescribeRouteTables", "GetEbsDefaultKmsKeyId"),
    *("DescribeSecurityGroups", "DescribeSpotInstanceRequests", "DescribeSpotPriceHistory", "DescribeSubnets"),
    "DescribeVpcs",
}
_LAUNCH_PARAMETERS = re.compile(
    r"Action|Version|ClientToken|DryRun|ImageId|InstanceType|MinCount|MaxCount|SubnetId|UserData|KeyName"
    r"|SecurityGroupId\.\d+|IamInstanceProfile\.(Name|Arn)|InstanceInitiatedShutdownBehavior"
    r"|MetadataOptions\.(HttpEndpoint|HttpTokens|HttpPutResponseHopLimit|InstanceMetadataTags)"
    r"|BlockDeviceMapping\.\d+\.(DeviceName|Ebs\.(VolumeSize|VolumeType|Encrypted|DeleteOnTermination))"
    r"|LaunchTemplate\.(LaunchTemplateId|Version)"
    r"|NetworkInterface\.\d+\.(NetworkInterfaceId|DeviceIndex)"
    r"|InstanceMarketOptions\.(MarketType|SpotOptions\.\w+)"
    r"|TagSpecification\.\d+\.(ResourceType|Tag\.\d+\.(Key|Value))"
)
_NO_TAGS: dict[str, str] = {}


@dataclass(frozen=True)
class Call:
    """One call as it came over the wire. `parameters` of JSON protocols are those of its body."""

    service: str
    action: str
    parameters: Parameters


@dataclass(frozen=True)
class Known:
    """
    What an account knows of the resources that are named in calls: their tags, by id, whose an image is, and the
    boundaries of roles by their names.
    """

    tags: Mapping[str, Mapping[str, str]]
    image_owner: str = "amazon"
    boundaries: Mapping[str, str] = field(default_factory=dict)


def read_call(method: str, url: str, headers: Mapping[str, str], body: bytes) -> Call:
    """The service is in the scope of the signature."""
    scope = re.search(r"Credential=[^/]+/\d+/[^/]+/([^/]+)/", headers.get("Authorization", ""))
    assert scope is not None, "a call that nobody has signed"
    service, target = scope[1], headers.get("X-Amz-Target", "")
    if service == "s3":
        return _read_s3(method, url, headers)
    if service == "scheduler":
        return _read_scheduler(method, url, body)
    if target:
        return Call(service, target.rpartition(".")[2], dict(_plain(json.loads(body))))
    asked = {name: values[0] for name, values in parse_qs(body.decode()).items()}
    return Call(service, asked.get("Action", ""), asked)


def _plain(body: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Texts, and lists of them as EC2's own protocol has them: Names.1, Names.2."""
    for name, value in body.items():
        if isinstance(value, str):
            yield name, value
        elif isinstance(value, list) and all(isinstance(each, str) for each in value):
            yield from ((f"{name}.{number}", each) for number, each in enumerate(value, 1))


def _read_scheduler(method: str, url: str, body: bytes) -> Call:
    """https://docs.aws.amazon.com/scheduler/latest/APIReference/API_CreateSchedule.html"""
    name = urlsplit(url).path.removeprefix("/schedules/")
    if method in ("GET", "DELETE"):
        (group,) = parse_qs(urlsplit(url).query)["groupName"]
        return Call("scheduler", f"{method.capitalize()}Schedule", {"Name": name, "GroupName": group})
    if method not in ("POST", "PUT"):
        raise NotImplementedError(f"scheduler {method}")
    asked = json.loads(body)
    facts = {"Name": name, "GroupName": asked["GroupName"], "RoleArn": asked["Target"]["RoleArn"]}
    return Call("scheduler", "CreateSchedule" if method == "POST" else "UpdateSchedule", facts)


def asked_by(call: Call, known: Known) -> Iterator[Asked]:
    """Everything that has to be allowed for a call to be done."""
    match call.service, call.action:
        case "ec2", action if action in _WITHOUT_RESOURCES:
            yield Asked(f"ec2:{action}")
        case "ec2", "RunInstances":
            yield from _launch(call.parameters, known)
        case "ec2", "TerminateInstances":
            for instance_id in _numbered(call.parameters, "InstanceId"):
                tags = known.tags.get(instance_id, _NO_TAGS)
                yield Asked("ec2:TerminateInstances", _arn("instance", instance_id), _tags_of("Resource", tags))
        case "ec2", "GetConsoleOutput":
            instance_id = call.parameters["InstanceId"]
            tags = known.tags.get(instance_id, _NO_TAGS)
            yield Asked("ec2:GetConsoleOutput", _arn("instance", instance_id), _tags_of("Resource", tags))
        case "ssm", "GetParameter":
            name = call.parameters["Name"]
            owner = "" if name.startswith("/aws/service/") else ACCOUNT
            yield Asked("ssm:GetParameter", f"arn:aws:ssm:{REGION}:{owner}:parameter{name}")
        case "ssm", "GetParameters":
            for name in _numbered(call.parameters, "Names"):
                yield Asked("ssm:GetParameters", f"arn:aws:ssm:{REGION}:{ACCOUNT}:parameter{name}")
        case "ssm", "DescribeParameters":
            yield Asked("ssm:DescribeParameters")
        case "scheduler", action:
            name = f"{call.parameters['GroupName']}/{call.parameters['Name']}"
            yield Asked(f"scheduler:{action}", f"arn:aws:scheduler:{REGION}:{ACCOUNT}:schedule/{name}")
            if action in ("CreateSchedule", "UpdateSchedule"):
                role = call.parameters["RoleArn"]
                yield Asked("iam:PassRole", role, {"iam:PassedToService": "scheduler.amazonaws.com"})
        case "kms", "DescribeKey" | "GetKeyPolicy" | "ListGrants":
            yield Asked(f"kms:{call.action}", call.parameters["KeyId"])
        case "ecr", "GetAuthorizationToken":
            yield Asked("ecr:GetAuthorizationToken")
        case "events", "PutRule":
            yield Asked("events:PutRule", f"arn:aws:events:{REGION}:{ACCOUNT}:rule/{call.parameters['Name']}")
        case "pricing", "GetProducts":
            yield Asked("pricing:GetProducts")
        case "servicequotas", "GetServiceQuota":
            yield Asked("servicequotas:GetServiceQuota")
        case "iam", "ListRoles":
            yield Asked("iam:ListRoles")
        case "iam", "CreateServiceLinkedRole":
            service = call.parameters["AWSServiceName"]
            role = f"arn:aws:iam::{ACCOUNT}:role/aws-service-role/{service}/AWSServiceRoleForEC2Spot"
            yield Asked("iam:CreateServiceLinkedRole", role, {"iam:AWSServiceName": service})
        case "iam", action:
            yield from _identity(action, call.parameters, known)
        case "sts", "GetCallerIdentity":
            return  # anybody may ask who they are, whatever a policy says
        case "s3", action:
            yield Asked(f"s3:{action}", call.parameters["arn"], _s3_context(call.parameters))
        case _:
            raise NotImplementedError(f"{call.service}:{call.action}")


# -- EC2 -------------------------------------------------------------------------------------------------------------


def _launch(parameters: Parameters, known: Known) -> Iterator[Asked]:
    strange = [name for name in parameters if not _LAUNCH_PARAMETERS.fullmatch(name)]
    if strange:
        raise NotImplementedError(f"RunInstances with {strange}")
    tagged = _tag_specifications(parameters)
    for kind, context in _launched(parameters, tagged):
        yield Asked("ec2:RunInstances", _arn(kind, "*"), context)
    yield from _named(parameters, known)
    for kind, tags in tagged.items():
        context = _tags_of("Request", tags) | {"ec2:CreateAction": "RunInstances", "aws:TagKeys": tuple(tags)}
        yield Asked("ec2:CreateTags", _arn(kind, "*"), context)
    profile = _profile(parameters)
    if profile:  # the role of a profile of ours is named as the profile is
        role = profile.replace(":instance-profile/", ":role/")
        yield Asked("iam:PassRole", role, {"iam:PassedToService": "ec2.amazonaws.com"})


def _launched(
    parameters: Parameters, tagged: Mapping[str, Mapping[str, str]]
) -> Iterator[tuple[str, dict[str, str | tuple[str, ...]]]]:
    """What a launch makes, with what the request says of it."""
    metadata = {
        "ec2:MetadataHttpTokens": parameters.get("MetadataOptions.HttpTokens"),
        "ec2:MetadataHttpPutResponseHopLimit": parameters.get("MetadataOptions.HttpPutResponseHopLimit"),
        "ec2:InstanceProfile": _profile(parameters),
    }
    told = {key: text for key, text in metadata.items() if text is not None}
    yield "instance", _tags_of("Request", tagged.get("instance", _NO_TAGS)) | told
    encrypted = {"ec2:Encrypted": parameters.get("BlockDeviceMapping.1.Ebs.Encrypted", "false")}
    yield "volume", _tags_of("Request", tagged.get("volume", _NO_TAGS)) | encrypted
    if not _interfaces(parameters):
        yield "network-interface", {"ec2:NetworkInterfaceID": "*"}  # as decoded refusals of EC2 show it
    if parameters.get("InstanceMarketOptions.MarketType") == "spot":
        yield "spot-instances-request", _tags_of("Request", tagged.get("spot-instances-request", _NO_TAGS))


def _named(parameters: Parameters, known: Known) -> Iterator[Asked]:
    """What is there already and a launch makes use of."""
    image = f"arn:aws:ec2:{REGION}::image/{parameters['ImageId']}"
    yield Asked("ec2:RunInstances", image, {"ec2:Owner": known.image_owner})
    for interface in _interfaces(parameters):
        told = {"ec2:NetworkInterfaceID": interface}
        yield Asked("ec2:RunInstances", _arn("network-interface", interface), told)
    if "SubnetId" in parameters:
        yield Asked("ec2:RunInstances", _arn("subnet", parameters["SubnetId"]))
    for group in _numbered(parameters, "SecurityGroupId"):
        tags = known.tags.get(group, _NO_TAGS)
        yield Asked("ec2:RunInstances", _arn("security-group", group), _tags_of("Resource", tags))
    if (template := parameters.get("LaunchTemplate.LaunchTemplateId")) is not None:
        tags = known.tags.get(template, _NO_TAGS)
        yield Asked("ec2:RunInstances", _arn("launch-template", template), _tags_of("Resource", tags))
    if "KeyName" in parameters:
        yield Asked("ec2:RunInstances", _arn("key-pair", parameters["KeyName"]))


def _interfaces(parameters: Parameters) -> list[str]:
    """Those that exist already."""
    return [text for key, text in parameters.items() if key.endswith(".NetworkInterfaceId")]


def _tag_specifications(parameters: Parameters) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {}
    for name, kind in parameters.items():
        if name.endswith(".ResourceType"):
            prefix = name.removesuffix("ResourceType") + "Tag."
            keys = {key: text for key, text in parameters.items() if key.startswith(prefix) and key.endswith(".Key")}
            found[kind] = {text: parameters.get(key.removesuffix("Key") + "Value", "") for key, text in keys.items()}
    return found


def _profile(parameters: Parameters) -> str | None:
    if "IamInstanceProfile.Arn" in parameters:
        return parameters["IamInstanceProfile.Arn"]
    name = parameters.get("IamInstanceProfile.Name")
    return None if name is None else f"arn:aws:iam::{ACCOUNT}:instance-profile/{name}"


def _numbered(parameters: Parameters, name: str) -> list[str]:
    return [text for key, text in parameters.items() if re.fullmatch(rf"{name}\.\d+", key)]


def _tags_of(whose: str, tags: Mapping[str, str]) -> dict[str, str | tuple[str, ...]]:
    return {f"aws:{whose}Tag/{key}": text for key, text in tags.items()}


def _arn(kind: str, name: str) -> str:
    return f"arn:aws:ec2:{REGION}:{ACCOUNT}:{kind}/{name}"


# -- IAM -------------------------------------------------------------------------------------------------------------

_OF_ROLES = {"CreateRole", "GetRole", "DeleteRole", "AttachRolePolicy", "DetachRolePolicy"}
_OF_PROFILES = {
    *("CreateInstanceProfile", "GetInstanceProfile", "DeleteInstanceProfile"),
    *("AddRoleToInstanceProfile", "RemoveRoleFromInstanceProfile"),
}


def _identity(action: str, parameters: Parameters, known: Known) -> Iterator[Asked]:
    """https://docs.aws.amazon.com/service-authorization/latest/reference/list_awsidentityandaccessmanagementiam.html"""
    if "Path" in parameters:
        raise NotImplementedError(f"{action} with a path")
    role = f"arn:aws:iam::{ACCOUNT}:role/{parameters.get('RoleName', '')}"
    profile = f"arn:aws:iam::{ACCOUNT}:instance-profile/{parameters.get('InstanceProfileName', '')}"
    if action in _OF_ROLES:
        yield Asked(f"iam:{action}", role, _role_context(action, parameters, known))
    elif action in _OF_PROFILES:
        yield Asked(f"iam:{action}", profile)
    elif action == "SimulatePrincipalPolicy":
        yield Asked(f"iam:{action}", parameters["PolicySourceArn"])
    elif action != "TagRole":
        raise NotImplementedError(f"iam:{action}")
    if action == "AddRoleToInstanceProfile":
        yield Asked("iam:PassRole", role, {"iam:PassedToService": "ec2.amazonaws.com"})
    tags = {parameters[key]: text for key, text in _tag_pairs(parameters)}
    if tags:
        resource, verb = (role, "TagRole") if "RoleName" in parameters else (profile, "TagInstanceProfile")
        yield Asked(f"iam:{verb}", resource, _tags_of("Request", tags) | {"aws:TagKeys": tuple(tags)})


def _role_context(action: str, parameters: Parameters, known: Known) -> dict[str, str | tuple[str, ...]]:
    """The boundary that a role is to have, or that it has; and the policy that is attached or taken."""
    asked = parameters.get("PermissionsBoundary")
    boundary = asked if action == "CreateRole" else known.boundaries.get(parameters["RoleName"])
    told = {"iam:PermissionsBoundary": boundary, "iam:PolicyARN": parameters.get("PolicyArn")}
    return {key: text for key, text in told.items() if text is not None}


def _tag_pairs(parameters: Parameters) -> Iterator[tuple[str, str]]:
    for key in parameters:
        if re.fullmatch(r"Tags\.member\.\d+\.Key", key):
            yield key, parameters.get(key.removesuffix("Key") + "Value", "")


# -- S3 --------------------------------------------------------------------------------------------------------------

_OF_OBJECTS = {"GET": "GetObject", "HEAD": "GetObject", "PUT": "PutObject", "DELETE": "DeleteObject"}
_OF_BUCKETS = {
    "list-type": "ListBucket",
    "policy": "GetBucketPolicy",
    "versioning": "GetBucketVersioning",
    "lifecycle": "GetLifecycleConfiguration",
}


def _read_s3(method: str, url: str, headers: Mapping[str, str]) -> Call:
    """With the bucket in the path, as endpoints that are no Amazon's have it."""
    parts = urlsplit(url)
    bucket, _, key = unquote(parts.path).lstrip("/").partition("/")
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    arn = f"arn:aws:s3:::{bucket}/{key}" if key else f"arn:aws:s3:::{bucket}"
    condition = {"if-none-match": headers["If-None-Match"]} if "If-None-Match" in headers else {}
    return Call("s3", _s3_action(method, key, query), {"arn": arn, **condition})


def _s3_action(method: str, key: str, query: Mapping[str, Any]) -> str:
    if key and not query.keys() - {"x-id"}:
        return _OF_OBJECTS[method]
    if not key and method == "HEAD":
        return "ListBucket"
    for name, action in _OF_BUCKETS.items():
        if not key and method == "GET" and name in query:
            return action
    raise NotImplementedError(f"{method} of {key!r} with {query}")


def _s3_context(parameters: Parameters) -> dict[str, str | tuple[str, ...]]:
    secure: dict[str, str | tuple[str, ...]] = {"aws:SecureTransport": "true"}
    return secure | ({"s3:if-none-match": parameters["if-none-match"]} if "if-none-match" in parameters else {})
