"""Amazon EC2, through boto3. `AWS_ENDPOINT_URL` and similar variables select a server other than Amazon's."""

from __future__ import annotations
