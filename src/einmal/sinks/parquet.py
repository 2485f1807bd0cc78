"""A directory of Parquet files as a sink: one rename makes a batch's files and its record visible, all or none of them.

Each commit is a directory of its own, which readers of partitioned tables take for a partition:

    einmal_version=000000000042/part-00000-7.parquet    rows
    einmal_version=000000000042/_commit.json            columns, and the states of all names, after this commit
    _einmal/                                            staged and moved files that no commit has

Readers leave out what begins with ``_``. The files of a batch and ``_commit.json`` are put together below ``_einmal``,
durably, and the directory is renamed to the next version. A rename never replaces a directory that is not empty
(rename(2): ENOTEMPTY), so a version exists once: a driver that was overtaken is refused, and looks again.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final, NamedTuple

from einmal.options.values import Options
from einmal.pipeline.reasons import HopVerdict, Reason
from einmal.sinks.commit_point import Identity, SinkFailed
from einmal.sinks.lake import (
    STAGING,
    LakeSink,
    LakeState,
    LakeTable,
    SnapshotSuperseded,
    mounted_directory,
    without_nullability,
)
from einmal.sinks.row_schema import RowSchema
from einmal.sinks.staged_files import StagedFile, flush_directory
from einmal.types import ProducerEpoch, ProducerId

COLUMN: Final = "einmal_version"
"""Readers of partitioned tables see it as a column."""
_COMMIT: Final = "_commit.json"
_DIGITS: Final = 12


class Version(NamedTuple):
    """A commit of the directory, and what its ``_commit.json`` has."""

    number: int
    commit: Mapping[str, Any]


class ParquetDirectory(LakeTable):
    ignores_case: ClassVar[bool] = True

    def __init__(self, path: Path) -> None:
        self._path = path
        self._newest = 0
        """The newest version that was seen; 0: none."""

    @property
    def label(self) -> str:
        return str(self._path)

    @property
    def root(self) -> Path:
        return self._path

    @property
    def data(self) -> Path:
        return self._path / STAGING / "moved"

    def load(self) -> Version | None:
        # A table has many versions, and a driver makes most of them: the next ones are tried before all are listed.
        if not self._newest or not self._version(self._newest).exists():
            self._newest = max(self._numbers(), default=0)
        if not self._newest:
            return None
        while self._version(self._newest + 1).exists():
            self._newest += 1
        return Version(self._newest, json.loads((self._version(self._newest) / _COMMIT).read_text(encoding="utf-8")))

    def state(self, snapshot: Version, name: str) -> LakeState:
        fields = snapshot.commit["names"].get(name)
        if fields is None:
            return LakeState()
        producer_id, producer_epoch = fields["committed"]
        committed = Identity(ProducerId(producer_id), ProducerEpoch(producer_epoch))
        return LakeState(fields["epoch"], committed, fields["record"], fields["timestamp_ms"])

    def names(self, snapshot: Version) -> Sequence[str]:
        return list(snapshot.commit["names"])

    def identity(self, snapshot: Version) -> str:
        return str(snapshot.commit["id"])

    def next_epoch(self, snapshot: Version, name: str) -> int:
        forgotten: int = snapshot.commit["forgotten"]
        return max(super().next_epoch(snapshot, name), forgotten + 1)

    def commit(self, snapshot: Version, name: str, state: LakeState, files: Sequence[StagedFile]) -> None:
        names, forgotten = dict(snapshot.commit["names"]), snapshot.commit["forgotten"]
        if state.is_forgotten:
            # Of a forgotten name nothing is kept but its epoch: there may be thousands.
            del names[name]
            forgotten = max(forgotten, state.epoch)
        else:
            names[name] = {
                "epoch": state.epoch,
                "committed": tuple(state.committed),
                "record": state.record,
                "timestamp_ms": state.timestamp_ms,
            }
        commit = {**snapshot.commit, "names": names, "forgotten": forgotten}
        self._commit(snapshot.number + 1, commit, files[0].path.parent if files else None)

    def create(self, schema: RowSchema) -> None:
        if COLUMN in map(str.lower, schema.names):
            # See ``differences``: the directory would have this column for good.
            return
        self._path.mkdir(parents=True, exist_ok=True)
        names = (path.name for path in self._path.iterdir())
        # Versions: somebody creates it at the same time.
        if foreign := sorted(name for name in names if name != STAGING and not name.startswith(f"{COLUMN}=")):
            raise SinkFailed(
                f"{self._path} has other files, such as {foreign[0]}: name a new directory", will_again=True
            )
        # Who creates it at the same time creates the same, but for its id.
        try:
            columns = schema.as_json["fields"]
            self._commit(1, {"id": str(uuid.uuid4()), "columns": columns, "names": {}, "forgotten": 0}, None)
        except SnapshotSuperseded:
            return

    def differences(self, snapshot: Version, schema: RowSchema) -> list[tuple[str, str]]:
        rows = {field.name: without_nullability(field.type.as_json) for field in schema}
        if COLUMN in map(str.lower, rows):
            return [(f"the rows have a column {COLUMN!r}, as the directory's versions are named", "rename it")]
        columns = {field["name"]: without_nullability(field["type"]) for field in snapshot.commit["columns"]}
        # A reader takes the columns from any of the files.
        hint = f"make the query's columns those of the directory, {', '.join(columns)}, or write to a new directory"
        return [
            *((f"the directory has no column {name!r}", hint) for name in rows if name not in columns),
            *((f"the rows have no column {name!r}", hint) for name in columns if name not in rows),
            *(
                (f"column {name!r} has the type {columns[name]} in the directory, and {rows[name]} in the rows", hint)
                for name in rows
                if name in columns and columns[name] != rows[name]
            ),
        ]

    def _commit(self, number: int, commit: Mapping[str, Any], files: Path | None) -> None:
        """Rename a directory with ``files`` and the commit. Raises SnapshotSuperseded where the version exists."""
        made = self.data / uuid.uuid4().hex if files is None else files
        try:
            made.mkdir(parents=True, exist_ok=True)
            with (made / _COMMIT).open("w", encoding="utf-8") as file:
                json.dump({**commit, "written_ms": time.time_ns() // 1_000_000}, file)
                file.flush()
                os.fsync(file.fileno())
            flush_directory(made)
            made.rename(self._version(number))
        except OSError as error:
            # What is moved keeps its files alone, so that it can be removed, or tried again.
            (made / _COMMIT).unlink(missing_ok=True)
            if files is None:
                shutil.rmtree(made, ignore_errors=True)
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
                raise SnapshotSuperseded(f"{self._version(number)} exists") from error
            raise
        flush_directory(self._path)

    def _version(self, number: int) -> Path:
        return self._path / f"{COLUMN}={number:0{_DIGITS}}"

    def _numbers(self) -> Iterator[int]:
        for path in self._path.glob(f"{COLUMN}=*"):
            number = path.name.removeprefix(f"{COLUMN}=")
            if number.isdecimal():
                yield int(number)


class ParquetSink(LakeSink):
    """``type = "parquet"``. ``path``: the directory, which the driver and all executors share."""

    OPTIONS = ("path",)

    def __init__(self, options: Options) -> None:
        self._table = ParquetDirectory(mounted_directory(options, "/data/words"))

    @property
    def lake_table(self) -> LakeTable:
        return self._table

    def promises(self) -> tuple[Reason, ...]:
        return (
            Reason(
                HopVerdict.HOLDS,
                "one rename makes the batch's files and the record visible, as the version that follows the one whose "
                "epoch was compared",
            ),
            Reason(
                HopVerdict.IF,
                "the file system renames a directory at once and never over one with files, and no directory "
                f"{COLUMN}=... is renamed or removed",
                "use a local file system or NFS, and delete data files in them only, not _commit.json",
            ),
        )
