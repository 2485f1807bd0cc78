"""confluent-kafka's serializers, registering with our embedded registry or with Apicurio, and our decoders."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from einmal.schemas.errors import SchemaNotFound
from einmal.schemas.record_decoder import RecordDecoder, SeenSchemas
from einmal.schemas.registry import SchemaRegistry
from einmal.schemas.settings import LoadedField
from einmal.testing.registry_server import RegistryServer
from tests.interop.apicurio import Apicurio, ApicurioUnavailable
from tests.schemas.protobuf_files import file_set, message_class

pytestmark = pytest.mark.interop

AVRO = json.dumps({"type": "record", "name": "Payment", "fields": [{"name": "id", "type": "long"}]})
JSON = json.dumps({"title": "Payment", "type": "object", "properties": {"id": {"type": "integer"}}})
CONTEXT = SerializationContext("payments", MessageField.VALUE)


@pytest.fixture(scope="module", params=["embedded", pytest.param("apicurio", marks=pytest.mark.long)])
def url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if request.param == "embedded":
        with RegistryServer() as server:
            yield server.url
        return
    try:
        with Apicurio(tmp_path_factory.mktemp("apicurio")) as apicurio:
            yield apicurio.url
    except ApicurioUnavailable as error:
        pytest.skip(str(error))


def decoder(url: str, kind: str, schema: str, message: str | None = None) -> RecordDecoder:
    return RecordDecoder(LoadedField(kind, schema, message), "evolve", SchemaRegistry({"schema.registry.url": url}))


def test_avro_of_their_serializer_is_decoded_also_with_a_newer_schema(url: str) -> None:
    with SchemaRegistryClient({"url": url}) as registry:
        raw = AvroSerializer(registry, AVRO)({"id": 7}, CONTEXT)
        newer = json.loads(AVRO)
        newer["fields"].append({"name": "currency", "type": "string", "default": "EUR"})
        second = AvroSerializer(registry, json.dumps(newer))({"id": 8, "currency": "CHF"}, CONTEXT)
        assert len(registry.get_versions("payments-value")) == 2
    rows = [decoder(url, "avro", AVRO).decode(each, SeenSchemas()) for each in (raw, second)]
    assert [row.value for row in rows] == [{"id": 7}, {"id": 8}]
    assert [row.rescued for row in rows] == [None, '{"$.currency":"CHF"}']
    latest = SchemaRegistry({"schema.registry.url": url}).latest("payments-value")
    assert json.loads(latest.text)["fields"][1]["name"] == "currency"


def test_json_of_their_serializer_is_decoded(url: str) -> None:
    context = SerializationContext("json-payments", MessageField.VALUE)
    with SchemaRegistryClient({"url": url}) as registry:
        raw = JSONSerializer(JSON, registry)({"id": 7}, context)
    assert decoder(url, "json", JSON).decode(raw, SeenSchemas()).value == {"id": 7}


def test_protobuf_of_their_serializer_is_decoded(url: str) -> None:
    import base64

    files = file_set(Other=[("x", 1, "string")], Payment=[("id", 1, "int64")])
    kind = message_class(files, "test.Payment")
    context = SerializationContext("protobuf-payments", MessageField.VALUE)
    with SchemaRegistryClient({"url": url}) as registry:
        serializer = ProtobufSerializer(kind, registry, {"use.deprecated.format": False})
        raw = serializer(kind(id=7), context)
    loaded = decoder(url, "protobuf", base64.b64encode(files).decode(), "test.Payment")
    assert loaded.decode(raw, SeenSchemas()).value == {"id": 7}


def test_an_id_that_the_registry_does_not_have_is_not_found(url: str) -> None:
    with SchemaRegistryClient({"url": url}) as registry:
        registry.register_schema("other-value", Schema(AVRO, "AVRO"))
    with pytest.raises(SchemaNotFound):
        SchemaRegistry({"schema.registry.url": url}).schema(2_000_000)
    with pytest.raises(SchemaNotFound):
        SchemaRegistry({"schema.registry.url": url}).latest("no-such-subject")
