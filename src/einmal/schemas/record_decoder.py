"""Keys or values of one source: its format, the schema registry's wire format, and the policy for drift."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from einmal.schemas.avro_format import AvroDecoder, AvroSchema
from einmal.schemas.columns import Unknown, rescued_text
from einmal.schemas.debezium_format import DebeziumDecoder
from einmal.schemas.decoder import Decoded, Decoder, Limits
from einmal.schemas.errors import (
    SchemaDrift,
    SchemaError,
    SchemaNotFound,
    UnknownField,
    UnknownSchemaId,
    UnusableSchema,
)
from einmal.schemas.json_format import JsonDecoder
from einmal.schemas.protobuf_format import ProtobufDecoder, descriptor_bytes
from einmal.schemas.registry import KINDS, RegisteredSchema, SchemaRegistry
from einmal.schemas.settings import DISCARD_ROW, EVOLVE, FREEZE, LoadedField
from einmal.schemas.wire_format import message_indexes, unframed

ROOT: Final = "$"
"""How paths of the formats begin."""
_WRITERS_MAX: Final = 1_000
_FIELDS_MAX: Final = 100
_NAME_MAX: Final = 200


@dataclass(slots=True)
class SeenSchemas:
    """Findings of decoding, beside values: ids that the registry has and has not, and unknown fields. ``digests``: of
    the schemas by which values were read."""

    known: set[int] = field(default_factory=set)
    digests: set[tuple[int, str]] = field(default_factory=set)
    unknown: set[int] = field(default_factory=set)
    drift: set[str] = field(default_factory=set)

    def note_drift(self, paths: Mapping[str, Any]) -> None:
        for path in paths:
            if len(self.drift) < _FIELDS_MAX:
                self.drift.add(path[:_NAME_MAX])


class DecodedRow(NamedTuple):
    """``rescued``: the unknown fields as JSON, where the policy keeps them."""

    value: Any
    rescued: str | None


class RecordDecoder:
    """``root``: what the paths of unknown fields begin with. Raises SchemaError."""

    def __init__(
        self,
        loaded: LoadedField,
        contract: str,
        registry: SchemaRegistry | None = None,
        limits: Limits | None = None,
        root: str = ROOT,
    ) -> None:
        self._root = root
        self._format = loaded.format
        self._contract = contract
        self._registry = registry
        self._limits = limits or Limits()
        self._decoder = decoder_of(loaded, self._limits)
        self._writers: dict[int, AvroSchema | None | str] = {}
        """By id: the schema; None where the format needs none; or why it cannot be used."""
        self._digests: dict[int, tuple[int, str]] = {}
        """Ids and digests of the schemas by which values are read."""

    @property
    def ddl(self) -> str:
        return self._decoder.ddl

    @property
    def class_name(self) -> str:
        return f"{type(self._decoder).__module__}.{type(self._decoder).__qualname__}"

    def decode(self, raw: bytes | None, seen: SeenSchemas) -> DecodedRow:
        """Raises BadRow, SchemaDrift, RegistryUnavailable."""
        if raw is None:
            return DecodedRow(None, None)
        decoded = self._decoder.decode(raw) if self._registry is None else self._framed(raw, seen)
        if not decoded.unknown:
            return DecodedRow(decoded.value, None)
        unknown = {self._root + path.removeprefix(ROOT): value for path, value in decoded.unknown.items()}
        return self._drifted(Decoded(decoded.value, unknown), seen)

    def _drifted(self, decoded: Decoded, seen: SeenSchemas) -> DecodedRow:
        seen.note_drift(decoded.unknown)
        first = next(iter(decoded.unknown))[:_NAME_MAX]
        if self._contract == FREEZE:
            raise SchemaDrift(f"{first} is a field that the declared schema does not have")
        if self._contract == DISCARD_ROW:
            raise UnknownField(f"{first} is a field that the declared schema does not have")
        rescued = rescued_text(Unknown(dict(decoded.unknown))) if self._contract == EVOLVE else None
        return DecodedRow(decoded.value, rescued)

    def _framed(self, raw: bytes, seen: SeenSchemas) -> Decoded:
        self._limits.check_size(raw)
        schema_id, payload = unframed(raw)
        writer = self._writer(schema_id, seen)
        if isinstance(self._decoder, AvroDecoder):
            return self._decoder.decode(payload, writer)
        if isinstance(self._decoder, ProtobufDecoder):
            indexes, payload = message_indexes(payload)
            return self._decoder.decode(payload, indexes)
        return self._decoder.decode(payload)

    def _writer(self, schema_id: int, seen: SeenSchemas) -> AvroSchema | None:
        """Raises UnknownSchemaId, UnusableSchema, RegistryUnavailable."""
        if schema_id in seen.unknown:
            # One answer for all records of a task.
            raise UnknownSchemaId(f"the registry has no schema with id {schema_id}")
        if schema_id not in self._writers:
            assert self._registry is not None
            try:
                registered = self._registry.schema(schema_id)
            except SchemaNotFound as error:
                seen.unknown.add(schema_id)
                raise UnknownSchemaId(f"the registry has no schema with id {schema_id}") from error
            if len(self._writers) >= _WRITERS_MAX:
                oldest = next(iter(self._writers))
                self._writers.pop(oldest)
                self._digests.pop(oldest, None)
            self._writers[schema_id] = self._usable(registered)
            if isinstance(self._decoder, AvroDecoder):
                self._digests[schema_id] = (schema_id, registered.digest)
        seen.known.add(schema_id)
        if schema_id in self._digests:
            seen.digests.add(self._digests[schema_id])
        writer = self._writers[schema_id]
        if isinstance(writer, str):
            raise UnusableSchema(f"schema id {schema_id}: {writer}")
        return writer

    def _usable(self, registered: RegisteredSchema) -> AvroSchema | None | str:
        if registered.kind != KINDS[self._format]:
            return f"it is {registered.kind}, not {KINDS[self._format]}"
        if self._format != "avro":
            return None
        try:
            return AvroSchema(registered.text, registered.references.values(), declared=False)
        except SchemaError as error:
            return str(error).partition("\n")[0]


def decoder_of(loaded: LoadedField, limits: Limits) -> Decoder:
    """Raises SchemaError."""
    match loaded.format:
        case "json":
            return JsonDecoder(loaded.schema, limits)
        case "avro":
            return AvroDecoder(AvroSchema(loaded.schema, loaded.references), limits)
        case "debezium-json":
            return DebeziumDecoder(loaded.schema, limits)
        case _:
            return ProtobufDecoder(descriptor_bytes(loaded.schema), loaded.message, limits)
