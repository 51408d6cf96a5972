"""A bucket of several runs, as the role of one run's instances reaches it: by the policies of infra/aws."""

from __future__ import annotations

from functools import cache
from typing import Any

from tests.support.aws_templates import ACCOUNT, REGION, Template
from tests.support.iam import Asked, decide
from tests.support.memory_store import MemoryStore

ARN = f"arn:aws:s3:::spotrun-{ACCOUNT}-{REGION}"
RUNS = "runs"


class NodeBucket:
    """
    `own` has the objects of the run whose node writes, and `others` all else of the bucket, by their whole keys. What
    is not allowed has no effect, as with S3.
    """

    def __init__(self, own: MemoryStore, others: MemoryStore, folder: str, run_uid: str) -> None:
        self._own, self._others, self._folder = own, others, f"{RUNS}/{folder}/"
        self._who = {
            "aws:PrincipalTag/spotrun:run": run_uid,
            "aws:PrincipalTag/spotrun:folder": f"{RUNS}/{folder}",
            "aws:SecureTransport": "true",
        }

    def put(self, key: str, data: bytes, *, if_absent: bool) -> bool:
        """Whether the call was allowed."""
        condition = {"s3:if-none-match": "*"} if if_absent else {}
        if not self._may("s3:PutObject", key, condition):
            return False
        store, name = self._place(key)
        if if_absent:
            store.put_if_absent(name, data)
        else:
            store.put_status(name, data)
        return True

    def delete(self, key: str) -> bool:
        if not self._may("s3:DeleteObject", key, {}):
            return False
        store, name = self._place(key)
        store.delete(name)
        return True

    def _may(self, action: str, key: str, condition: dict[str, str]) -> bool:
        return decide(_policies(), Asked(action, f"{ARN}/{key}", self._who | condition)).allowed

    def _place(self, key: str) -> tuple[MemoryStore, str]:
        if key.startswith(self._folder):
            return self._own, key.removeprefix(self._folder)
        return self._others, key


@cache
def _policies() -> tuple[dict[str, Any], ...]:
    """What the role of a run has: its one policy, and that of the bucket."""
    documents = Template("account").documents()
    return documents["spotrun-node"], documents["bucket"]
