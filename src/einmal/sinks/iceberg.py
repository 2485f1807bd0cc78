"""An Iceberg table as a sink, by pyiceberg: data files, record and fence in one commit of the catalog.

The state of a name is in table properties, because snapshots expire; the record is in the snapshot's summary, too, for
those who look there. What makes it a fence is the requirement of each commit that the current snapshot is the one whose
properties were compared (``assert-ref-snapshot-id``). Properties alone would not be: a catalog does not compare them.
So ``acquire`` commits a snapshot of its own, without files, and a driver that compared before it is refused.

pyiceberg repeats a refused commit on the newest snapshot (``commit.retry.num-retries``), which is right for appends and
wrong for a comparison: here each try is a single one, whatever the table's property.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlparse

from einmal.options.values import Options
from einmal.pipeline.reasons import HopVerdict, Reason
from einmal.sinks.arrow_rows import arrow_type
from einmal.sinks.commit_point import Identity, SinkFailed
from einmal.sinks.iceberg_files import data_file
from einmal.sinks.lake import LakeSink, LakeState, LakeTable, SnapshotSuperseded, library_errors, state_as_json
from einmal.sinks.row_schema import RowSchema
from einmal.sinks.staged_files import FieldIds, StagedFile, field_ids, inner_fields
from einmal.types import ProducerEpoch, ProducerId

_EPOCH: Final = "einmal.epoch."
_STATE: Final = "einmal.state."
"""Properties, followed by the name of a pipeline."""
_LAST_EPOCH: Final = "einmal.last-epoch"
"""The last epoch of all names that were forgotten."""
_CATALOG: Final = ("catalog.type", "catalog.uri", "catalog.warehouse", "catalog.credential", "catalog.token")
_NARROW: Final = ("tinyint", "smallint")


class IcebergTable(LakeTable):
    def __init__(self, catalog: str, settings: dict[str, str], identifier: str) -> None:
        """``settings``: of the catalog, under pyiceberg's names."""
        self._catalog_name = catalog
        self._settings = settings
        self._identifier = identifier
        self._opened: Any = None
        self._root: Path | None = None

    @property
    def label(self) -> str:
        return f"{self._catalog_name}.{self._identifier}"

    @property
    def root(self) -> Path:
        if self._root is None:
            self.load()
        assert self._root is not None, "there is a table"
        return self._root

    @property
    def data(self) -> Path:
        return self.root / "data"

    @property
    def _catalog(self) -> Any:
        from pyiceberg.catalog import load_catalog

        if self._opened is None:
            self._opened = load_catalog(self._catalog_name, **self._settings)
        return self._opened

    def load(self) -> Any:
        from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

        try:
            table = self._catalog.load_table(self._identifier)
        except (NoSuchTableError, NoSuchNamespaceError):
            return None
        location = urlparse(table.location())
        if location.scheme not in ("", "file"):
            raise SinkFailed(
                f"{self.label} is at {table.location()}: only tables in a directory are supported, which the driver "
                "and all executors mount",
                will_again=True,
            )
        self._root = Path(location.path)
        return table

    def identity(self, snapshot: Any) -> str:
        return str(snapshot.metadata.table_uuid)

    def owner(self, snapshot: Any) -> str:
        """A table that is renamed keeps its directory, and a new one of the old name gets the same."""
        return self.identity(snapshot)

    def next_epoch(self, snapshot: Any, name: str) -> int:
        return max(super().next_epoch(snapshot, name), int(snapshot.properties.get(_LAST_EPOCH, 0)) + 1)

    def names(self, snapshot: Any) -> Sequence[str]:
        return [key.removeprefix(_EPOCH) for key in snapshot.properties if key.startswith(_EPOCH)]

    def state(self, snapshot: Any, name: str) -> LakeState:
        if (text := snapshot.properties.get(f"{_EPOCH}{name}")) is None:
            return LakeState()
        epoch = int(text)
        text = snapshot.properties.get(f"{_STATE}{name}", "")
        try:
            fields = json.loads(text)
            committed = Identity(ProducerId(int(fields["committed"][0])), ProducerEpoch(int(fields["committed"][1])))
            return LakeState(epoch, committed, fields["record"], int(fields["timestamp_ms"]))
        except (ValueError, LookupError, TypeError):
            # It cannot be read as a record, and nothing is removed that it may have committed.
            return LakeState(epoch, Identity(ProducerId(epoch), ProducerEpoch(2**32)), text)

    def commit(self, snapshot: Any, name: str, state: LakeState, files: Sequence[StagedFile]) -> None:
        from pyiceberg.exceptions import CommitFailedException
        from pyiceberg.table import TableProperties

        # This changes this copy of the metadata alone: properties are sent only where a transaction sets them.
        snapshot.metadata.properties[TableProperties.COMMIT_NUM_RETRIES] = "0"
        summary = {"einmal.pipeline": name, "einmal.epoch": str(state.epoch), "einmal.record": _short(state.record)}
        with library_errors():
            transaction = snapshot.transaction()
            update = transaction.update_snapshot(snapshot_properties=summary)
            appends = update.merge_append if files and _merges(snapshot) else update.fast_append
            with appends() as append:
                for file in files:
                    append.append_data_file(data_file(snapshot.metadata, file))
            if state.is_forgotten:
                transaction.remove_properties(f"{_EPOCH}{name}", f"{_STATE}{name}")
                last = max(state.epoch, self.next_epoch(snapshot, name) - 1)
                transaction.set_properties({_LAST_EPOCH: str(last)})
            else:
                epoch = {f"{_EPOCH}{name}": str(state.epoch)}
                transaction.set_properties(epoch | {f"{_STATE}{name}": state_as_json(state)})
        try:
            transaction.commit_transaction()
        except CommitFailedException as error:
            raise SnapshotSuperseded(str(error)) from error

    def field_ids(self, snapshot: Any) -> FieldIds:
        return field_ids(snapshot.schema().as_arrow())

    def create(self, schema: RowSchema) -> None:
        self._catalog.create_namespace_if_not_exists(self._identifier.rpartition(".")[0])
        import pyarrow

        # Inner fields, too: those of the rows of another version of the query.
        fields = [pyarrow.field(field.name, _nullable(field.type)) for field in _arrow(schema)]
        self._catalog.create_table_if_not_exists(self._identifier, schema=pyarrow.schema(fields))

    def differences(self, snapshot: Any, schema: RowSchema) -> list[tuple[str, str]]:
        narrow = [field for field in schema if str(field.type) in _NARROW]
        if narrow:
            return [
                (f"column {field.name!r} is {field.type}, which Iceberg lacks", "cast it to int") for field in narrow
            ]
        problems = []
        if snapshot.spec().fields:
            problems.append(("the table is partitioned", "einmal writes tables without partitions"))
        columns = {field.name: field for field in snapshot.schema().as_arrow()}
        nulls: list[str] = []
        for field in _arrow(schema, {column.name: column.nullable for column in schema}):
            column = columns.pop(field.name, None)
            if column is None:
                problems.append((f"the table has no column {field.name!r}", "add it to the table first"))
            elif _plain(column.type) != _plain(field.type):
                kinds = f"{_plain(column.type)} in the table, and {_plain(field.type)} in the rows"
                problems.append((f"column {field.name!r} is {kinds}", "cast it in the query"))
            else:
                nulls += _required(column, field, field.name)
        hint = "make it so in the query: coalesce(…, lit(…)) of a column, or make it optional in the table"
        problems += [(f"{name} of the table is required, and in the rows it may be NULL", hint) for name in nulls]
        return problems + [
            (f"column {column.name!r} of the table is required, and the rows have none", "select it in the query")
            for column in columns.values()
            if not column.nullable
        ]


