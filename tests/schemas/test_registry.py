"""Claims about the registry's client: what it caches, what it retries, and that an outage is no bad row."""

from __future__ import annotations

import contextlib
import json
import pickle
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from einmal.schemas.errors import RegistryUnavailable, SchemaNotFound, UnknownSchemaId, UnusableSchema
from einmal.schemas.record_decoder import RecordDecoder, SeenSchemas
from einmal.schemas.registry import RegisteredSchema, SchemaRegistry
from einmal.schemas.settings import LoadedField
from einmal.schemas.wire_format import framed
from einmal.security import https
from einmal.testing.registry_server import RegistryServer

FORMATS = ("JSON", "PROTOBUF")
INFINITE = {"name": "x", "subject": "x", "version": float("inf")}
AVRO = '{"type": "record", "name": "R", "fields": [{"name": "id", "type": "long"}]}'


@pytest.fixture
def server() -> Iterator[RegistryServer]:
    with RegistryServer() as server:
        yield server


def client(url: str, pauses: list[float] | None = None, user_info: str = "") -> SchemaRegistry:
    settings = {"schema.registry.url": url, "basic.auth.user.info": user_info}
    return SchemaRegistry(settings, ([] if pauses is None else pauses).append)


def test_a_schema_is_asked_for_once() -> None:
    with RegistryServer() as server:
        schema_id = server.schemas.register("payments-value", {"schema": AVRO})["id"]
        registry = client(server.url)
        found = registry.schema(schema_id)
        assert (found.kind, found.text) == ("AVRO", AVRO)
        assert registry.latest("payments-value") == found
    # The registry has ended.
    assert registry.schema(schema_id) == found


def test_an_unknown_id_is_not_found_and_is_asked_for_again(server: RegistryServer) -> None:
    registry = client(server.url)
    with pytest.raises(SchemaNotFound):
        registry.schema(1)
    server.schemas.register("payments-value", {"schema": AVRO})
    assert registry.schema(1).text == AVRO


def test_schemas_that_a_schema_refers_to_come_first(server: RegistryServer) -> None:
    inner = '{"type": "record", "name": "Inner", "fields": [{"name": "x", "type": "long"}]}'
    outer = '{"type": "record", "name": "Outer", "fields": [{"name": "inner", "type": "Inner"}]}'
    server.schemas.register("inner", {"schema": inner})
    reference = {"name": "Inner", "subject": "inner", "version": 1}
    schema_id = server.schemas.register("outer", {"schema": outer, "references": [reference]})["id"]
    assert client(server.url).schema(schema_id).references == {"Inner": inner}


