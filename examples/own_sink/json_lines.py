"""A sink of your own: a directory of JSON lines files, and a manifest that names those that count.

    words/
      manifest.json                             files, and epoch and commit record of every pipeline
      lock                                      held while the manifest is compared and replaced
      words-1f9c.../3-0-17/00000-42.jsonl       pipeline, epoch, transaction, batch, task, attempt

Tasks write files that no manifest names. The driver replaces the manifest by one that names them and has the new
record: one rename, which is the commit. Whoever compares the epoch holds the lock until the manifest is replaced, so
nobody acquires the name in between; the lock of a process that is killed is released. For a local file system.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from einmal.commit_protocol.claims import Output
from einmal.commit_protocol.commit_record import CommitRecord, UnreadableCommitRecord, decode
from einmal.options.values import Options
from einmal.pipeline.reasons import HopVerdict, Reason
from einmal.sinks import stored_record
from einmal.sinks.batch_rows import BatchRows, PartReport, TaskAttempt, WritePart
from einmal.sinks.commit_point import Committed, Identity, RowCommitPoint, SinkFailed, SinkFenced, following
from einmal.sinks.sink import Opening, RowSink
from einmal.types import ProducerEpoch, ProducerId


class Manifest:
    """The files that count. ``pipelines``: by name, ``epoch``, ``record`` (its text, or null) and ``timestamp_ms``."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / "manifest.json"
        found = json.loads(self._path.read_text()) if self._path.exists() else {"files": [], "pipelines": {}}
        self.files: list[str] = found["files"]
        self.pipelines: dict[str, dict[str, Any]] = found["pipelines"]

    def of(self, name: str) -> dict[str, Any]:
        return self.pipelines.setdefault(name, {"epoch": 0, "record": None, "timestamp_ms": 0})

    def record(self, name: str) -> CommitRecord | None:
        text = self.of(name)["record"]
        return None if text is None else decode(name.encode(), text.encode())

    def replace(self) -> None:
        """The commit: durable, and whole or not at all."""
        temporary = self._path.with_suffix(".tmp")
        with temporary.open("w") as file:
            json.dump({"files": self.files, "pipelines": self.pipelines}, file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self._path)
        flush(self._path.parent)


