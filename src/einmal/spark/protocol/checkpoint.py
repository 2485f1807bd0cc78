"""A query's checkpoint directory: read as Spark wrote it, and finished in Spark's own format.

A file appears under its name whole or not at all, and never replaces another. Knows nothing of Kafka.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from dataclasses import dataclass
from typing import Any, Final, Protocol

from einmal.commit_protocol.batch_plan import Batch
from einmal.spark.environment.plans.source_nodes import SOURCE_NAMES_SETTING

_VOID: Final = "-"
"""How Spark spells that a source has no offset yet."""
_OFFSETS: Final = ("v1", "v2")
"""The formats of ``offsets/N``. v1 has one line per source, v2 ``name:offset``, in no order; unnamed sources are called
by their position in the plan there."""
_COMMIT_FILES: Final = ("v1", "v2")
_NAMED_SINK: Final = "v3"
_COMMITS: Final = "einmal/commits/"
_RUNS: Final = "einmal/runs"
"""Our own directory, which Spark does not look at."""


class CheckpointError(Exception):
    """The checkpoint is in a state, or a format, that a query cannot resume from."""


class CheckpointTaken(CheckpointError):
    """Another driver has written the file that this one was about to write."""


@dataclass(frozen=True, slots=True)
class DriverRun:
    """One start of a driver on the checkpoint, as it noted it there. ``number`` grows; ``token`` is unique, so that a
    copy of the directory has only the runs from before it was made."""

    number: int
    token: str
    transactional_id: str = ""
    cluster_id: str | None = None


@dataclass(frozen=True, slots=True)
class OffsetLogEntry:
    """``offsets/N``: where batch N ends, one value per source (None: that source has none), parsed JSON. ``names``: of
    the sources, sorted; empty where they have none, and are in the order of the plan."""

    end: tuple[Any, ...]
    names: tuple[str, ...] = ()


def parse_offset_log(text: str, name: str) -> OffsetLogEntry:
    """A file of ``offsets``. Raises CheckpointError for a format that is not known."""
    version, _metadata, *sources = text.split("\n")
    if version not in _OFFSETS:
        raise CheckpointError(_unknown_format(name, version, _OFFSETS))
    if version == "v1":
        return OffsetLogEntry(tuple(_parse(line) for line in sources))
    named = [(source, _parse(offset)) for source, _, offset in (line.partition(":") for line in sources)]
    if all(source.isdecimal() for source, _ in named):
        return OffsetLogEntry(tuple(offset for _, offset in sorted(named, key=lambda pair: int(pair[0]))))
    named.sort(key=lambda pair: pair[0])
    return OffsetLogEntry(tuple(offset for _, offset in named), tuple(source for source, _ in named))


def check_commit_file(text: str, name: str) -> None:
    """A file of ``commits``. Raises CheckpointError for a format in which no query of ours can continue."""
    version = text.partition("\n")[0]
    if version == _NAMED_SINK:
        raise CheckpointError(
            f"{name} has format {version}, of a query whose sink has a name: Spark then asks every later query for "
            "one, and a query from Python cannot give it\n"
            "hint: choose a new checkpointLocation, and set startingOffsets to the positions in the newest file of "
            "offsets"
        )
    if version not in _COMMIT_FILES:
        raise CheckpointError(_unknown_format(name, version, _COMMIT_FILES))


def _unknown_format(name: str, version: str, known: tuple[str, ...]) -> str:
    return (
        f"{name} has format {version:.20}, known are {' and '.join(known)}\n"
        "hint: a release of Spark that einmal was not tested with has written it: use a newer einmal, or a new "
        "checkpointLocation"
    )


class Files(Protocol):
    """The files of a directory: see ``environment.hadoop_files``, which raises the same errors."""

    @property
    def uri(self) -> str: ...
    def exists(self, name: str) -> bool: ...
    def read(self, name: str) -> str | None: ...
    def names(self, directory: str) -> list[str]: ...
    def names_below(self, directory: str) -> list[str]: ...
    def delete(self, name: str) -> None: ...
    def create(self, name: str, text: str) -> None: ...


class Checkpoint:
    """The directory of one query."""

    def __init__(self, files: Files) -> None:
        self._files = files

    @property
    def name(self) -> str:
        """The directory as a full URI: two spellings of one location are one name."""
        return self._files.uri

    # --- reading ------------------------------------------------------------------------------------------------

    def query_id(self) -> str | None:
        """The id that every run of the query on this checkpoint has."""
        text = self._files.read("metadata")
        return None if text is None else str(json.loads(text)["id"])

    def latest_batch_id(self) -> int | None:
        """The newest batch that was planned, whether it ran or not."""
        return max(self._batch_ids("offsets"), default=None)

    def latest_committed(self) -> int | None:
        """The newest batch that Spark considers done."""
        return max(self._batch_ids("commits"), default=None)

    def has_commit(self, batch_id: int) -> bool:
        return self._files.read(f"commits/{batch_id}") is not None

    def commit_text(self, batch_id: int) -> str | None:
        return self._files.read(f"commits/{batch_id}")

    def next_batch_id(self) -> int:
        """The batch that Spark runs next: the last that was planned, if it is not committed, else a new one."""
        planned, done = self.latest_batch_id(), self.latest_committed()
        if planned is None:
            return 0
        return planned + 1 if done is not None and done >= planned else planned

    def has_run(self, token: str) -> bool:
        return any(run.token == token for run in self._runs())

    def last_run(self) -> DriverRun | None:
        """With the name and the cluster that it wrote to. None: no driver has noted one."""
        last = max(self._runs(), key=lambda run: run.number, default=None)
        if last is None:
            return None
        try:
            fields = json.loads(self._files.read(f"{_RUNS}/{last.number}.{last.token}") or "{}")
            return DriverRun(last.number, last.token, str(fields["transactional_id"]), fields["cluster_id"])
        except (ValueError, KeyError, TypeError) as error:
            raise CheckpointError(
                f"{self.name}/{_RUNS}/{last.number}.{last.token} cannot be read: {error!r}\n"
                "hint: restore it, or delete it if the checkpoint was never copied"
            ) from error

    def used_by_others(self, transactional_id: str, cluster_id: str | None) -> str:
        """Who ran on the checkpoint last, where that was not this pipeline; else nothing."""
        last = self.last_run()
        if last is None:
            return ""
        if last.transactional_id != transactional_id:
            return f"under transactional.id {last.transactional_id!r}"
        if None not in (last.cluster_id, cluster_id) and last.cluster_id != cluster_id:
            return f"in cluster or database {last.cluster_id}, not in {cluster_id}"
        return ""

    def planned(self, batch_id: int, run: str, *, begins_empty: bool = False) -> Batch:
        """The batch as the checkpoint describes it. ``run``: see ``CommitRecord.run``; ``begins_empty``: batch 0 has
        no rows. Raises CheckpointError."""
        query_id, end = self.query_id(), self.offsets(batch_id)
        before = self.offsets(batch_id - 1) if batch_id > 0 else None
        if query_id is None or end is None:
            raise CheckpointError(f"{self.name} has no batch {batch_id}")
        if before is not None and before.names != end.names:
            raise CheckpointError(
                f"the offsets of batch {batch_id} are of sources named {end.names}, those of the batch before it of "
                f"{before.names}: Spark has begun a source anew"
            )
        start = None if before is None else before.end
        if batch_id == 0 and begins_empty:
            start = end.end
        return Batch(query_id=query_id, checkpoint=self.name, batch_id=batch_id, start=start, end=end.end, run=run)

    def keep_commit_text(self, batch_id: int, text: str) -> str:
        """Keep the text of a commit file that is too large for a commit record; its name, with a digest."""
        name = f"{_COMMITS}{batch_id}.{hashlib.sha256(text.encode()).hexdigest()}"
        if self._files.read(name) is None:
            self.write(name, text)
        for kept in self._files.names_below(_COMMITS):
            number, _, _ = kept.partition(".")
            if number.isdecimal() and int(number) < batch_id - 1:
                self._files.delete(_COMMITS + kept)
        return name

    def whole_commit_text(self, recorded: str) -> str:
        """The text of a commit file. ``recorded``: by the commit record, the text itself or the name of a kept one.

        Raises CheckpointError.
        """
        if not recorded.startswith(_COMMITS):
            return recorded
        text = self._files.read(recorded)
        if text is None or not recorded.endswith(hashlib.sha256(text.encode()).hexdigest()):
            raise CheckpointError(f"{self.name}/{recorded}, which the commit record names, is missing or damaged")
        return text

    def missing_state(self, batch_id: int, commit_text: str) -> str | None:
        """The first state file that a commit file of format 2 names and that does not exist; None: all exist."""
        version, _, body = commit_text.partition("\n")
        if version != "v2":
            return None
        for operator, partitions in (json.loads(body).get("stateUniqueIds") or {}).items():
            for partition, ids in enumerate(partitions):
                names = self._files.names_below(f"state/{operator}/{partition}")
                for unique_id in ids:
                    if not any(unique_id in name and name.startswith(f"{batch_id + 1}_") for name in names):
                        return f"{self.name}/state/{operator}/{partition}/{batch_id + 1}_{unique_id}"
        return None

    def has_state(self) -> bool:
        return self._files.exists("state")

    def offsets(self, batch_id: int) -> OffsetLogEntry | None:
        """Raises CheckpointError for an unknown format."""
        text = self._files.read(f"offsets/{batch_id}")
        if text is None:
            return None
        return parse_offset_log(text, f"{self.name}/offsets/{batch_id}")

    # --- writing ------------------------------------------------------------------------------------------------

    def ensure_query_id(self) -> str:
        """The query's id; a new checkpoint gets one now, in the file in which Spark would have written its own."""
        existing = self.query_id()
        if existing is not None:
            return existing
        query_id = str(uuid.uuid4())
        self.write("metadata", json.dumps({"id": query_id}, separators=(",", ":")))
        return query_id

    def begin_run(self, transactional_id: str, cluster_id: str | None) -> str:
        """Note that a driver runs on this checkpoint from now on; its token. To be called once the transactional.id is
        acquired."""
        number = max((run.number for run in self._runs()), default=0) + 1
        token = uuid.uuid4().hex
        text = json.dumps({"transactional_id": transactional_id, "cluster_id": cluster_id}, separators=(",", ":"))
        self.write(f"{_RUNS}/{number}.{token}", text)
        return token

    def forget_runs_before(self, token: str) -> None:
        """Remove the runs that ended before this one began: no commit record names them any more."""
        runs = self._runs()
        first = next((run.number for run in runs if run.token == token), 0)
        for run in runs:
            if run.number < first:
                self._files.delete(f"{_RUNS}/{run.number}.{run.token}")

    def begin_at(self, end: tuple[Any, ...], commit_text: str, names: tuple[str, ...] = ()) -> None:
        """Let a fresh checkpoint have a finished batch 0 that ended at ``end``, so that Spark resumes there.
        ``names``: see ``OffsetLogEntry``."""
        # The offsets come last and make it so: alone they would be a planned batch. A commit alone is nothing, and is
        # left by a start that died between the two.
        if not self.has_commit(0):
            self.write("commits/0", commit_text)
        # Without the setting in its first line, Spark would not look for names, and begin each source anew.
        conf = {SOURCE_NAMES_SETTING: "true"} if names else {}
        metadata = {"batchWatermarkMs": 0, "batchTimestampMs": 0, "conf": conf}
        self.plan_first(end, json.dumps(metadata, separators=(",", ":")), names)

    def plan_first(self, end: tuple[Any, ...], metadata: str, names: tuple[str, ...] = ()) -> None:
        """Let a fresh checkpoint have a planned batch 0 that ends at ``end``. ``metadata``: its first line."""
        lines = [_VOID if value is None else json.dumps(value, separators=(",", ":")) for value in end]
        version = "v1"
        if names:
            version, lines = "v2", [f"{name}:{line}" for name, line in zip(names, lines, strict=True)]
        self.write("offsets/0", "\n".join([version, metadata, *lines]))

    def begin_batch(self, batch_id: int) -> bool:
        """Note that a batch is begun. False: it was begun before, or another driver has begun a later one."""
        try:
            self.write(f"begun/{batch_id}", "")
        except CheckpointError:
            return False
        # Checked after the write: a driver that begins a later batch removes the earlier notes, and this driver may
        # have been paused since.
        begun = self._batch_ids("begun")
        if max(begun) > batch_id:
            return False
        for begun_id in begun:
            if begun_id < batch_id:
                self._files.delete(f"begun/{begun_id}")
        return True

    def write(self, name: str, text: str) -> None:
        """Create a file, whole or not at all. Raises CheckpointTaken where it exists."""
        try:
            self._files.create(name, text)
        except FileExistsError as error:
            raise CheckpointTaken(str(error)) from error

    # --- names --------------------------------------------------------------------------------------------------

    def _runs(self) -> list[DriverRun]:
        names = [name.partition(".") for name in self._files.names(_RUNS)]
        return [DriverRun(int(number), token) for number, _, token in names if number.isdecimal()]

    def _batch_ids(self, directory: str) -> list[int]:
        return [int(name) for name in self._files.names(directory) if name.isdecimal()]


def _parse(line: str) -> Any:
    if line == _VOID:
        return None
    try:
        return json.loads(line)
    except ValueError:
        # A source may spell its offsets as it likes.
        return line
