"""Requests of every API and version, drawn from a seed: absurd but well-formed, broken, or wide."""

from __future__ import annotations

import dataclasses
import itertools
import random
import struct
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple
from uuid import UUID

from einmal.broker.front.apis import Entry
from einmal.types import ErrorCode
from einmal.wire.frames import frame
from einmal.wire.messages import encode_request_header, request_type, response_body_position
from einmal.wire.schemas import unwrap
from tests.fuzz.batches import Batches
from tests.fuzz.values import FLOATS, LENGTH, LENGTHS, NULL, NULLS, POOLS, pool
from tests.wire.mapped import decode_response, write

_WIDE_ELEMENTS: Final = (3_000, 20_000, 49_000, 60_000)
_WIDE_BYTES_MAX: Final = 4 * 1024 * 1024
_WEIGHTS: Final = {0: 8.0, 1: 3.0, 2: 3.0, 20: 0.02, 47: 0.02, 21: 0.1, 33: 0.3, 44: 0.3, 57: 0.1}
"""How often an API is drawn, where that is not once: what writes and reads records often; rarely what deletes it
(DeleteTopics, OffsetDelete, DeleteRecords) or may make a topic useless (settings, features): something must be left.
"""
_FETCH: Final = 1
_JOIN_GROUP: Final = 11
_INIT_PRODUCER_ID: Final = 22
_PARTITION_KEYS: Final = frozenset(("index", "partition", "partition_index"))
_TEACHERS: Final = frozenset((_FETCH, _JOIN_GROUP, _INIT_PRODUCER_ID))
_SESSIONS_FROM: Final = 7
_FETCH_SESSION: Final = struct.Struct(">6xi")
"""After the throttle time and the error code."""
_LEARNED: Final = 0.5
"""How often a field is what an answer has said, where it can be."""
_LEARNED_MAX: Final = 16


class Api(NamedTuple):
    key: int
    version: int
    schema: Any


