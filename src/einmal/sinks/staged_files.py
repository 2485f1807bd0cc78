"""Files that tasks stage for one pipeline: written, counted, compared, published, removed.

Theory of operation. A batch has a directory of its own, whose name carries pipeline, epoch, transaction and batch. The
driver makes it before the job and removes it when the outcome of the transaction is known, so the directory is also the
mark of a transaction without a known outcome. A task writes one Parquet file under the id of its attempt, and reports
what it wrote; a task never makes the directory, so one that outlives its batch has nowhere to write.

    driver  make the directory  ->  run the job  ->  compare files and reports  ->  commit  ->  remove the directory
    task        temporary file  ->  fsync  ->  rename  ->  report (partition, attempt, rows, bytes, CRC-32C)

Invariants:

1. *Only files of attempts that count are read.* A file is found by the attempt that the task's report names.
2. *A staged file is durable before it is reported*: the file and its directory entry are flushed.
3. *Only directories of this pipeline and of epochs that can commit no more are removed*, and in them only staged files.
4. *No file is replaced*: files are published into a directory that is made for them.

Text that is not UTF-8 is found here, for all sinks that load files: no table could be read with it. Where rejected
rows are tolerated, which rows with the column of their record are, such a row is staged as a refusal.

Supported are local file systems, and shared ones that the driver and all executors mount at the same path.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from google_crc32c import extend as crc32c_extend

from einmal.commit_protocol.claims import Output
from einmal.sinks.batch_rows import BatchRows, PartReport, TaskAttempt
from einmal.sinks.commit_point import Identity, SinkFailed
from einmal.sinks.rejections import RECORD, REFUSAL
from einmal.sinks.text import check_text, rows_without_text

_READABLE_MAX: Final = 60
"""Characters of a pipeline's name in the name of its directory."""
_NOT_PLAIN: Final = re.compile(r"[^A-Za-z0-9_-]")
_BATCH: Final = re.compile(r"(\d+)-(\d+)-(\d+)")
"""Epoch, number of the transaction, batch."""
_FILE: Final = re.compile(r"part-\d+-\d+\.parquet(\.tmp)?|_commit\.json")
_ROWS_PER_GROUP: Final = 128 * 1024
_CHUNK: Final = 1024 * 1024
_REMOVALS_MAX: Final = 10
"""A task that is still writing may add a file while its directory is being removed."""
FieldIds = Mapping[tuple[str, ...], int]
"""Number of each column, and field in it, of a table whose files have them; by the names of those that it is in."""
_FIELD_ID: Final = b"PARQUET:field_id"
_NAN: Final = "einmal.nan"
"""In the metadata of a file: see ``columns_with_nan``."""


@dataclass(frozen=True, slots=True)
class StagedFile:
    """A file of an attempt that counts. ``size``: bytes; ``crc``: CRC-32C over all of them."""

    path: Path
    count: int
    size: int
    crc: int

    def compare(self) -> None:
        """Read all bytes. Raises SinkFailed where they are not those that the task wrote."""
        crc = 0
        with self.path.open("rb") as file:
            while chunk := file.read(_CHUNK):
                crc = crc32c_extend(crc, chunk)
        if crc != self.crc:
            raise SinkFailed(f"the staged file {self.path} has CRC {crc:08x}, its task has written {self.crc:08x}")


def directory_of(name: str, database: str = "") -> str:
    """The name of a pipeline as a name of a directory: different for each, also where case does not count.
    ``database``: which one it writes to, where several can have the same staging directory."""
    readable = _NOT_PLAIN.sub("_", name)[:_READABLE_MAX]
    whole = f"{name}\0{database}" if database else name
    return f"{readable}-{hashlib.sha256(whole.encode()).hexdigest()[:16]}"


