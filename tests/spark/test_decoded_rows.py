"""Claims about records that a task decodes, without Spark: key and value, and what their schemas do not have."""

from __future__ import annotations

import json
from typing import Any

import pyarrow

from einmal.schemas.settings import LoadedField
from einmal.spark.decoding.rows import RESCUED, Decoding, RowCodec

SCHEMA = LoadedField("json", '{"type": "object", "properties": {"id": {"type": "integer"}}}')
COLUMN = pyarrow.struct([("id", pyarrow.int64())])


def codec(*fields: str) -> RowCodec:
    return RowCodec(
        Decoding(
            source="payments",
            fields=dict.fromkeys(fields, SCHEMA),
            columns=dict.fromkeys(fields, COLUMN),
            contract="evolve",
            registry=None,
            rescues=True,
            tolerates=False,
            topic=None,
            context_headers=True,
        )
    )


def records(*pairs: tuple[bytes | None, bytes | None]) -> Any:
    keys, values = zip(*pairs, strict=True)
    return pyarrow.RecordBatch.from_pydict({"key": pyarrow.array(keys), "value": pyarrow.array(values)})


def rescued(decoder: RowCodec, *pairs: tuple[bytes | None, bytes | None]) -> list[Any]:
    texts = decoder.decode(records(*pairs)).columns[RESCUED].to_pylist()
    return [None if text is None else json.loads(text) for text in texts]


def test_what_key_and_value_have_beside_their_schemas_is_rescued_from_both() -> None:
    decoder = codec("key", "value")
    assert rescued(
        decoder,
        (b'{"id": 1, "x": 1}', b'{"id": 2, "x": 2}'),
        (b'{"id": 1, "x": 1}', b'{"id": 2}'),
        (b'{"id": 1}', b'{"id": 2, "x": 2}'),
        (b'{"id": 1}', None),
    ) == [{"key.x": 1, "$.x": 2}, {"key.x": 1}, {"$.x": 2}, None]
    assert decoder.seen.drift == {"key.x", "$.x"}


def test_paths_of_what_alone_is_decoded_begin_with_a_dollar_sign() -> None:
    pair = (b'{"x": 1}', b'{"x": 2}')
    assert rescued(codec("key"), pair) == [{"$.x": 1}]
    assert rescued(codec("value"), pair) == [{"$.x": 2}]
