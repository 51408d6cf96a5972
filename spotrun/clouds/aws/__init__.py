"""Amazon EC2 by boto3. `AWS_ENDPOINT_URL` and its kin name another server than Amazon's."""

from __future__ import annotations