class StagedFiles:
    """The driver's side, for one pipeline."""

    def __init__(self, root: Path, name: str, *, strict: bool = False) -> None:
        """``strict``: no rejected row is tolerated, whatever the columns are."""
        self._root, self._name, self._strict = root, name, strict
        self._home = root / directory_of(name)
        self._reported: dict[Identity, tuple[StagedFile, ...]] = {}

    def belong_to(self, database: str) -> None:
        """Keep apart from the same pipeline in other databases, or tables, with this root. To be called before anything
        else."""
        self._home = self._root / directory_of(self._name, database)

    def write(
        self, rows: BatchRows, table: str, identity: Identity, batch_id: int, ids: FieldIds | None = None
    ) -> tuple[Output, ...]:
        """Run the tasks. Raises SinkFailed, and what they raise."""
        directory = self._home / _batch_name(identity, batch_id)
        try:
            directory.mkdir(parents=True)
            flush_directory(directory.parent)
        except OSError as error:
            raise SinkFailed(f"the staging directory {directory} cannot be made: {error.strerror}") from error
        reports = rows.write(partial(_stage, directory, strict=self._strict, ids=dict(ids or {})))
        self._reported[identity] = tuple(
            StagedFile(directory / _file_name(report.part, report.attempt), report.rows, report.size, report.crc)
            for report in reports
        )
        return tuple(Output(table, report.part, 0, report.rows - 1, report.rows, report.crc) for report in reports)

    def compared(self, identity: Identity) -> tuple[StagedFile, ...]:
        """Return what the tasks reported under an identity, compared with the files: size and number of rows. Raises
        SinkFailed."""
        import pyarrow
        from pyarrow import parquet

        files = self._reported.get(identity, ())
        for file in files:
            try:
                size, count = file.path.stat().st_size, parquet.read_metadata(file.path).num_rows
            except (OSError, pyarrow.ArrowException) as error:
                raise SinkFailed(f"the staged file {file.path} cannot be read: {error}") from error
            if (size, count) != (file.size, file.count):
                raise SinkFailed(
                    f"the staged file {file.path} has {count} rows in {size} bytes, its task has reported {file.count} "
                    f"rows in {file.size} bytes"
                )
        return files

    def publish(self, identity: Identity, root: Path) -> tuple[StagedFile, ...]:
        """Move the compared files, durably, to a new directory of their own below ``root``, where no reader looks for
        them before they are committed. Their staging directory stays: it marks them. Raises SinkFailed, OSError."""
        files = self.compared(identity)
        if not files:
            return ()
        directory = self._published(root, files[0].path.parent.name)
        directory.parent.mkdir(parents=True, exist_ok=True)
        # It must be new: the files of an existing one are committed.
        directory.mkdir()
        moved = tuple(replace(file, path=directory / file.path.name) for file in files)
        for file, target in zip(files, moved, strict=True):
            file.path.rename(target.path)
        for path in (directory, directory.parent, root):
            flush_directory(path)
        self._reported[identity] = moved
        return moved

    def check_unpublished(self, identity: Identity, batch_id: int, root: Path) -> None:
        """To be called before ``write``, whose directory would mark the files of another transaction as these.

        Raises SinkFailed where there are files of an equal identity: the epochs have begun again."""
        if (directory := self._published(root, _batch_name(identity, batch_id))).exists():
            raise SinkFailed(
                f"{directory} has files of an earlier transaction of the same name: the state of {self._name!r} in the "
                "table was lost; start the pipeline under another transactional.id",
                will_again=True,
            )

    def unpublish(self, identity: Identity, root: Path) -> None:
        """Remove files that were published under an identity that has a staging directory. Raises OSError."""
        for path, numbers in self._directories():
            published = self._published(root, path.name)
            if Identity(*numbers[:2]) == identity and published.exists():
                _remove(published)

    def is_published(self, identity: Identity, root: Path) -> bool:
        """Whether files of an identity that has a staging directory were moved."""
        mine = [path.name for path, numbers in self._directories() if Identity(*numbers[:2]) == identity]
        return any(self._published(root, name).exists() for name in mine)

    def _published(self, root: Path, batch: str) -> Path:
        return root / f"einmal-{self._home.name}" / batch

    def transactions(self, before_epoch: int) -> list[Identity]:
        """Transactions of earlier epochs that still have a directory."""
        identities = {Identity(*numbers[:2]) for _, numbers in self._directories()}
        return sorted(identity for identity in identities if identity.producer_id < before_epoch)

    def discard(self, identity: Identity) -> bool:
        """Remove what is staged under an identity; whether anything was. Raises OSError."""
        self._reported.pop(identity, None)
        mine = [path for path, numbers in self._directories() if Identity(*numbers[:2]) == identity]
        for path in mine:
            _remove(path)
        return bool(mine)

    def discard_before(self, epoch: int) -> None:
        """Remove what earlier epochs have staged. Raises OSError."""
        for identity in self.transactions(epoch):
            self.discard(identity)

    def clear(self) -> None:
        """Remove the pipeline's own directory, which is empty. Raises OSError."""
        self._home.rmdir()

    def _directories(self) -> Iterator[tuple[Path, tuple[Any, Any, Any]]]:
        try:
            paths = sorted(self._home.iterdir())
        except FileNotFoundError:
            return
        for path in paths:
            if match := _BATCH.fullmatch(path.name):
                yield path, (int(match[1]), int(match[2]), int(match[3]))


