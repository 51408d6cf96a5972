"""The CloudFormation templates of infra/aws with their values filled in, as CloudFormation would deploy them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from tests.support.repository import ROOT

ACCOUNT, REGION = "123456789012", "us-east-1"
FOLDER = ROOT / "infra" / "aws"
NAMES = ("account", "region", "night")
_PSEUDO = {
    "AWS::AccountId": ACCOUNT,
    "AWS::Region": REGION,
    "AWS::URLSuffix": "amazonaws.com",
    "AWS::NoValue": "",
}
_NAMED_BY = {
    "AWS::S3::Bucket": "BucketName",
    "AWS::IAM::Role": "RoleName",
    "AWS::IAM::ManagedPolicy": "ManagedPolicyName",
    "AWS::Lambda::Function": "FunctionName",
    "AWS::Scheduler::ScheduleGroup": "Name",
    "AWS::Events::Rule": "Name",
}
_ARNS = {
    "AWS::S3::Bucket": "arn:aws:s3:::{}",
    "AWS::IAM::Role": f"arn:aws:iam::{ACCOUNT}:role/{{}}",
    "AWS::IAM::ManagedPolicy": f"arn:aws:iam::{ACCOUNT}:policy/{{}}",
    "AWS::Lambda::Function": f"arn:aws:lambda:{REGION}:{ACCOUNT}:function:{{}}",
    "AWS::Scheduler::ScheduleGroup": "{}",
    "AWS::Events::Rule": f"arn:aws:events:{REGION}:{ACCOUNT}:rule/{{}}",
}
_REF_IS_ARN = {"AWS::IAM::ManagedPolicy"}


def path_of(name: str) -> Path:
    return FOLDER / f"{name}.yaml"


class Template:
    """One template, with `parameters` for those that are not to have their defaults; as in a partition of AWS's."""

    def __init__(self, name: str, partition: str = "aws", **parameters: str) -> None:
        self._pseudo = _PSEUDO | {"AWS::Partition": partition}
        self.body: dict[str, Any] = yaml.load(path_of(name).read_text(), _Loader)
        self.parameters: dict[str, str] = {
            name: parameters.get(name, facts.get("Default", "")) for name, facts in self.body["Parameters"].items()
        }
        assert set(parameters) <= set(self.parameters), parameters

    def properties(self, resource: str) -> dict[str, Any]:
        found: dict[str, Any] = self._filled(self.body["Resources"][resource]["Properties"])
        return found

    def documents(self) -> dict[str, dict[str, Any]]:
        """Every policy by its name: those of roles as ROLE/POLICY, trust as ROLE/trust, a bucket's as bucket."""
        found = {}
        for name, resource in self.body["Resources"].items():
            if "Condition" in resource and not self._holds({"Condition": resource["Condition"]}):
                continue
            facts = self._filled(resource["Properties"])
            match resource["Type"]:
                case "AWS::IAM::ManagedPolicy":
                    found[facts["ManagedPolicyName"]] = facts["PolicyDocument"]
                case "AWS::IAM::Role":
                    found[f"{facts['RoleName']}/trust"] = facts["AssumeRolePolicyDocument"]
                    for policy in facts["Policies"]:
                        found[f"{facts['RoleName']}/{policy['PolicyName']}"] = policy["PolicyDocument"]
                case "AWS::IAM::Policy":
                    found[facts["PolicyName"]] = facts["PolicyDocument"]
                case "AWS::S3::BucketPolicy":
                    found["bucket"] = facts["PolicyDocument"]
                case _:
                    assert "PolicyDocument" not in facts, name
        return found

    def _filled(self, value: Any) -> Any:
        if isinstance(value, list):
            return [found for each in value if (found := self._filled(each)) != ""]
        if not isinstance(value, dict):
            return value
        match list(value):
            case ["Ref"] if self._is_list(value["Ref"]):
                return self.parameters[value["Ref"]].split(",")
            case ["Fn::Join"]:
                between, parts = value["Fn::Join"]
                return between.join(self._filled(parts))
            case ["Ref"]:
                return self._named(value["Ref"])
            case ["Fn::GetAtt"]:
                return self._named(value["Fn::GetAtt"])
            case ["Fn::Sub"]:
                text = re.sub(r"\$\{([^!}][^}]*)\}", lambda found: self._named(found[1]), value["Fn::Sub"])
                return text.replace("${!", "${")
            case ["Fn::If"]:
                condition, then, otherwise = value["Fn::If"]
                return self._filled(then if self._holds({"Condition": condition}) else otherwise)
        return {key: self._filled(each) for key, each in value.items()}

    def _is_list(self, name: str) -> bool:
        """One of several: moto has a list of one as that one, and IAM takes both for the same."""
        kind = self.body["Parameters"].get(name, {}).get("Type")
        return kind == "CommaDelimitedList" and "," in self.parameters[name]

    def _holds(self, condition: dict[str, Any]) -> bool:
        match condition:
            case {"Condition": name}:
                return self._holds(self.body["Conditions"][name])
            case {"Fn::Not": [inner]}:
                return not self._holds(inner)
            case {"Fn::Equals": [one, other]}:
                return bool(self._filled(one) == self._filled(other))
        raise NotImplementedError(condition)

    def _named(self, name: str) -> str:
        if name in self._pseudo:
            return self._pseudo[name]
        if name in self.parameters:
            return self.parameters[name]
        resource, _, attribute = name.partition(".")
        kind = self.body["Resources"][resource]["Type"]
        own = self._filled(self.body["Resources"][resource]["Properties"][_NAMED_BY[kind]])
        if attribute not in ("", "Arn"):
            raise NotImplementedError(name)
        return _ARNS[kind].format(own) if attribute or kind in _REF_IS_ARN else own


class _Loader(yaml.SafeLoader):  # type: ignore[misc]
    """YAML in which `!Sub x` is {"Fn::Sub": "x"}."""


def _tagged(loader: _Loader, tag: str, node: yaml.Node) -> dict[str, Any]:
    name = tag if tag in ("Ref", "Condition") else f"Fn::{tag}"
    if isinstance(node, yaml.SequenceNode):
        return {name: loader.construct_sequence(node, deep=True)}
    return {name: loader.construct_scalar(node)}


_Loader.add_multi_constructor("!", _tagged)
