"""
Builds the zip archive of the AWS function that takes care of nights.

    make function          # or: python -m spotrun.clouds.aws.function_zip build/function.zip

Of botocore's service definitions, the archive contains only those that spotrun needs: all of them take 100 MB.

https://docs.aws.amazon.com/lambda/latest/dg/python-package.html
"""

from __future__ import annotations

import os
import sys
from pathlib import Path, PurePosixPath

from spotrun.clouds.archive import FunctionRuntime, archive_for
from spotrun.clouds.nights import Function

SIZE_MAX_BYTES = 50 * 1000 * 1000
SERVICES = {
    *("ec2", "iam", "lambda", "pricing", "s3", "scheduler", "service-quotas", "ssm", "sts", "events"),
    "cloudformation",
}


def _calls(name: str) -> bool:
    """
    Return True if spotrun reads this file of a package. It reads all files except those of AWS services that it does
    not call.
    """
    parts = PurePosixPath(name).parts
    return parts[:2] != ("botocore", "data") or len(parts) == 3 or parts[2] in SERVICES


LAMBDA = FunctionRuntime(
    name="AWS Lambda",
    extra="aws",
    glibc_of={(3, 11): (2, 26), (3, 12): (2, 34), (3, 13): (2, 34)},
    size_max_bytes=SIZE_MAX_BYTES,
    calls=_calls,
    compiled=True,  # else each cold start compiles all modules: Lambda's folder is read-only
)
"""
The Lambda service. `glibc_of` has the Python versions that both Lambda and spotrun support, with the glibc version of
the Linux that Lambda runs them on. This is Amazon Linux 2023 with glibc 2.34, or Amazon Linux 2 for python3.11.
"""


def function_of_this_installation(*, portable: bool = True) -> Function:
    """Build the archive for Lambda from this installation. Raises the same errors as `archive_for`."""
    return archive_for(LAMBDA, portable=portable)


def main(path: str) -> None:
    function = function_of_this_installation()
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_bytes(function.data)
    print(f"{os.path.relpath(path)}: {len(function.data) / 1e6:.1f} MB, {function.python} on {function.machine}")


if __name__ == "__main__":
    main(sys.argv[1])
