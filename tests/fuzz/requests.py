"""Requests of every API and version, drawn from a seed: absurd but well-formed, broken, or wide."""

from __future__ import annotations

import dataclasses
import random
import struct
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, Final, NamedTuple
from uuid import UUID

from einmal.types import ErrorCode
from einmal.wire.frames import frame
from einmal.wire.message_writer import message_writer
from einmal.wire.messages import encode_request_header, request_type
from einmal.wire.schemas import unwrap
from tests.fuzz.batches import Batches

TOPICS: Final = tuple(f"fuzz-{number}" for number in range(12))
_NAMES: Final = (
    *TOPICS,
    *TOPICS,
    *TOPICS,
    "",
    ".",
    "..",
    "../fuzz",
    "fuzz.0",
    "fuzz_0",
    "x" * 249,
    "x" * 250,
    "y" * 5000,
    "näme",
    "__consumer_offsets",
    "__transaction_state",
    "__cluster_metadata",
    "__einmal_commits",
    "a/b",
    "\x00",
)
_GROUPS: Final = (*(f"group-{number}" for number in range(10)), "", "g" * 3000)
_TRANSACTIONAL_IDS: Final = (*(f"txn-{number}" for number in range(10)), "", "t" * 3000)
_OTHER: Final = (
    "",
    "range",
    "consumer",
    "1",
    "0",
    "member",
    "retention.ms",
    "cleanup.policy",
    "compact",
    "-1",
    "é" * 9,
)
_NUMBERS: Final = (0, 0, 0, 1, 1, 1, 2, 3, 5, -1, -1, -2, -3, 10, 100, 2**15 - 1, -(2**15), 2**31 - 1, -(2**31))
_LARGE: Final = (*_NUMBERS, 2**63 - 1, -(2**63), 2**40)
_TIMES: Final = (0, 0, 0, 1, 5, 20, -1)
"""Of waits: mostly short, or the attackers would only wait."""
_WIDE_ELEMENTS: Final = (3_000, 20_000, 49_000, 60_000)
_WIDE_BYTES_MAX: Final = 4 * 1024 * 1024
_DESTRUCTIVE: Final = (20, 47)
"""DeleteTopics, OffsetDelete: rare, or nothing would be there to work on."""


class Api(NamedTuple):
    key: int
    version: int
    schema: Any


class Requests:
    """``topic_ids``: of topics that exist."""

    def __init__(
        self, modules: Sequence[ModuleType], source: random.Random, batches: Batches, topic_ids: Sequence[UUID]
    ) -> None:
        self._source = source
        self._batches = batches
        self._topic_ids = topic_ids
        self._plans: dict[Any, tuple[tuple[str, Callable[[], Any]], ...]] = {}
        self.apis = [
            Api(module.API_KEY, version, request_type(module.API_KEY, version))
            for module in modules
            for version in range(module.VERSIONS.min, module.VERSIONS.max + 1)
        ]
        # Few versions or many: each API is as likely; what writes and reads records is more so.
        counts: dict[int, int] = {}
        for api in self.apis:
            counts[api.key] = counts.get(api.key, 0) + 1
        weights = {0: 8.0, 1: 3.0, 2: 3.0, **dict.fromkeys(_DESTRUCTIVE, 0.02)}
        self._weights = [weights.get(api.key, 1.0) / counts[api.key] for api in self.apis]

    def draw(self, count: int) -> list[Api]:
        return self._source.choices(self.apis, self._weights, k=count)

    def well_formed(self, api: Api, correlation_id: int) -> bytes:
        body = bytearray()
        message_writer(api.schema)(body, self._fields(api.schema))
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
        body = bytearray()
        message_writer(api.schema)(body, fields)
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
                one = self._one(inner, field)
                elements = [one() for _ in range(min(count, 20))]
                is_number = isinstance(elements[0], int) and not isinstance(elements[0], bool)
                fields[field.name] = list(range(count)) if is_number and count < 2**15 else (elements * count)[:count]

    # --- fields --------------------------------------------------------------------------------------------------

    def _fields(self, schema: Any) -> dict[str, Any]:
        plan = self._plans.get(schema)
        if plan is None:
            plan = self._plans[schema] = tuple(
                (field.name, self._value_of(field)) for field in dataclasses.fields(schema)
            )
        return {name: value() for name, value in plan}

    def _value_of(self, field: Any) -> Callable[[], Any]:
        inner, is_nullable, is_array = unwrap(field.type)
        source, one = self._source, self._one(inner, field)
        value: Callable[[], Any] = one
        if is_array:
            value = lambda: [one() for _ in range(source.choice((0, 1, 1, 1, 2, 3)))]  # noqa: E731
        if not is_nullable:
            return value
        return lambda: None if source.random() < 0.15 else value()

    def _one(self, inner: Any, field: Any) -> Callable[[], Any]:
        if dataclasses.is_dataclass(inner):
            return lambda: self._fields(inner)
        source, name, kind = self._source, field.name, field.metadata["kafka_type"]
        if kind == "string":
            names = _strings(name)
            return lambda: source.choice(names)
        if kind == "records" or (kind == "bytes" and name == "records"):
            return lambda: self._batches.any(source)
        if kind == "bytes":
            return lambda: source.choice((b"", b"x", source.randbytes(source.randrange(60)), b"\x00\x01" * 20))
        if kind == "bool":
            return lambda: source.random() < 0.5
        if kind == "uuid":
            return lambda: source.choice(
                (*self._topic_ids, UUID(int=0), UUID(int=1), UUID(int=source.getrandbits(128)))
            )
        if kind == "error_code":
            return lambda: source.choice((ErrorCode.none, ErrorCode.unknown_server_error))
        if kind == "float64":
            return source.random
        if name in ("max_wait", "timeout", "timeout_ms", "max_wait_ms", "session_timeout", "rebalance_timeout"):
            return lambda: source.choice(_TIMES)
        if name in ("num_partitions", "count"):
            return lambda: source.choice((1, 1, 2, 3, -1, 0, 2**31 - 1))
        low, high = _RANGES.get(kind, (-(2**31), 2**31 - 1))
        numbers = [number for number in _LARGE if low <= number <= high]
        return lambda: source.choice(numbers)


_RANGES: Final = {
    "int8": (-128, 127),
    "int16": (-(2**15), 2**15 - 1),
    "int64": (-(2**63), 2**63 - 1),
    "uint8": (0, 255),
    "uint16": (0, 2**16 - 1),
    "uint32": (0, 2**32 - 1),
    "uint64": (0, 2**63),
    "timedelta_i64": (-(2**63), 2**63 - 1),
    "datetime_i64": (-(2**63), 2**63 - 1),
}


def _strings(name: str) -> Sequence[str]:
    if "transactional_id" in name:
        return _TRANSACTIONAL_IDS
    if "group" in name or name == "coordinator_keys":
        return _GROUPS
    if name in ("name", "topic", "topic_name", "topic_names", "resource_name"):
        return _NAMES
    return _OTHER


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
