"""Claims about the options of a declared format: defaults, limits, and what is refused with a hint."""

from __future__ import annotations

from pathlib import Path

import pytest

from einmal.schemas.decoder import Limits
from einmal.schemas.record_decoder import decoder_of
from einmal.schemas.registry import RegisteredSchema
from einmal.schemas.settings import FieldSettings, LoadedField, SettingError, decode_settings, load_field

JSON = {"value.format": "json", "value.schema": "{}"}
INNER = '{"type": "record", "name": "Inner", "fields": [{"name": "x", "type": "long"}]}'
LETTERS = {"errors.tolerance": "all", "errors.deadletterqueue.topic.name": "dlq"}


def test_the_defaults_stop_at_a_bad_row_and_keep_unknown_fields() -> None:
    settings = decode_settings(JSON)
    assert (settings.tolerates, settings.contract, settings.context_headers, settings.topic) == (
        False,
        "evolve",
        True,
        None,
    )


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "no format is declared"),
        (JSON | {"value.fromat": "json"}, r"did you mean 'value\.format'"),
        ({"value.schema": "x"}, r"value\.schema is set without value\.format"),
        ({"value.format": "xml", "value.schema": "x"}, "json, avro, protobuf"),
        ({"value.format": "json"}, "has no schema"),
        ({"value.format": "protobuf", "schema.registry.url": "http://x"}, "has no schema"),
        (JSON | {"key.format": "debezium-json", "key.schema": "id INT"}, "a format of values"),
        ({"value.format": "debezium-json"}, "has no schema"),
        ({"value.format": "debezium-json", "value.schema": "id UUID"}, r"value\.schema: column 'id' has type 'UUID'"),
        (
            {"value.format": "debezium-json", "value.schema": "id INT", "schema.registry.url": "http://x"},
            "has no schema registry",
        ),
        (JSON | {"errors.tolerance": "some"}, "none, all"),
        (JSON | {"errors.tolerance": "all"}, "needs a dead-letter topic"),
        (JSON | {"schema.contract": "discard_row"}, "makes dead letters"),
        (JSON | {"schema.contract": "ignore"}, "evolve, freeze, discard_row, discard_value"),
        (JSON | {"errors.deadletterqueue.limit": "many"}, "a share of them"),
        (JSON | {"errors.deadletterqueue.limit": "101%"}, "a share of them"),
        (JSON | {"basic.auth.user.info": "a:b"}, r"without schema\.registry\.url"),
        (JSON | {"schema.registry.url": "ftp://x"}, "http or https"),
        (JSON | {"schema.registry.url": "http://"}, "http or https"),
        (JSON | {"schema.registry.url": "http://x:70000"}, "http or https"),
        (JSON | {"schema.registry.url": "http://x:8o81"}, "http or https"),
        (JSON | {"schema.registry.url": "http://x,http://[::1"}, "http or https"),
    ],
)
def test_options_that_cannot_be_meant_are_refused(given: dict[str, str], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        decode_settings(given)


@pytest.mark.parametrize(
    ("limit", "bad", "records", "exceeded"),
    [
        ("10", 10, 100, False),
        ("10", 11, 10**9, True),
        ("1%", 1, 100, False),
        ("1%", 2, 100, True),
        ("0.5 %", 1, 100, True),
        ("10%", 1, 4, False),
        ("10%", 11, 20, True),
        ("0", 1, 1, True),
        (None, 10**9, 10**9, False),
    ],
)
def test_a_limit_is_a_count_or_a_share(limit: str | None, bad: int, records: int, exceeded: bool) -> None:
    given = JSON | LETTERS | ({} if limit is None else {"errors.deadletterqueue.limit": limit})
    assert decode_settings(given).limit.is_exceeded(bad, records) is exceeded


def test_a_secret_is_not_in_the_settings_text() -> None:
    settings = decode_settings(
        JSON | {"schema.registry.url": "http://u:secret@x", "basic.auth.user.info": "user:secret"}
    )
    assert "secret" not in repr(settings)


def test_a_schema_is_a_file_or_the_text_itself(tmp_path: Path) -> None:
    path = tmp_path / "x.schema.json"
    path.write_text("{}")

    def load(kind: str, schema: str) -> str:
        return load_field(FieldSettings(kind, schema, None), lambda name: Path(name).read_bytes(), None).schema

    assert load("json", str(path)) == load("json", "{}") == "{}"
    assert load("protobuf", str(path)) == "e30="
    assert load("debezium-json", "id INT") == "id INT"
    with pytest.raises(SettingError, match="cannot be read"):
        load("json", str(tmp_path / "missing"))


def test_the_latest_schema_is_of_the_declared_format_and_comes_with_those_it_refers_to() -> None:
    def load(kind: str, registered: str) -> LoadedField:
        found = RegisteredSchema(1, registered, '"Inner"', {"Inner": INNER})
        return load_field(FieldSettings(kind, None, None), lambda name: Path(name).read_bytes(), lambda: found)

    assert decoder_of(load("avro", "AVRO"), Limits()).ddl == "struct<`x`:bigint>"
    with pytest.raises(SettingError, match="latest schema is JSON, and format avro is declared"):
        load("avro", "JSON")