def _batch_name(identity: Identity, batch_id: int) -> str:
    return f"{identity.producer_id}-{identity.producer_epoch}-{batch_id}"


def _remove(directory: Path) -> None:
    for _ in range(_REMOVALS_MAX):
        for entry in directory.iterdir():
            if _FILE.fullmatch(entry.name):
                entry.unlink(missing_ok=True)
        try:
            directory.rmdir()
        except OSError:
            if any(not _FILE.fullmatch(entry.name) for entry in directory.iterdir()):
                # Somebody keeps other files here, which are not ours to remove.
                return
        else:
            return


def flush_directory(directory: Path) -> None:
    """Make the names in a directory durable."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# --- in a task --------------------------------------------------------------------------------------------------------


def _file_name(partition: int, attempt: int) -> str:
    return f"part-{partition:05d}-{attempt}.parquet"


def _stage(
    directory: Path, attempt: TaskAttempt, batches: Iterator[Any], *, strict: bool, ids: FieldIds
) -> PartReport | None:
    file = stage_file(directory, *attempt, batches, strict=strict, ids=ids)
    return None if file is None else PartReport(*attempt, file.count, file.size, file.crc)


def stage_file(
    directory: Path,
    partition: int,
    attempt: int,
    batches: Iterator[Any],
    *,
    strict: bool = False,
    ids: FieldIds | None = None,
) -> StagedFile | None:
    """Write the rows of one attempt durably; None: there are no rows. Raises NotText."""
    path = directory / _file_name(partition, attempt)
    temporary = path.with_name(f"{path.name}.tmp")
    with_rows = (_checked(batch, strict=strict) for batch in batches if batch.num_rows)
    first = next(with_rows, None)
    if first is None:
        return None
    try:
        sink = _CountedFile(temporary)
    except FileNotFoundError as error:
        raise FileNotFoundError(
            f"the staging directory {directory} is not there: either the batch has ended without this task, or the "
            "executors do not mount the same file system as the driver (option staging)"
        ) from error
    try:
        with sink:
            count = _write(sink, first, with_rows, ids or {})
            os.fsync(sink.fileno())
        temporary.rename(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    flush_directory(directory)
    return StagedFile(path, count, sink.size, sink.crc)


def _checked(rows: Any, *, strict: bool) -> Any:
    """Raises NotText, unless rejected rows are tolerated: these have a column of refusals."""
    if strict or RECORD not in rows.schema.names:
        check_text(rows)
        return rows
    from pyarrow import RecordBatch, array, compute, int64, string

    refused, every = rows_without_text(rows), range(rows.num_rows)
    columns = rows.columns
    if refused:
        kept = array([None if at in refused else at for at in every], int64())
        columns = [
            values if name == RECORD else compute.take(values, kept)
            for name, values in zip(rows.schema.names, columns, strict=True)
        ]
    why = [f'column "{refused[at]}" has text that is not UTF-8' if at in refused else None for at in every]
    return RecordBatch.from_arrays([*columns, array(why, string())], names=[*rows.schema.names, REFUSAL])


def _write(sink: _CountedFile, first: Any, others: Iterator[Any], ids: FieldIds) -> int:
    """Row groups of a size that readers like: Spark's batches have 10,000 rows."""
    from pyarrow import Table, parquet, schema

    count, waiting = 0, [first]
    with_nan: set[tuple[str, ...]] = set()
    numbered = schema([_numbered(field, (field.name,), ids) for field in first.schema])
    # Without Arrow's own schema, which has the session's time zone: Parquet has times in UTC.
    with parquet.ParquetWriter(sink, numbered, store_schema=False) as writer:

        def flush() -> None:
            table = Table.from_batches(waiting)
            with_nan.update(_with_nan(table.schema, table.columns))
            writer.write_table(table, row_group_size=_ROWS_PER_GROUP)
            waiting.clear()

        rows = first.num_rows
        for batch in others:
            waiting.append(batch)
            rows += batch.num_rows
            if rows >= _ROWS_PER_GROUP:
                count += rows
                rows = 0
                flush()
        if waiting:
            count += rows
            flush()
        if with_nan:
            writer.add_key_value_metadata({_NAN: json.dumps(sorted(with_nan))})
    return count