class JsonLinesCommitPoint(RowCommitPoint):
    def __init__(self, directory: Path, opening: Opening) -> None:
        self._directory = directory
        self._name = opening.name
        # A name can have any character; the directory must differ for each.
        self._home = directory / f"words-{hashlib.sha256(opening.name.encode()).hexdigest()[:16]}"
        self._epoch = 0
        self._staged: list[tuple[Path, int]] = []
        self._record: tuple[CommitRecord | None] | None = None
        self._last: stored_record.Known | None = None
        """The text of the record that this run has read or committed."""

    def look(self) -> CommitRecord | None:
        return Manifest(self._directory).record(self._name)

    def acquire(self, held: Identity | None) -> Identity:
        with locked(self._directory):
            manifest = Manifest(self._directory)
            if held is not None:
                self._compare(manifest, held)
            manifest.of(self._name)["epoch"] += 1
            self._epoch = manifest.of(self._name)["epoch"]
            manifest.replace()
        self._last = None
        # Whoever had the name before can commit nothing more: what no manifest names now, none ever will.
        for batch in self._batches():
            self._remove(batch, manifest)
        return Identity(ProducerId(self._epoch), ProducerEpoch(0))

    def read(self) -> CommitRecord | None:
        manifest = Manifest(self._directory)
        self._compare(manifest, Identity(ProducerId(self._epoch), ProducerEpoch(0)))
        self._last = (manifest.of(self._name)["record"],)
        return manifest.record(self._name)

    def check(self, identity: Identity) -> None:
        manifest = Manifest(self._directory)
        self._compare(manifest, identity)
        self._compare_record(manifest)

    def stage(self, identity: Identity, batch_id: int, rows: BatchRows) -> tuple[Output, ...]:
        batch = self._home / f"{identity.producer_id}-{identity.producer_epoch}-{batch_id}"
        batch.mkdir(parents=True)
        reports = rows.write(writing(str(batch)))
        self._staged = [(batch / f"{each.part:05d}-{each.attempt}.jsonl", each.size) for each in reports]
        return tuple(Output(self._directory.name, each.part, 0, each.rows - 1, each.rows) for each in reports)

    def record(self, identity: Identity, record: CommitRecord | None) -> None:
        self._compare(Manifest(self._directory), identity)
        for path, size in self._staged:
            if not path.exists() or path.stat().st_size != size:
                raise SinkFailed(f"{path} is not what its task has written: {size} bytes")
        self._record = (record,)

    def commit(self, identity: Identity) -> Identity:
        if self._record is None:
            raise SinkFailed("nothing is recorded")
        (record,) = self._record
        with locked(self._directory):
            manifest = Manifest(self._directory)
            self._compare(manifest, identity)
            self._compare_record(manifest)
            manifest.files += [str(path.relative_to(self._directory)) for path, _ in self._staged]
            text = None if record is None else record.encode().decode()
            manifest.of(self._name).update(record=text, timestamp_ms=time.time_ns() // 1_000_000)
            manifest.replace()
        self._last = (text,)
        self.abandon()
        for batch in self._batches(identity):
            self._remove(batch, manifest)
        return following(identity)

    def abort(self, identity: Identity) -> Identity:
        self.abandon()
        manifest = Manifest(self._directory)
        self._compare(manifest, identity)
        batches = self._batches(identity)
        removed = [self._remove(batch, manifest) for batch in batches]
        if not self._epoch and not any(removed):
            raise SinkFailed(f"nothing is open under epoch {identity.producer_id}")
        return following(identity)

    def abandon(self) -> None:
        self._staged, self._record = [], None

    def _compare(self, manifest: Manifest, identity: Identity) -> None:
        epoch = manifest.of(self._name)["epoch"]
        stored_record.compare_epoch(self._name, identity.producer_id, epoch, str(self._directory))
        if epoch != identity.producer_id:
            raise SinkFenced(f"epoch {epoch} was acquired since this run acquired epoch {identity.producer_id}")

    def _compare_record(self, manifest: Manifest) -> None:
        """A directory that was restored lacks files, and may have the epoch of this run."""
        stored, cause = manifest.of(self._name)["record"], "the directory was restored"
        stored_record.compare(self._name, self._last, stored, str(self._directory), cause)

    def _batches(self, identity: Identity | None = None) -> list[Path]:
        """Directories under an identity, or of all epochs before this one."""
        found = []
        for path in self._home.iterdir() if self._home.exists() else ():
            epoch, transaction, _ = map(int, path.name.split("-"))
            if (epoch, transaction) == identity or (identity is None and epoch < self._epoch):
                found.append(path)
        return found

    def _remove(self, batch: Path, manifest: Manifest) -> bool:
        """The files of a batch that do not count; whether there were any."""
        named = {self._directory / each for each in manifest.files}
        others = [path for path in batch.iterdir() if path not in named]
        for path in others:
            path.unlink()
        if not any(path in named for path in batch.iterdir()):
            shutil.rmtree(batch)
            return True
        return bool(others)


class JsonLines(RowSink):
    """``path``: a directory on a file system of the driver's machine, which all executors mount."""

    OPTIONS = ("path",)

    def __init__(self, options: Options) -> None:
        self._directory = Path(options.required("path", "/data/words")).absolute()

    @property
    def table(self) -> str:
        return str(self._directory)

    def identity(self) -> str | None:
        return None

    def problems(self, name: str, schema: object) -> list[tuple[str, str]]:
        self._directory.mkdir(parents=True, exist_ok=True)
        return []

    def promises(self) -> tuple[Reason, ...]:
        return (Reason(HopVerdict.HOLDS, "one rename makes files and record count, under the lock of the epoch"),)

    def commit_point(self, opening: Opening) -> JsonLinesCommitPoint:
        return JsonLinesCommitPoint(self._directory, opening)

    def committed(self) -> Mapping[str, Committed]:
        manifest, found = Manifest(self._directory), {}
        for name, state in manifest.pipelines.items():
            record, problem = None, ""
            try:
                record = manifest.record(name)
            except UnreadableCommitRecord as error:
                problem = str(error)
            if record is not None or problem:
                found[name] = Committed(name, record, state["timestamp_ms"], problem)
        return found


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    with (directory / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def flush(directory: Path) -> None:
    """Make the names in a directory durable."""
    descriptor = os.open(directory, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def writing(batch: str) -> WritePart:
    """Return what every task runs: it writes a file under the id of its attempt, then reports. Spark sends it to
    executors as it stands here, with all that it needs."""

    def write(attempt: TaskAttempt, batches: Iterator[Any]) -> PartReport | None:
        # Nothing of this module: executors need not have it.
        count, name = 0, f"{attempt.part:05d}-{attempt.attempt}.jsonl"
        with Path(batch, name).open("x") as file:
            for each in batches:
                file.writelines(json.dumps(row, default=str) + "\n" for row in each.to_pylist())
                count += each.num_rows
            file.flush()
            os.fsync(file.fileno())
            size = os.fstat(file.fileno()).st_size
        descriptor = os.open(batch, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)
        return PartReport(*attempt, count, size, crc=0) if count else None

    return write
