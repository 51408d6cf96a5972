"""Amazon EC2, through boto3. `AWS_ENDPOINT_URL` and similar variables name a server to use instead of Amazon's."""

from __future__ import annotations
