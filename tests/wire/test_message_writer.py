"""Our writer of messages and kio's: the same bytes."""

import dataclasses
import random
import struct
from typing import Any
from uuid import UUID

import pytest
from kio.schema.index import api_key_map, schema_name_map
from kio.static.constants import EntityType

from einmal.types import ErrorCode
from einmal.wire.messages import request_type, response_type
from einmal.wire.primitives import STRING_BYTES_MAX
from einmal.wire.schemas import unwrap
from tests.suite.cases import each_case
from tests.wire.kio_messages import encode
from tests.wire.mapped import decode_response, encode_response, write

ALL = [
    (key, version, loader)
    for key, name in api_key_map.items()
    for version, kinds in schema_name_map[name].items()
    for kind, loader in ((EntityType.request, request_type), (EntityType.response, response_type))
    if kind in kinds
]
ROUNDS = 5


def random_fields(schema: Any, source: random.Random) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for field in dataclasses.fields(schema):
        inner, is_nullable, is_array = unwrap(field.type)
        if source.random() < 0.2:
            continue
        if is_nullable and source.random() < 0.3 and field.metadata.get("tag") is None:
            fields[field.name] = None
        elif is_array:
            fields[field.name] = [_value(inner, field, source) for _ in range(source.randint(0, 3))]
        else:
            fields[field.name] = _value(inner, field, source)
    return fields


def _value(inner: Any, field: Any, source: random.Random) -> Any:
    if dataclasses.is_dataclass(inner):
        return random_fields(inner, source)
    kind = field.metadata["kafka_type"]
    if kind == "string":
        return source.choice(("", "t", "näme", "x" * 300))
    if kind in ("bytes", "records"):
        return source.randbytes(source.randint(0, 300))
    if kind == "bool":
        return source.random() < 0.5
    if kind == "uuid":
        return UUID(int=source.getrandbits(128))
    if kind == "error_code":
        return source.choice(list(ErrorCode))
    return source.choice((0, 1, 5, 100))


@pytest.mark.parametrize("version", [1, 4])
def test_a_string_that_nobody_reads_is_not_written(version: int) -> None:
    schema = request_type(22, version)
    assert write(schema, {"transactional_id": "x" * STRING_BYTES_MAX})
    for text in ("x" * (STRING_BYTES_MAX + 1), "ä" * (STRING_BYTES_MAX // 2 + 1)):
        with pytest.raises(struct.error):
            write(schema, {"transactional_id": text})


@each_case(("api_key", "version", "loader"), ALL)
def test_every_message_is_written_as_kio_writes_it(api_key: int, version: int, loader: Any) -> None:
    schema = loader(api_key, version)
    source = random.Random(api_key * 100 + version)
    for _ in range(ROUNDS):
        fields = random_fields(schema, source)
        assert write(schema, fields) == encode(schema, fields)


@pytest.mark.parametrize("version", [1, 2])
def test_the_message_of_an_error_is_cut_to_what_a_client_can_read(version: int) -> None:
    """It may quote a setting of the request, and the older encoding has no longer string: the answer was lost."""
    response = {"error_code": ErrorCode.invalid_config, "error_message": "ä" * 20_000, "resource_name": "t"}
    answer = decode_response(33, version, encode_response(33, version, {"responses": [response]}), 0)
    assert answer.responses[0].error_message == "ä" * 16_383
    assert answer.responses[0].resource_name == "t"