def field_ids(fields: Any, above: tuple[str, ...] = ()) -> dict[tuple[str, ...], int]:
    """Return the numbers that fields of Arrow have."""
    ids: dict[tuple[str, ...], int] = {}
    for field in fields:
        names = (*above, field.name)
        ids[names] = int(field.metadata[_FIELD_ID])
        ids |= field_ids([inner.with_name(name) for name, inner in inner_fields(field.type)], names)
    return ids


def inner_fields(kind: Any) -> list[tuple[str, Any]]:
    """The fields in a type of Arrow, under Parquet's names."""
    from pyarrow import types

    if types.is_map(kind):
        return [("key", kind.key_field), ("value", kind.item_field)]
    if types.is_list(kind) or types.is_large_list(kind):
        return [("element", kind.value_field)]
    return [(field.name, field) for field in kind] if types.is_struct(kind) else []


def _numbered(field: Any, names: tuple[str, ...], ids: FieldIds) -> Any:
    """The field with its number, and so all fields in it."""
    if names not in ids:
        return field
    import pyarrow
    from pyarrow import types

    kind = field.type
    inner = [_numbered(inside, (*names, name), ids) for name, inside in inner_fields(kind)]
    if types.is_struct(kind):
        kind = pyarrow.struct(inner)
    elif types.is_map(kind):
        kind = pyarrow.map_(*inner)
    elif inner:
        kind = pyarrow.large_list(*inner) if types.is_large_list(kind) else pyarrow.list_(*inner)
    return pyarrow.field(field.name, kind, field.nullable, {_FIELD_ID: str(ids[names])})


def _with_nan(fields: Any, columns: Any) -> Iterator[tuple[str, ...]]:
    """The columns that have one, fields of structs, too."""
    from pyarrow import compute, types

    for field, values in zip(fields, columns, strict=True):
        if types.is_struct(field.type):
            inner = [compute.struct_field(values, at) for at in range(field.type.num_fields)]
            yield from ((field.name, *names) for names in _with_nan(field.type, inner))
        elif types.is_floating(field.type) and compute.any(compute.is_nan(values)).as_py():
            yield (field.name,)


def columns_with_nan(footer: Any) -> frozenset[tuple[str, ...]]:
    """The names of columns of a staged file that have a NaN, fields of structs, too. A footer's bounds are those of the
    other values, and many readers take a NaN for the largest one."""
    return frozenset(map(tuple, json.loads((footer.metadata or {}).get(_NAN.encode(), b"[]"))))


class _CountedFile:
    """File that Arrow writes to: counts bytes, and their CRC."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("xb", buffering=0)
        self.size = 0
        self.crc = 0

    def write(self, data: Any) -> int:
        with memoryview(data) as view:
            remaining = view.cast("B")
            self.crc = crc32c_extend(self.crc, bytes(remaining))
            self.size += len(remaining)
            total = len(remaining)
            while len(remaining):
                remaining = remaining[self._file.write(remaining) or 0 :]
        return total

    def tell(self) -> int:
        return self.size

    def flush(self) -> None:
        return

    def fileno(self) -> int:
        return self._file.fileno()

    def readable(self) -> bool:
        return False

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return False

    @property
    def closed(self) -> bool:
        return self._file.closed

    def close(self) -> None:
        """By Arrow, which would close before the file is flushed."""

    def __enter__(self) -> _CountedFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
