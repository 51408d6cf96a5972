"""
Memory and the server's files, used once before a block is timed.

    python -m benchmarks.checkpoint.touch --bytes N --to s3://…

A virtual machine's first use of its memory takes seconds a GB, and a server's first object in a place makes files. The
first variant would pay for both.
"""

from __future__ import annotations

import argparse
import mmap

from benchmarks.checkpoint.limits import client_of, put_seconds, random_bytes

TIMES_STATE = 4
"""Multiple of the size of the state: weights, moments and gradients, and an arena."""
FREE_SHARE = 0.5
"""Maximum share of the free memory: other processes may need the rest meanwhile."""


def touch_memory(size_bytes: int) -> int:
    """Touch one byte in each page of `size_bytes` of memory, and give all back; return the number of pages."""
    with mmap.mmap(-1, size_bytes) as memory:
        pages = range(0, size_bytes, mmap.PAGESIZE)
        for start in pages:
            memory[start] = 1
        return len(pages)


def main() -> None:
    import psutil

    parser = argparse.ArgumentParser()
    parser.add_argument("--bytes", type=int, required=True)
    parser.add_argument("--to", required=True)
    args = parser.parse_args()
    touch_memory(min(TIMES_STATE * args.bytes, int(FREE_SHARE * psutil.virtual_memory().available)))
    put_seconds(client_of(args.to), random_bytes(args.bytes))


if __name__ == "__main__":
    main()
