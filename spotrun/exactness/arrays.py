"""
Splits an array into rows and columns, which are then compared separately. A column may differ between any two
trainings, for example because it contains times of day. The other columns can still be compared.
"""

from __future__ import annotations

import ast
import re
import struct
from collections.abc import Iterator, Sequence
from hashlib import sha256
from math import prod

NPY = b"\x93NUMPY"
SPLIT_MAX = 32
"""Maximum number of rows, or of columns, that are compared separately."""
ITEMS_MAX = 1 << 18
"""
Maximum items of an array that is compared by rows and columns. A larger array is compared as a whole, by one digest.
"""
VALUES = ", its values"
"""Suffix of a part's name if the part is a whole array."""
_ITEM = re.compile(r"[<>|=]?[a-zA-Z?](\d+)?")


def slices(shape: Sequence[int]) -> Iterator[tuple[str, tuple[int | None, int | None]]]:
    """
    Yield the parts into which an array is split, as pairs of a name and a position. The position is (row, None) for a
    row, (None, column) for a column, and (None, None) for the whole array.

    An array with more than SPLIT_MAX rows is not split into rows, and one with more than SPLIT_MAX columns is not split
    into columns. An array that is not split at all has one part, named VALUES. In an array with more than two
    dimensions, the rows are the items of the first dimension, and the columns those of the last.
    """
    found: list[tuple[str, tuple[int | None, int | None]]] = []
    if shape and 0 < prod(shape) <= ITEMS_MAX:
        if shape[0] <= SPLIT_MAX:
            found += [(f"[{row}]", (row, None)) for row in range(shape[0])]
        if len(shape) > 1 and shape[-1] <= SPLIT_MAX:
            found += [(f"[:, column {column}]", (None, column)) for column in range(shape[-1])]
    yield from found or [(VALUES, (None, None))]


def parts_of_array(path: str, kind: str, shape: Sequence[int], content: bytes) -> Iterator[tuple[str, str]]:
    """Yield an array's kind and shape, then its parts. `content` has the array's items in C order."""
    yield path, f"{kind} {tuple(shape)}"
    count = prod(shape)
    size = len(content) // count if count else 0
    for name, (row, column) in slices(shape):
        if row is not None:
            step = len(content) // shape[0]
            part = content[row * step : (row + 1) * step]
        elif column is not None:
            part = b"".join(content[at : at + size] for at in range(column * size, len(content), shape[-1] * size))
        else:
            part = content
        yield f"{path}{name}", sha256(part).hexdigest()


def parts_of_npy(content: bytes) -> Iterator[tuple[str, str]]:
    """
    Yield the parts of a file that numpy.save wrote.

    Raises:
        ValueError: numpy.save did not write the file, or its array contains objects or records.
    """
    try:
        size, begin = (
            struct.unpack_from("<H" if content[6] == 1 else "<I", content, 8)[0],
            10 if content[6] == 1 else 12,
        )
        head = ast.literal_eval(content[begin : begin + size].decode("latin-1").strip())
        kind, shape, is_fortran = head["descr"], head["shape"], head["fortran_order"]
    except (struct.error, IndexError, SyntaxError, KeyError, TypeError) as error:
        raise ValueError(f"not a file from numpy.save: {error}") from error
    data = content[begin + size :]
    if not isinstance(kind, str) or item_bytes(kind) * prod(shape) != len(data):
        raise ValueError("an array of objects or of records")
    yield from parts_of_array("", kind, *in_order_of_c(shape, data, is_fortran))


def in_order_of_c(shape: Sequence[int], content: bytes, is_fortran: bool) -> tuple[Sequence[int], bytes]:
    """
    Return the shape and the bytes of an array in C order. If the array is in Fortran order, return its transpose
    instead, which in C order has the same bytes and the reversed shape.
    """
    return (tuple(reversed(shape)) if is_fortran else shape), content


def item_bytes(kind: str) -> int:
    """Return the number of bytes per item of a simple numpy type, such as `<f8`; 0 for any other type."""
    found = _ITEM.fullmatch(kind)
    return (int(found[1] or 1) * (4 if "U" in kind else 1)) if found is not None and "O" not in kind else 0
