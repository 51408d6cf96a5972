"""
Reads the rows of a bill's file one after another. The file may be CSV, tab-separated, JSON (an array, or one object per
line) or Parquet; all but Parquet may be gzipped. Only a JSON array is read into memory all at once.

Different exports write column names differently (`lineItem/UsageType`, `line_item_usage_type`, `service.description`).
All are converted to the form `line_item_usage_type`.
"""

from __future__ import annotations

import csv
import gzip
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from glob import glob
from pathlib import Path
from typing import Any, TextIO, cast

from spotrun.errors import SpecInvalid, SpotrunError, needs_extra
from spotrun.offering import AMOUNT_MAX
from spotrun.units import count_of, parse_json, shown

_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_GZIP = b"\x1f\x8b"
_PARQUET = b"PAR1"
NAME_IT = "name the file that the cloud exported"
EXPORT_ANEW = "export the file again: this one is damaged, or was edited"


class BillRow:
    """One row of a bill. Error messages name its file and line."""

    def __init__(self, path: Path, line: int, columns: Mapping[str, Any]) -> None:
        self.path = path
        self.line = line
        self._columns = columns

    def refuse(self, message: str, hint: str) -> SpotrunError:
        return SpecInvalid(f"{self.path}:{self.line}: {message}", hint=hint)

    @property
    def content(self) -> str:
        """The names and values of all columns as one string, without the row's file and line number."""
        return repr(sorted(self._columns.items()))

    def require(self, columns: Sequence[str], report: str) -> None:
        """
        Check that the row has `columns`. `report` names the kind of file that was expected.

        Raises:
            SpecInvalid: some columns are missing. If more than half are missing, the message says that the file is not
                a `report`.
        """
        missing = [each for each in columns if each not in self._columns]
        if 2 * len(missing) > len(columns):
            message = f"{self.path} is no {report}: it does not have the columns {', '.join(missing)}"
            raise SpecInvalid(message, hint=NAME_IT)
        if missing:
            named = f"column {missing[0]}" if len(missing) == 1 else f"columns {', '.join(missing)}"
            raise self.refuse(f"has no {named}", f"export it with {', '.join(missing)}")

    def raw(self, column: str) -> Any:
        """
        Return the value of a column as it is in the file.

        Raises:
            SpecInvalid: the row does not have the column.
        """
        if column not in self._columns:
            raise self.refuse(f"has no column {column}", f"export it with {column}")
        return self._columns[column]

    def text(self, column: str, *, optional: bool = False) -> str:
        value = self._columns.get(column) if optional else self.raw(column)
        return "" if value is None else str(value)

    def amount(self, column: str, unit: str = "") -> Decimal:
        """Return the number in a column, exactly as it is in the file. The file may add `unit`, which is left out."""
        text = self.text(column).removesuffix(unit).strip()
        try:
            number = Decimal(text)
        except InvalidOperation:
            number = Decimal("NaN")
        if not number.is_finite() or abs(number) > AMOUNT_MAX:
            raise self.refuse(f"{column} is {shown(text)!r}, which is not an amount", EXPORT_ANEW)
        return number

    def moment(self, column: str) -> datetime:
        """Return a time in UTC. A time without a time zone counts as UTC, because all these exports use UTC."""
        value = self.raw(column)
        if not isinstance(value, datetime):
            try:
                value = datetime.fromisoformat(str(value).strip().removesuffix(" UTC"))
            except ValueError:
                raise self.refuse(f"{column} is {shown(value)!r}, which is not a time", EXPORT_ANEW) from None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)

    def structure(self, column: str) -> Any:
        """Return the list or map in a column (in a CSV file, JSON text); None if the column is absent or empty."""
        value = self._columns.get(column)
        if not isinstance(value, str):
            return value
        try:
            return parse_json(value, Decimal) if value.strip() else None
        except ValueError:
            raise self.refuse(
                f"{column} is {shown(value)!r}, which is not JSON", f"export it as TO_JSON_STRING({column})"
            ) from None


class DuplicateLines:
    """
    Refuses a line that occurs in two files of a bill, because it would be counted twice. This happens, for example, if
    AWS keeps all versions of a month's report: each version repeats the lines of the one before.
    """

    def __init__(self) -> None:
        self._seen: dict[str, Path] = {}

    def check(self, row: BillRow) -> None:
        """
        Refuse a line that has already occurred in another file.

        Raises:
            SpecInvalid: the message names both files.
        """
        before = self._seen.setdefault(row.content, row.path)
        if before != row.path:
            message = f"has the same line as {before}; the two files are versions of one report, not parts of it"
            raise row.refuse(message, "name only the files of the report's newest version, each once")


def files_of(patterns: Iterable[str]) -> list[Path]:
    """
    Return the files that match any of `patterns`, in the order of the patterns, and each file only once. A pattern can
    contain `*`, `?`, `[…]` and `**`.

    Raises:
        SpecInvalid: a pattern matches no file.
    """
    found: dict[Path, Path] = {}
    for pattern in patterns:
        named = [pattern] if Path(pattern).exists() else sorted(glob(pattern, recursive=True))
        paths = [Path(name) for name in named if not Path(name).is_dir()]
        if not paths:
            raise SpecInvalid(f"cannot read {shown(pattern)}: no such file", hint=NAME_IT)
        found.update({path.resolve(): path for path in paths})
    return list(found.values())