def _short(record: str | None) -> str:
    """A record for the summary, which stays as long as its snapshot: without the commit file of a stateful query."""
    try:
        fields = json.loads(record or "")
        return json.dumps(fields | {"commit_text": None}, separators=(",", ":"), sort_keys=True)
    except (ValueError, TypeError):
        return ""


def _merges(snapshot: Any) -> bool:
    from pyiceberg.table import TableProperties
    from pyiceberg.utils.properties import property_as_bool

    default = TableProperties.MANIFEST_MERGE_ENABLED_DEFAULT
    return bool(property_as_bool(snapshot.properties, TableProperties.MANIFEST_MERGE_ENABLED, default))


def _arrow(schema: RowSchema, nullable: Mapping[str, bool] | None = None) -> Any:
    """By default columns may be NULL, in files that lack them."""
    import pyarrow

    may_be_null = nullable or {}
    fields = [(field.name, arrow_type(field.type), may_be_null.get(field.name, True)) for field in schema]
    return pyarrow.schema([pyarrow.field(*field) for field in fields])


def _nullable(kind: Any) -> Any:
    """A type of Arrow's, of which every part may be NULL, but the keys of maps."""
    import pyarrow

    if pyarrow.types.is_struct(kind):
        return pyarrow.struct([pyarrow.field(field.name, _nullable(field.type)) for field in kind])
    if pyarrow.types.is_list(kind):
        return pyarrow.list_(pyarrow.field(kind.value_field.name, _nullable(kind.value_type)))
    if pyarrow.types.is_map(kind):
        return pyarrow.map_(kind.key_type, _nullable(kind.item_type))
    return kind


def _required(column: Any, rows: Any, path: str) -> Iterator[str]:
    """The parts of a column that are required in the table, and may be NULL in the rows. Both have one type."""
    if not column.nullable and rows.nullable:
        yield f"column {path!r}"
    for (name, part), (_, of_rows) in zip(inner_fields(column.type), inner_fields(rows.type), strict=True):
        yield from _required(part, of_rows, f"{path}.{name}")


def _plain(kind: Any) -> str:
    """A type of Arrow's as text, without what may differ between rows and table."""
    text = str(kind).replace("large_", "").replace("item:", "element:")
    return text.replace(" not null", "")


class IcebergSink(LakeSink):
    """``type = "iceberg"``. ``table``: namespace and name; ``catalog``: as in pyiceberg's configuration, whose settings
    the options ``catalog.uri`` and so on replace."""

    OPTIONS = ("table", "catalog", *_CATALOG)
    SECRETS = ("catalog.credential", "catalog.token")

    def __init__(self, options: Options) -> None:
        settings = {name.removeprefix("catalog."): options.text(name) for name in _CATALOG}
        self._table = IcebergTable(
            options.text("catalog") or "default",
            {name: value for name, value in settings.items() if value is not None},
            options.required("table", "lake.words"),
        )

    @property
    def lake_table(self) -> LakeTable:
        return self._table

    def promises(self) -> tuple[Reason, ...]:
        return (
            Reason(
                HopVerdict.HOLDS,
                "one commit of the catalog has data files and record, on the snapshot whose epoch was compared",
            ),
            Reason(
                HopVerdict.IF,
                "the catalog compares snapshots atomically, and the table is not rolled back to an earlier one",
                "reset the pipeline after a rollback",
            ),
        )
