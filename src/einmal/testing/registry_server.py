"""An embedded schema registry for tests and development: the part of Confluent's REST API that serializers use.

Everything is in memory and ends with the process. It accepts every schema that parses as what it is declared to be, and
checks no compatibility: its only compatibility level is NONE.
"""

from __future__ import annotations

import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final, Self

_CONTENT_TYPE: Final = "application/vnd.schemaregistry.v1+json"
_BODY_MAX: Final = 1024 * 1024
_SCHEMAS_MAX: Final = 10_000
_POLL_S: Final = 0.05
"""How long closing may wait for the thread."""
_KINDS: Final = ("AVRO", "JSON", "PROTOBUF")
_VERSION: Final = re.compile(r"latest|-1|[1-9]\d{0,8}")


class RestError(Exception):
    """An error of the REST API: HTTP status, and Confluent's code."""

    def __init__(self, status: int, code: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


class Schemas:
    """Subjects and their versions. Pure."""

    def __init__(self) -> None:
        self._ids: dict[str, int] = {}
        self._schemas: list[dict[str, Any]] = []
        self._subjects: dict[str, list[int]] = {}

    def register(self, subject: str, given: dict[str, Any]) -> dict[str, Any]:
        """The same schema has the same id, in every subject."""
        schema = _checked(given)
        identity = json.dumps(schema, sort_keys=True)
        if identity not in self._ids:
            if len(self._schemas) >= _SCHEMAS_MAX:
                raise RestError(500, 50001, f"more than {_SCHEMAS_MAX} schemas")
            self._schemas.append(schema)
            self._ids[identity] = len(self._schemas)
        versions = self._subjects.setdefault(subject, [])
        if self._ids[identity] not in versions:
            versions.append(self._ids[identity])
        return {"id": self._ids[identity]}

    def by_id(self, schema_id: int) -> dict[str, Any]:
        if not 0 < schema_id <= len(self._schemas):
            raise RestError(404, 40403, f"Schema {schema_id} not found")
        return self._schemas[schema_id - 1]

    def look_up(self, subject: str, given: dict[str, Any]) -> dict[str, Any]:
        schema_id = self._ids.get(json.dumps(_checked(given), sort_keys=True))
        versions = self.versions(subject)
        if schema_id is None or schema_id not in self._subjects[subject]:
            raise RestError(404, 40403, "Schema not found")
        return self.version(subject, str(versions[self._subjects[subject].index(schema_id)]))

    def subjects(self) -> list[str]:
        return sorted(self._subjects)

    def versions(self, subject: str) -> list[int]:
        if subject not in self._subjects:
            raise RestError(404, 40401, f"Subject '{subject}' not found.")
        return list(range(1, len(self._subjects[subject]) + 1))

    def version(self, subject: str, version: str) -> dict[str, Any]:
        known = self.versions(subject)
        if not _VERSION.fullmatch(version):
            raise RestError(422, 42202, f"The specified version '{version}' is not a valid version id.")
        number = known[-1] if version in ("latest", "-1") else int(version)
        if number not in known:
            raise RestError(404, 40402, f"Version {number} not found.")
        schema_id = self._subjects[subject][number - 1]
        return {"subject": subject, "id": schema_id, "version": number, **self.by_id(schema_id)}


def _checked(given: dict[str, Any]) -> dict[str, Any]:
    text, kind = given.get("schema"), given.get("schemaType") or "AVRO"
    if kind not in _KINDS or not isinstance(text, str):
        raise RestError(422, 42201, f"schemaType is one of {', '.join(_KINDS)}, and schema is a text")
    if kind != "PROTOBUF":
        try:
            json.loads(text)
        except (ValueError, RecursionError) as error:
            raise RestError(422, 42201, "Invalid schema: not JSON") from error
    schema: dict[str, Any] = {"schema": text}
    if kind != "AVRO":
        schema["schemaType"] = kind
    if given.get("references"):
        schema["references"] = given["references"]
    return schema


class RegistryServer:
    """Serves ``Schemas`` on 127.0.0.1 from entering to leaving; ``url`` is where."""

    def __init__(self, port: int = 0, user_info: str | None = None, schemas: Schemas | None = None) -> None:
        """``user_info``: "user:password", if clients have to authenticate themselves."""
        self.schemas = schemas or Schemas()
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", port), _handler(self.schemas, self._lock, user_info))
        self._server.daemon_threads = True
        self.port: int = self._server.server_port
        self.url = f"http://127.0.0.1:{self.port}"
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(_POLL_S,), name="schema-registry", daemon=True
        )

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _handler(schemas: Schemas, lock: threading.Lock, user_info: str | None) -> type[BaseHTTPRequestHandler]:
    import base64
    import hmac
    from urllib.parse import unquote, urlsplit

    wanted = None if user_info is None else "Basic " + base64.b64encode(user_info.encode()).decode()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = 30

        def do_GET(self) -> None:
            self._answer()

        do_POST = do_PUT = do_GET

        def _answer(self) -> None:
            try:
                body = self._body()
                if wanted is not None and not hmac.compare_digest(self.headers.get("Authorization", ""), wanted):
                    raise RestError(401, 40101, "Unauthorized")
                path = [unquote(segment) for segment in urlsplit(self.path).path.strip("/").split("/")]
                with lock:
                    status, answer = 200, _routed(schemas, self.command, path, body)
            except RestError as error:
                status, answer = error.status, {"error_code": error.code, "message": str(error)}
            text = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", _CONTENT_TYPE)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def _body(self) -> dict[str, Any]:
            length = self.headers.get("Content-Length", "0")
            if not length.isdecimal() or int(length) > _BODY_MAX:
                self.close_connection = True
                raise RestError(413, 41301, "the request is too large")
            try:
                given = json.loads(self.rfile.read(int(length)) or b"{}")
            except (ValueError, RecursionError) as error:
                raise RestError(422, 42201, "the request is not JSON") from error
            if not isinstance(given, dict):
                raise RestError(422, 42201, "the request is no JSON object")
            return given

        def log_message(self, *_: object) -> None:
            """Nothing is logged."""

    return Handler


def _routed(schemas: Schemas, method: str, path: list[str], body: dict[str, Any]) -> Any:
    match method, path:
        case "GET", ["schemas", "types"]:
            return list(_KINDS)
        case "GET", ["schemas", "ids", number] if number.isdecimal():
            return schemas.by_id(int(number))
        case "GET", ["subjects"]:
            return schemas.subjects()
        case "POST", ["subjects", subject]:
            return schemas.look_up(subject, body)
        case "GET", ["subjects", subject, "versions"]:
            return schemas.versions(subject)
        case "POST", ["subjects", subject, "versions"]:
            return schemas.register(subject, body)
        case "GET", ["subjects", subject, "versions", version]:
            return schemas.version(subject, version)
        case "GET", ["config", *_]:
            return {"compatibilityLevel": "NONE"}
        case "PUT", ["config", *_]:
            if body.get("compatibility") != "NONE":
                raise RestError(422, 42203, "Invalid compatibility level: only NONE is supported")
            return {"compatibility": "NONE"}
        case "POST", ["compatibility", "subjects", *_]:
            _checked(body)
            return {"is_compatible": True}
    raise RestError(404, 404, "HTTP 404 Not Found")