def column_name(name: str) -> str:
    """Convert a column name: `resourceTags/user:spotrun:run` -> `resource_tags_user_spotrun_run`."""
    return re.sub(r"[^a-z0-9]+", "_", _HUMP.sub("_", name.strip()).lower()).strip("_")


def read_rows(path: Path) -> Iterator[BillRow]:
    """
    Return the rows of a CSV, JSON or Parquet file. The format is recognized by the file's first bytes.

    Raises:
        SpecInvalid: the file cannot be read, or a row is damaged; the message names the file and the line.
    """
    start = _first_bytes(path)
    if start[:4] == _PARQUET:
        return _parquet_rows(path)
    return _json_rows(path) if start.lstrip()[:1] in (b"{", b"[") else _csv_rows(path)


def read_report(path: Path, columns: Sequence[str], report: str) -> Iterator[BillRow]:
    """
    Yield the rows of a file. `report` names the kind of file that was expected.

    Raises:
        SpecInvalid: the first row does not have all `columns`, or the file cannot be read (see `read_rows`).
    """
    rows = read_rows(path)
    first = next(rows, None)
    if first is not None:
        first.require(columns, report)
        yield first
        yield from rows


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the non-blank lines of a text file (gzipped or not), each with its line number."""
    with _opened(path) as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                yield number, line.rstrip("\r\n")


def _first_bytes(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            start = file.read(64)
        if start[:2] == _GZIP:
            with gzip.open(path, "rb") as packed:
                start = packed.read(64)
    except (OSError, EOFError, zlib.error) as error:
        raise _unreadable(path, error) from error
    return start.removeprefix(b"\xef\xbb\xbf")


@contextmanager
def _opened(path: Path) -> Iterator[TextIO]:
    """Open a text file (gzipped or not). Raise SpecInvalid if opening it fails, or reading it in the `with` block."""
    try:
        with path.open("rb") as file:
            packed = file.read(2) == _GZIP
        with (gzip.open if packed else open)(path, "rt", encoding="utf-8-sig", newline="") as text:
            yield cast(TextIO, text)
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: Exception) -> SpotrunError:
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return SpecInvalid(f"cannot read {path}: {reason}", hint=NAME_IT)


def _csv_rows(path: Path) -> Iterator[BillRow]:
    with _opened(path) as file:
        reader = csv.reader(file, strict=True)
        try:
            header = [column_name(name) for name in next(reader, [])]
            if len(header) < 2:
                raise SpecInvalid(f"{path}:1: the first line has no column names", hint=NAME_IT)
            for cells in reader:
                if cells:
                    yield _csv_row(path, reader.line_num, header, cells)
        except csv.Error as error:
            raise SpecInvalid(f"{path}:{reader.line_num}: {error}", hint=EXPORT_ANEW) from error


def _csv_row(path: Path, line: int, header: list[str], cells: list[str]) -> BillRow:
    if len(cells) != len(header):
        message = f"{path}:{line}: has {count_of(len(cells), 'column')}; the first line names {len(header)}"
        raise SpecInvalid(message, hint=EXPORT_ANEW)
    return BillRow(path, line, dict(zip(header, cells, strict=True)))


def _json_rows(path: Path) -> Iterator[BillRow]:
    if _first_bytes(path).lstrip()[:1] == b"[":
        with _opened(path) as file:
            yield from _objects(path, [(1, file.read())])
    else:
        yield from _objects(path, read_lines(path))


def _objects(path: Path, texts: Iterable[tuple[int, str]]) -> Iterator[BillRow]:
    for line, text in texts:
        try:
            found = parse_json(text, Decimal)
        except ValueError as error:
            raise SpecInvalid(f"{path}:{line}: not JSON: {error}", hint=EXPORT_ANEW) from error
        whole = isinstance(found, list)
        for index, one in enumerate(found if whole else [found], 1):
            if not isinstance(one, dict):
                raise SpecInvalid(f"{path}:{line}: {shown(one)} is not a JSON object", hint=EXPORT_ANEW)
            yield BillRow(path, index if whole else line, dict(_flat(one)))


def _flat(found: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    waiting = [("", found)]
    while waiting:
        prefix, fields = waiting.pop()
        for name, value in fields.items():
            if isinstance(value, dict):
                waiting.append((f"{prefix}{name}.", value))
            else:
                yield column_name(prefix + name), value


def _parquet_rows(path: Path) -> Iterator[BillRow]:
    with needs_extra("parquet", f"{path}, a Parquet file,"):
        from pyarrow import ArrowException
        from pyarrow.parquet import ParquetFile
    line = 0
    try:
        for batch in ParquetFile(path).iter_batches(batch_size=4096):
            names = [column_name(name) for name in batch.schema.names]
            for found in batch.to_pylist():
                line += 1
                yield BillRow(path, line, dict(zip(names, found.values(), strict=True)))
    except (ArrowException, OSError) as error:
        raise SpecInvalid(f"{path} cannot be read as a Parquet file: {error}", hint=EXPORT_ANEW) from error
