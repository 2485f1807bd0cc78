"""A client of schema registries with Confluent's REST API: bounded, cached, and for readers only.

An id's schema never changes, by contract, so it is cached for good, in each process; a digest shows where a registry
broke the contract. An unknown id is not: it may be registered a moment later. No
answer is an outage (RegistryUnavailable), after a bounded number of retries.
"""

from __future__ import annotations

import base64
import hashlib
import json
import ssl
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from einmal.pauses import DoublingPauses
from einmal.schemas.errors import RegistryUnavailable, SchemaNotFound
from einmal.security import https
from einmal.security.redaction import RedactedDict

URL: Final = "schema.registry.url"
USER_INFO: Final = "basic.auth.user.info"
TRUSTSTORE: Final = "schema.registry.ssl.truststore.location"
KEYSTORE: Final = "schema.registry.ssl.keystore.location"
SETTINGS: Final = (URL, USER_INFO, TRUSTSTORE, KEYSTORE)

KINDS: Final = {"json": "JSON", "avro": "AVRO", "protobuf": "PROTOBUF"}
"""The registry's names of formats."""
_ANSWER_MAX: Final = 1024 * 1024
"""Bytes of a schema: Confluent's registry keeps them in records of at most as many."""
_SCHEMAS_MAX: Final = 1_000
"""Schemas kept. A topic with more has ids that are made up."""
_REFERENCES_MAX: Final = 100
_TRIES: Final = 4
_PAUSES_S: Final = DoublingPauses(0.5, 2.0)
_RETRIABLE: Final = frozenset({408, 429, 500, 502, 503, 504})
_NOT_FOUND: Final = 404
_NOT_FOUND_CODES: Final = frozenset({40401, 40402, 40403})
"""Subject, version, schema not found. A proxy that answers 404 by itself has none of these codes."""

AnyT = TypeVar("AnyT")


@dataclass(frozen=True, slots=True)
class RegisteredSchema:
    """``kind``: AVRO, JSON or PROTOBUF. ``references``: of an Avro schema, the texts of the schemas it refers to, by
    name, in order. The other formats are read by the declared schema alone."""

    schema_id: int
    kind: str
    text: str
    references: Mapping[str, str]

    @property
    def digest(self) -> str:
        """Over everything that defines it."""
        whole = json.dumps([self.kind, self.text, [*self.references.items()]])
        return hashlib.sha256(whole.encode()).hexdigest()[:16]