class Requests:
    """``topic_ids``: of topics that exist."""

    def __init__(
        self, entries: Sequence[Entry], source: random.Random, batches: Batches, topic_ids: Sequence[UUID]
    ) -> None:
        self._source = source
        self._batches = batches
        self._topic_ids = topic_ids
        self._plans: dict[Any, tuple[tuple[str, Callable[[], Any]], ...]] = {}
        self._learned: dict[str, list[Any]] = {"member_id": [], "producer_id": [], "session_id": []}
        """What answers have said, and no request could guess."""
        self.apis = [
            Api(entry.key, version, request_type(entry.key, version))
            for entry in entries
            for version in range(entry.versions.min, entry.versions.max + 1)
        ]
        # Few versions or many: each API is as likely.
        counts: dict[int, int] = {}
        for api in self.apis:
            counts[api.key] = counts.get(api.key, 0) + 1
        self._weights = list(itertools.accumulate(_WEIGHTS.get(api.key, 1.0) / counts[api.key] for api in self.apis))

    def draw(self, count: int) -> list[Api]:
        return self._source.choices(self.apis, cum_weights=self._weights, k=count)

    def learn(self, api: Api, answer: bytes) -> None:
        """Use ids that no request could guess in later ones. ``answer``: from its correlation id on."""
        if api.key not in _TEACHERS:
            return
        position = response_body_position(api.key, api.version, answer)
        if api.key == _FETCH:
            if api.version >= _SESSIONS_FROM:
                self._remember("session_id", _FETCH_SESSION.unpack_from(answer, position)[0])
            return
        fields = decode_response(api.key, api.version, answer, position)
        name = "member_id" if api.key == _JOIN_GROUP else "producer_id"
        self._remember(name, getattr(fields, name))

    def _remember(self, name: str, value: Any) -> None:
        if value not in ("", 0, -1):
            known = self._learned[name]
            known.append(value)
            del known[:-_LEARNED_MAX]

    def well_formed(self, api: Api, correlation_id: int) -> bytes:
        body = write(api.schema, self._fields(api.schema))
        return frame(encode_request_header(api.key, api.version, correlation_id, "fuzz"), body)

    def broken(self, api: Api, correlation_id: int) -> bytes:
        """Bytes changed, removed or added; the frame's length is right."""
        data = bytearray(self.well_formed(api, correlation_id)[4:])
        source = self._source
        for _ in range(source.randint(1, 3)):
            how, place = source.randrange(4), source.randrange(8, len(data)) if len(data) > 8 else len(data)
            if how == 0 and place < len(data):
                data[place] = source.choice((0, 1, 0x7F, 0x80, 0xFF, source.randrange(256)))
            elif how == 1:
                del data[place:]
            elif how == 2:
                data[place:place] = source.choice((b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\x00", b"\xff" * 9))
            else:
                del data[place : place + source.randint(1, 4)]
        return struct.pack(">i", len(data)) + data

    def wide(self, api: Api, correlation_id: int) -> bytes | None:
        """With one array of very many elements; None where the API has none."""
        paths = _arrays(api.schema)
        if not paths:
            return None
        fields = self._fields(api.schema)
        count = self._source.choice(_WIDE_ELEMENTS)
        self._widen(api.schema, fields, self._source.choice(paths), count)
        body = write(api.schema, fields)
        if len(body) > _WIDE_BYTES_MAX:
            return None
        return frame(encode_request_header(api.key, api.version, correlation_id, "fuzz"), body)

    def _widen(self, schema: Any, fields: dict[str, Any], path: tuple[str, ...], count: int) -> None:
        for field in dataclasses.fields(schema):
            if field.name != path[0]:
                continue
            inner, _is_nullable, is_array = unwrap(field.type)
            if len(path) > 1:
                nested = self._fields(inner)
                self._widen(inner, nested, path[1:], count)
                fields[field.name] = [nested] if is_array else nested
            else:
                # Alike or numbered, as what is asked for once or often costs differently.
                one = self._one(schema, inner, field)
                elements = [one() for _ in range(min(count, 20))]
                fields[field.name] = _numbered(elements, count) or (elements * count)[:count]

    # --- fields --------------------------------------------------------------------------------------------------

    def _fields(self, schema: Any) -> dict[str, Any]:
        plan = self._plans.get(schema)
        if plan is None:
            plan = self._plans[schema] = tuple(
                (field.name, self._value_of(schema, field)) for field in dataclasses.fields(schema)
            )
        return {name: value() for name, value in plan}

    def _value_of(self, schema: Any, field: Any) -> Callable[[], Any]:
        inner, is_nullable, is_array = unwrap(field.type)
        one = self._one(schema, inner, field)
        value: Callable[[], Any] = one
        if is_array:
            length = self._any_of(LENGTHS.get(field.name, LENGTH))
            value = lambda: [one() for _ in range(length())]  # noqa: E731
        if not is_nullable:
            return value
        uniform, share = self._source.random, NULLS.get(field.name, NULL)
        return lambda: None if uniform() < share else value()

    def _one(self, schema: Any, inner: Any, field: Any) -> Callable[[], Any]:
        if dataclasses.is_dataclass(inner):
            return lambda: self._fields(inner)
        source, name, kind = self._source, field.name, field.metadata["kafka_type"]
        if kind == "records" or (kind == "bytes" and name == "records"):
            producers = self._learned["producer_id"]
            return lambda: self._batches.any(source, producers)
        if kind == "bool" and name not in POOLS:
            return lambda: source.random() < 0.5
        if kind == "uuid":
            return self._any_of((*self._topic_ids, UUID(int=0), UUID(int=1), UUID(int=source.getrandbits(128))))
        if kind == "error_code":
            return self._any_of((ErrorCode.none, ErrorCode.unknown_server_error))
        if kind == "float64":
            return self._any_of(FLOATS)
        drawn = self._any_of(pool(schema.__name__, name, kind))
        known = self._learned.get(name.removeprefix("v3_and_below_"))
        if known is None:
            return drawn
        return lambda: source.choice(known) if known and source.random() < _LEARNED else drawn()

    def _any_of(self, values: Sequence[Any]) -> Callable[[], Any]:
        """As ``random.choice``, in a third of its time."""
        uniform, count = self._source.random, len(values)
        return lambda: values[int(uniform() * count)]


def _numbered(elements: Sequence[Any], count: int) -> list[Any] | None:
    """As many with numbers of their own: partitions, some of which there are. None: they have no numbers."""
    if count >= 2**15:
        return None
    if isinstance(elements[0], dict):
        keys = _PARTITION_KEYS & elements[0].keys()
        numbers = [{**elements[number % len(elements)], key: number} for key in keys for number in range(count)]
        return numbers or None
    is_number = isinstance(elements[0], int) and not isinstance(elements[0], bool)
    return list(range(count)) if is_number else None


def _arrays(schema: Any, prefix: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """The path of every array in a message."""
    paths = []
    for field in dataclasses.fields(schema):
        inner, _is_nullable, is_array = unwrap(field.type)
        if is_array:
            paths.append((*prefix, field.name))
        if dataclasses.is_dataclass(inner):
            paths += _arrays(inner, (*prefix, field.name))
    return paths