@contextmanager
def answering(answers: dict[str, Any]) -> Iterator[str]:
    """The address of a server that has these answers by path, and no other schema."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer = answers.get(self.path)
            body = json.dumps(answer or {"error_code": 40402, "message": "Version not found."}).encode()
            self.send_response(200 if answer else 404)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_a_schema_that_refers_to_a_deleted_subject_is_one() -> None:
    refers = {"schema": '"Inner"', "references": [{"name": "Inner", "subject": "inner", "version": 1}]}
    with answering({"/schemas/ids/1": refers, "/subjects/inner/versions/1?deleted=true": {"schema": AVRO}}) as url:
        assert client(url).schema(1).references == {"Inner": AVRO}


def test_what_a_schema_of_another_format_refers_to_is_not_asked_for() -> None:
    refers = {"schema": "{}", "references": [{"name": "x", "subject": "gone", "version": 1}]}
    with answering({f"/schemas/ids/{at}": refers | {"schemaType": kind} for at, kind in enumerate(FORMATS)}) as url:
        for at, kind in enumerate(FORMATS):
            assert client(url).schema(at) == RegisteredSchema(at, kind, "{}", {})


@pytest.mark.parametrize(
    "references", [5, "x", {"name": "x"}, [5], [{"name": "x", "subject": "x", "version": None}], [INFINITE]]
)
def test_references_that_are_none_are_no_answer(references: Any) -> None:
    with (
        answering({"/schemas/ids/1": {"schema": AVRO, "references": references}}) as url,
        pytest.raises(RegistryUnavailable) as raised,
    ):
        client(url.replace("//", "//user:password@")).schema(1)
    assert "password" not in str(raised.value)


@pytest.mark.parametrize("scheme", ["https", "HTTPS"])
def test_the_truststore_counts_in_each_spelling_of_the_scheme(scheme: str) -> None:
    settings = {"schema.registry.url": f"{scheme}://127.0.0.1:1", "schema.registry.ssl.truststore.location": "/gone"}
    with pytest.raises(RegistryUnavailable, match="No such file"):
        SchemaRegistry(settings, list[float]().append).schema(1)


def test_schemas_that_refer_to_each_other_are_asked_for_once(server: RegistryServer) -> None:
    for name, other in (("A", "B"), ("B", "A")):
        reference = {"name": other, "subject": other, "version": 1}
        server.schemas.register(name, {"schema": AVRO, "references": [reference]})
    assert client(server.url).latest("A").references == {"A": AVRO, "B": AVRO}


def test_a_registry_that_does_not_answer_is_unavailable_after_bounded_retries() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    pauses: list[float] = []
    with pytest.raises(RegistryUnavailable, match=rf"127\.0\.0\.1:{port}.*after 4 attempts"):
        client(f"http://user:secret@127.0.0.1:{port}", pauses).schema(1)
    assert pauses == [0.5, 1.0, 2.0]


_NESTED = b"[" * 200_000


@pytest.mark.parametrize(
    ("status", "body"),
    [(404, b"hi"), (500, b"hi"), (200, b"hi"), (302, b"hi"), (200, _NESTED), (404, _NESTED)],
    ids=["404", "500", "200", "302", "200 nested", "404 nested"],
)
def test_a_server_that_is_no_registry_has_no_unknown_ids(status: int, body: bytes) -> None:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Location", "http://127.0.0.1:1/")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        with pytest.raises(RegistryUnavailable):
            client(f"http://127.0.0.1:{server.server_port}").schema(1)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


_DRIPPING_S = 600.0
_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"


@pytest.mark.parametrize(
    ("at_once", "drop", "timeout_s", "reason"),
    [
        (b"", b"H", 0.4, "no complete answer in time|timed out"),
        (_HEAD, b"X", 0.4, "no complete answer in time|timed out"),
        (_HEAD + b"Content-Length: 1000\r\n\r\n{", b" ", 0.4, "no complete answer in time|timed out"),
        (_HEAD + b"\r\n{", b" ", 0.4, "no complete answer in time|timed out"),
        # On a busy machine the status must have come within this time, and the first bytes.
        pytest.param(b"HTTP/1.1 404 Not Found\r\n\r\n{", b" ", 15.0, "answered 404", marks=pytest.mark.slow),
        (_HEAD + b"\r\n{", b" " * 65_536, 60.0, "more than 1,048,576 bytes"),
    ],
    ids=["status", "header", "body", "body without a length", "error", "endless"],
)
def test_an_answer_that_comes_slowly_or_does_not_end_is_an_outage_in_bounded_time(
    monkeypatch: pytest.MonkeyPatch, at_once: bytes, drop: bytes, timeout_s: float, reason: str
) -> None:
    monkeypatch.setattr(https, "TIMEOUT_S", timeout_s)
    began = time.monotonic()
    with dripping(at_once, drop) as url, pytest.raises(RegistryUnavailable, match=reason):
        client(url).schema(1)
    # Four attempts; a drop comes long before a timeout of the socket's own.
    assert time.monotonic() - began < _DRIPPING_S / 2


@contextmanager
def dripping(at_once: bytes, drop: bytes) -> Iterator[str]:
    """The address of a server that sends drop after drop, for ten minutes at most."""
    ended = threading.Event()
    deadline = time.monotonic() + _DRIPPING_S

    def answer(connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            connection.recv(65_536)
            connection.sendall(at_once)
            while not ended.wait(0.1 if len(drop) == 1 else 0) and time.monotonic() < deadline:
                connection.sendall(drop)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while not ended.is_set():
                threading.Thread(target=answer, args=(listener.accept()[0],)).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=accept)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            ended.set()
            # So that the last accept ends.
            with contextlib.suppress(OSError):
                socket.create_connection(listener.getsockname()).close()
            thread.join()


def test_a_wrong_password_is_no_bad_row_and_is_not_retried_or_shown() -> None:
    pauses: list[float] = []
    with RegistryServer(user_info="user:password") as server:
        server.schemas.register("payments-value", {"schema": AVRO})
        assert client(server.url, user_info="user:password").schema(1).text == AVRO
        assert client(server.url.replace("//", "//user:pass%77ord@")).schema(1).text == AVRO
        with pytest.raises(RegistryUnavailable) as raised:
            client(server.url, pauses, "user:wrong").schema(1)
    assert "401" in str(raised.value) and "wrong" not in str(raised.value)
    assert pauses == []


def test_a_second_url_answers_where_the_first_does_not(server: RegistryServer) -> None:
    server.schemas.register("payments-value", {"schema": AVRO})
    assert client(f"http://127.0.0.1:1,{server.url}").schema(1).text == AVRO


def test_a_copy_for_a_task_has_the_settings(server: RegistryServer) -> None:
    server.schemas.register("payments-value", {"schema": AVRO})
    copied = pickle.loads(pickle.dumps(client(server.url)))
    assert copied.schema(1).text == AVRO
    assert "password" not in repr(client(server.url, user_info="user:password").settings)


# --- decoding with a registry -------------------------------------------------------------------------------------


def test_an_unknown_id_is_a_bad_row_and_a_schema_of_another_format_is_one(server: RegistryServer) -> None:
    server.schemas.register("payments-value", {"schema": AVRO})
    server.schemas.register("other-value", {"schema": "{}", "schemaType": "JSON"})
    recursive = '{"type": "record", "name": "R", "fields": [{"name": "r", "type": ["null", "R"]}]}'
    server.schemas.register("recursive-value", {"schema": recursive})
    decoder = RecordDecoder(LoadedField("avro", AVRO), "evolve", client(server.url))
    seen = SeenSchemas()
    assert decoder.decode(framed(1, b"\x0e"), seen).value == {"id": 7}
    for schema_id in (2, 3):
        with pytest.raises(UnusableSchema):
            decoder.decode(framed(schema_id, b"\x0e"), seen)
    with pytest.raises(UnknownSchemaId):
        decoder.decode(framed(4, b"\x0e"), seen)
    # One verdict for all records of a task, also if the schema is registered meanwhile.
    server.schemas.register("late-value", {"schema": '"long"'})
    with pytest.raises(UnknownSchemaId):
        decoder.decode(framed(4, b"\x0e"), seen)
    assert (seen.known, seen.unknown) == ({1, 2, 3}, {4})
    assert decoder.decode(None, seen).value is None


def test_two_processes_that_read_by_different_schemas_of_one_id_differ_in_a_digest(server: RegistryServer) -> None:
    """Ids are for good; a registry that was restored from a backup may break that."""

    def seen_by_a_new_process() -> SeenSchemas:
        seen = SeenSchemas()
        RecordDecoder(LoadedField("avro", AVRO), "evolve", client(server.url)).decode(framed(1, b"\x0e"), seen)
        return seen

    server.schemas.register("payments-value", {"schema": AVRO})
    before, same = seen_by_a_new_process(), seen_by_a_new_process()
    server.schemas._schemas[0]["schema"] = AVRO.replace('"long"', '"int"')
    after = seen_by_a_new_process()
    assert before.known == after.known == {1}
    assert before.digests == same.digests != after.digests
