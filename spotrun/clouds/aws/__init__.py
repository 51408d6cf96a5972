"""Amazon EC2 by boto3. `AWS_ENDPOINT_URL` and similar variables name a server other than Amazon's."""

from __future__ import annotations