class SchemaRegistry:
    """``settings``: under Confluent's names. For threads. Its pickled copy has settings, and an empty cache."""

    def __init__(self, settings: Mapping[str, str], pause: Callable[[float], None] = time.sleep) -> None:
        self.settings = RedactedDict({name: settings[name] for name in SETTINGS if settings.get(name)})
        self._urls = [url.strip().rstrip("/") for url in settings[URL].split(",") if url.strip()]
        self._pause = pause
        self._lock = threading.Lock()
        self._by_id: dict[int, RegisteredSchema] = {}
        self._context: ssl.SSLContext | None = None

    def __reduce__(self) -> tuple[type[SchemaRegistry], tuple[Mapping[str, str]]]:
        return SchemaRegistry, (self.settings,)

    def schema(self, schema_id: int) -> RegisteredSchema:
        """Raises SchemaNotFound, RegistryUnavailable."""
        with self._lock:
            schema = self._by_id.get(schema_id)
            if schema is None:
                schema = self._registered(schema_id, self._get(f"/schemas/ids/{schema_id}"))
                if len(self._by_id) >= _SCHEMAS_MAX:
                    self._by_id.pop(next(iter(self._by_id)))
                self._by_id[schema_id] = schema
        return schema

    def latest(self, subject: str) -> RegisteredSchema:
        """Raises SchemaNotFound, RegistryUnavailable."""
        answer = self._get(f"/subjects/{urllib.parse.quote(subject, safe='')}/versions/latest")
        return self._registered(_number(answer, "id"), answer)

    # --- parts --------------------------------------------------------------------------------------------------

    def _registered(self, schema_id: int, answer: Mapping[str, Any]) -> RegisteredSchema:
        references: dict[str, str] = {}
        kind = str(answer.get("schemaType") or "AVRO")
        if kind == "AVRO":
            self._refer(answer, references, set())
        return RegisteredSchema(schema_id, kind, _text(answer), references)

    def _refer(self, answer: Mapping[str, Any], references: dict[str, str], asked: set[str]) -> None:
        """Collect what an answer refers to, depth first. ``asked``: names, so that a circle of them ends."""
        given = answer.get("references") or []
        for reference in given if isinstance(given, list) else [given]:
            try:
                name, subject, version = str(reference["name"]), str(reference["subject"]), int(reference["version"])
            except (TypeError, KeyError, ValueError, OverflowError) as error:
                raise RegistryUnavailable("an answer with references that are no schema registry's") from error
            if name in asked:
                continue
            asked.add(name)
            if len(asked) > _REFERENCES_MAX:
                raise SchemaNotFound(f"a schema refers to more than {_REFERENCES_MAX} others")
            # Records of a schema outlive a subject that it refers to, which can be deleted, but for good.
            path = f"/subjects/{urllib.parse.quote(subject, safe='')}/versions/{version}?deleted=true"
            referred = self._get(path)
            self._refer(referred, references, asked)
            references[name] = _text(referred)

    def _get(self, path: str) -> Mapping[str, Any]:
        reason = ""
        for attempt in range(_TRIES):
            if attempt:
                self._pause(_PAUSES_S.after(attempt - 1))
            for url in self._urls:
                try:
                    return self._ask(url, path)
                except urllib.error.HTTPError as error:
                    reason = f"{_shown(url)} answered {error.code}"
                    self._refuse(error, path, reason)
                except (OSError, ValueError) as error:
                    reason = f"{_shown(url)}: {getattr(error, 'reason', None) or error}"
        raise RegistryUnavailable(
            f"the schema registry cannot be reached: {reason}, after {_TRIES} attempts\n"
            f"hint: {URL} names it; the pipeline resumes where it was when it is started again"
        )

    def _refuse(self, error: urllib.error.HTTPError, path: str, reason: str) -> None:
        """Raise what a retry cannot change."""
        if error.code == _NOT_FOUND and _code(error) in _NOT_FOUND_CODES:
            raise SchemaNotFound(path) from error
        if error.code not in _RETRIABLE:
            raise RegistryUnavailable(
                f"the schema registry refused the request: {reason}\nhint: check {URL} and {USER_INFO}"
            ) from error

    def _ask(self, url: str, path: str) -> Mapping[str, Any]:
        plain_url, own_user_info = _parted(url)
        request = urllib.request.Request(
            plain_url + path, headers={"Accept": "application/vnd.schemaregistry.v1+json, application/json"}
        )
        if user_info := self.settings.get(USER_INFO) or own_user_info:
            token = base64.b64encode(user_info.encode()).decode()
            request.add_header("Authorization", f"Basic {token}")
        body = https.send(request, _ANSWER_MAX + 1, self._tls() if request.type == "https" else None)
        if len(body) > _ANSWER_MAX:
            raise RegistryUnavailable(f"{_shown(url)}: a schema of more than {_ANSWER_MAX:,} bytes")
        try:
            answer = json.loads(body)
        except RecursionError:
            answer = None
        if not isinstance(answer, dict):
            raise ValueError("an answer that is no schema registry's")
        return answer

    def _tls(self) -> ssl.SSLContext:
        if self._context is None:
            self._context = ssl.create_default_context(cafile=self.settings.get(TRUSTSTORE))
            if KEYSTORE in self.settings:
                self._context.load_cert_chain(self.settings[KEYSTORE])
        return self._context


def _code(error: urllib.error.HTTPError) -> int | None:
    try:
        return _number(json.loads(error.read(_ANSWER_MAX)), "error_code")
    except (OSError, ValueError, AttributeError, RecursionError):
        return None


def _number(answer: Mapping[str, Any], name: str) -> int:
    value = answer.get(name)
    if isinstance(value, bool) or not isinstance(value, int):
        raise RegistryUnavailable(f"an answer without {name!r} is no schema registry's")
    return value


def _text(answer: Mapping[str, Any]) -> str:
    text = answer.get("schema")
    if not isinstance(text, str):
        raise RegistryUnavailable("an answer without a schema is no schema registry's")
    return text


def _parted(url: str) -> tuple[str, str]:
    """A URL without the user and the password that it can contain, and these."""
    parts = urllib.parse.urlsplit(url)
    user_info, _, host = parts.netloc.rpartition("@")
    return urllib.parse.urlunsplit(parts._replace(netloc=host)), urllib.parse.unquote(user_info)


def _shown(url: str) -> str:
    """Without the user and the password that a URL can contain."""
    parts = urllib.parse.urlsplit(url)
    return f"{parts.scheme}://{parts.hostname}" + (f":{parts.port}" if parts.port else "")
