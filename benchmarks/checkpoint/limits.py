"""
Measures the limits of the machine itself, for a state of that size: no copy, upload or download of it can be faster.

    python -m benchmarks.checkpoint.limits --bytes N --to s3://… --out FILE

Memory is copied warm, into shared memory; from the GPU, where there is one, into pinned memory. Objects of 16 MiB go
out two at a time, and come back in eight ranges at a time, by obstore, the fastest client known to us, or by boto3
where that is not installed.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Protocol

from benchmarks.checkpoint.places import is_bucket

PART_BYTES = 16 << 20
PUTS, GETS = 2, 8
REPEATS = 3
COPIES = 9


class Client(Protocol):
    def put(self, key: str, data: memoryview) -> None: ...

    def get(self, key: str, start: int, end: int) -> int: ...


class Obstore:
    name = "obstore"

    def __init__(self, uri: str) -> None:
        from obstore.store import from_url

        # It reads credentials and region from the variables of every AWS tool, and the endpoint as well.
        self._store = from_url(uri, client_options={"allow_http": True})

    def put(self, key: str, data: memoryview) -> None:
        import obstore

        obstore.put(self._store, key, data, use_multipart=False)

    def get(self, key: str, start: int, end: int) -> int:
        import obstore

        return len(obstore.get_range(self._store, key, start=start, end=end))


class Boto3:
    name = "boto3"

    def __init__(self, uri: str) -> None:
        import boto3
        from botocore.config import Config

        self._client = boto3.client("s3", config=Config(max_pool_connections=GETS))
        self._bucket, _, self._prefix = uri.removeprefix("s3://").partition("/")

    def put(self, key: str, data: memoryview) -> None:
        self._client.put_object(Bucket=self._bucket, Key=f"{self._prefix}/{key}", Body=bytes(data))

    def get(self, key: str, start: int, end: int) -> int:
        wanted = f"bytes={start}-{end - 1}"
        answer = self._client.get_object(Bucket=self._bucket, Key=f"{self._prefix}/{key}", Range=wanted)
        return len(answer["Body"].read())


class Folder:
    """A folder instead of a bucket."""

    name = "files"

    def __init__(self, uri: str) -> None:
        self._folder = Path(uri)

    def put(self, key: str, data: memoryview) -> None:
        path = self._folder / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)

    def get(self, key: str, start: int, end: int) -> int:
        with (self._folder / key).open("rb") as file:
            return len(os.pread(file.fileno(), end - start, start))


def client_of(uri: str) -> Client:
    """Return the fastest client of this store that is installed."""
    if not is_bucket(uri):
        return Folder(uri)
    return Obstore(uri) if find_spec("obstore") else Boto3(uri)


def random_bytes(size_bytes: int) -> memoryview:
    """Return bytes that no compression makes smaller: one random block, repeated."""
    return memoryview(os.urandom(PART_BYTES) * -(-size_bytes // PART_BYTES))[:size_bytes]


def copy_seconds(size_bytes: int) -> float:
    """Return the seconds of a copy that has been done before: no page is touched for the first time."""
    import torch

    if torch.cuda.is_available():
        return _copy_from_gpu_seconds(size_bytes)
    state = torch.ones(size_bytes // 4)
    memory = os.memfd_create("limits")
    os.ftruncate(memory, state.nbytes)
    arena = torch.frombuffer(mmap.mmap(memory, state.nbytes), dtype=torch.float32)
    return median([seconds(lambda: arena.copy_(state)) for _ in range(COPIES)][1:])


def _copy_from_gpu_seconds(size_bytes: int) -> float:
    import torch

    state, arena = torch.ones(size_bytes // 4, device="cuda"), torch.empty(size_bytes // 4, pin_memory=True)
    return median([seconds(lambda: arena.copy_(state)) for _ in range(COPIES)][1:])


def put_seconds(client: Client, data: memoryview) -> float:
    def put(start: int) -> None:
        client.put(f"limits/{start}", data[start : start + PART_BYTES])

    return median(seconds(lambda: _all(put, len(data), PUTS)) for _ in range(REPEATS))


def get_seconds(client: Client, size_bytes: int) -> float:
    """Return the seconds to get the objects that `put_seconds` has left there."""

    def get(start: int) -> None:
        wanted = min(PART_BYTES, size_bytes - start)
        assert client.get(f"limits/{start}", 0, wanted) == wanted

    return median(seconds(lambda: _all(get, size_bytes, GETS)) for _ in range(REPEATS))


def _all(work: Callable[[int], None], size_bytes: int, workers: int) -> None:
    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(work, range(0, size_bytes, PART_BYTES)))


def seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--bytes", type=int, required=True)
    parser.add_argument("--to", required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    client = client_of(args.to)
    data = random_bytes(args.bytes)
    found = {
        "client": client.name,
        "memcpy_s": copy_seconds(args.bytes),
        "put_s": put_seconds(client, data),
        "get_s": get_seconds(client, args.bytes),
    }
    args.out.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
