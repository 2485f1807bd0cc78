"""Generate the types of requests and responses, free of versions, from kio's schemas into src/einmal/wire/api.

Usage: python tools/generate_messages.py [--check]

A type has the fields of every version that is supported, each with the schema's default. A version that does not have a
field leaves it out when it is written, and gives the default when it is read.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Collection, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, NamedTuple

from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode
from kio.schema.index import api_key_map

from einmal.wire.schemas import unwrap

PACKAGE: Final = Path(__file__).parent.parent / "src" / "einmal" / "wire" / "api"
SUPPORTED: Final = {
    "list_offsets": (1, 11),
    "metadata": (0, 13),
    "offset_commit": (2, 10),
    "offset_fetch": (1, 10),
    "find_coordinator": (0, 6),
    "join_group": (0, 9),
    "heartbeat": (0, 4),
    "leave_group": (0, 5),
    "sync_group": (0, 5),
    "describe_groups": (0, 6),
    "list_groups": (0, 5),
    "sasl_handshake": (0, 1),
    "api_versions": (0, 4),
    "create_topics": (2, 7),
    "delete_topics": (1, 6),
    "delete_records": (0, 2),
    "init_producer_id": (0, 6),
    "offset_for_leader_epoch": (2, 4),
    "add_partitions_to_txn": (0, 5),
    "add_offsets_to_txn": (0, 4),
    "end_txn": (0, 5),
    "write_txn_markers": (1, 2),
    "txn_offset_commit": (0, 5),
    "describe_acls": (1, 3),
    "create_acls": (1, 3),
    "delete_acls": (1, 3),
    "describe_configs": (1, 4),
    "alter_configs": (0, 2),
    "alter_replica_log_dirs": (1, 2),
    "describe_log_dirs": (1, 4),
    "sasl_authenticate": (0, 2),
    "create_partitions": (0, 3),
    "delete_groups": (0, 2),
    "elect_leaders": (0, 2),
    "incremental_alter_configs": (0, 1),
    "alter_partition_reassignments": (0, 1),
    "list_partition_reassignments": (0, 0),
    "offset_delete": (0, 0),
    "describe_client_quotas": (0, 1),
    "alter_client_quotas": (0, 1),
    "describe_user_scram_credentials": (0, 0),
    "alter_user_scram_credentials": (0, 0),
    "vote": (0, 2),
    "begin_quorum_epoch": (0, 1),
    "end_quorum_epoch": (0, 1),
    "describe_quorum": (0, 2),
    "alter_partition": (2, 3),
    "update_features": (0, 2),
    "envelope": (0, 0),
    "fetch_snapshot": (0, 1),
    "describe_cluster": (0, 2),
    "describe_producers": (0, 0),
    "broker_registration": (0, 4),
    "broker_heartbeat": (0, 1),
    "unregister_broker": (0, 0),
    "describe_transactions": (0, 0),
    "list_transactions": (0, 2),
    "allocate_producer_ids": (0, 0),
    "consumer_group_describe": (0, 1),
    "describe_topic_partitions": (0, 0),
}
"""First and last version of each API. Produce and Fetch have types of their own: ``wire/produce.py``, ``fetch.py``."""

_TYPES: Final = {
    "bool": "bool",
    "float64": "float",
    "string": "str",
    "bytes": "bytes",
    "records": "bytes",
    "uuid": "UUID | None",
    "error_code": "ErrorCode",
}
"""Types of Python, for kio's names. All others are ``int``."""
_ZEROES: Final = {
    "bool": "False",
    "float64": "0.0",
    "string": '""',
    "bytes": 'b""',
    "records": 'b""',
    "uuid": "None",
    "error_code": "ErrorCode.none",
    "datetime_i64": "-1",
}
_TUPLE_METHODS: Final = ("count", "index")


class _Field(NamedTuple):
    name: str
    type: str
    default: str
    first: int
    last: int


class _Types:
    """The types of one request or response, the inner ones first. ``prefixed``: names that the other one has too."""

    def __init__(self, api: str, kind: str, versions: range, prefixed: Collection[str] = ()) -> None:
        self.classes: dict[str, list[_Field]] = {}
        self._array = "tuple[{}, ...]" if kind == "Request" else "Sequence[{}]"
        self._versions = versions
        self._kind = kind
        self._prefixed = prefixed
        loader = load_request_schema if kind == "Request" else load_response_schema
        schemas = {version: loader(_KEYS[api], version) for version in versions}
        self.name = schemas[versions[-1]].__name__
        self._collect(self.name, schemas)

    def _named(self, schema: Any) -> str:
        name: str = schema.__name__
        return f"{self._kind}{name}" if name in self._prefixed else name

    def _collect(self, name: str, schemas: dict[int, Any]) -> None:
        by_name: dict[str, dict[int, Any]] = {}
        for version in reversed(schemas):
            for field in dataclasses.fields(schemas[version]):
                by_name.setdefault(field.name, {})[version] = field
        fields = [self._field(versions) for versions in by_name.values()]
        known = self.classes.get(name, fields)
        if [field[:3] for field in known] != [field[:3] for field in fields]:
            raise SystemExit(f"{name} is not the same everywhere")
        self.classes[name] = [
            field._replace(first=min(field.first, other.first), last=max(field.last, other.last))
            for field, other in zip(fields, known, strict=True)
        ]

    def _field(self, versions: dict[int, Any]) -> _Field:
        newest = next(iter(versions.values()))
        inner, is_nullable, is_array = unwrap(newest.type)
        is_nullable = any(unwrap(field.type)[1] for field in versions.values())
        kind = newest.metadata.get("kafka_type", "")
        if dataclasses.is_dataclass(inner):
            name = self._named(inner)
            self._collect(name, {version: unwrap(field.type)[0] for version, field in reversed(versions.items())})
        else:
            name = _TYPES.get(kind, "int")
        if is_array:
            name = self._array.format(name)
        if is_nullable and kind not in ("uuid", "datetime_i64"):
            name += " | None"
        return _Field(newest.name, name, self._default(newest), min(versions), max(versions))

    def _default(self, field: Any) -> str:
        inner, is_nullable, is_array = unwrap(field.type)
        is_tagged = field.metadata.get("tag") is not None
        kind = field.metadata.get("kafka_type", "")
        if field.default is not dataclasses.MISSING and not dataclasses.is_dataclass(field.default):
            return _literal(field.default, kind)
        if is_array:
            return "None" if is_nullable and not is_tagged else "()"
        if dataclasses.is_dataclass(inner):
            return "None" if is_nullable and not is_tagged else f"{self._named(inner)}()"
        return "None" if is_nullable and kind in ("string", "bytes", "records") else _ZEROES.get(kind, "0")

    def lines(self) -> Iterator[str]:
        for name, fields in self.classes.items():
            yield f"class {name}(NamedTuple):"
            for field in fields:
                line = f"    {field.name}: {field.type} = {field.default}"
                if field.name in _TUPLE_METHODS:
                    line += "  # type: ignore[assignment]"
                first, last = self._versions[0], self._versions[-1]
                if field.first > first or field.last < last:
                    known = f"{field.first} on" if field.last == last else f"{field.first} to {field.last}"
                    if field.first == field.last:
                        known = f"{field.first}"
                    elif field.first == first:
                        known = f"up to {field.last}"
                    line += f"  # {known}"
                yield line
            if not fields:
                yield "    pass"
            yield ""
            yield ""


def _literal(value: Any, kind: str) -> str:
    if isinstance(value, ErrorCode):
        return f"ErrorCode.{value.name}"
    if isinstance(value, timedelta):
        return str(value // timedelta(milliseconds=1))
    if value is None and kind == "datetime_i64":
        return "-1"
    if isinstance(value, str):
        return f'"{value}"'
    return repr(value)


_KEYS: Final = {name: key for key, name in api_key_map.items()}


def module(api: str, first: int, last: int) -> str:
    key, versions = _KEYS[api], range(first, last + 1)
    request, response = _Types(api, "Request", versions), _Types(api, "Response", versions)
    both = request.classes.keys() & response.classes.keys()
    if different := [name for name in both if request.classes[name] != response.classes[name]]:
        request = _Types(api, "Request", versions, different)
        response = _Types(api, "Response", versions, different)
    for name in both.difference(different):
        del response.classes[name]
    flexible = [version for version in versions if load_request_schema(key, version).__flexible__]
    body = [*request.lines(), *response.lines()]
    text = "\n".join(body)
    imports = ["from typing import Final, NamedTuple"]
    if "Sequence[" in text:
        imports.insert(0, "from collections.abc import Sequence")
    if "UUID" in text:
        imports.append("from uuid import UUID")
    own = ["from einmal.wire.messages import Api, Versions"]
    if "ErrorCode" in text:
        own.append("from einmal.types import ErrorCode")
    spelled = request.name.removesuffix("Request")
    about = f"version {first}" if first == last else f"versions {first} to {last}"
    supported = f"{first}, {last}" + (f", flexible={flexible[0]}" if flexible else "")
    api_line = f"API: Final = Api({key}, Versions({supported}), {request.name}, {response.name})"
    if len(api_line) > 120:
        inner = f"    {key}, Versions({supported}), {request.name}, {response.name}"
        api_line = f"API: Final = Api(\n{inner}\n)"
    return "\n".join(
        (
            f'"""{spelled}, API key {key}, {about}: generated by tools/generate_messages.py."""',
            "",
            *imports,
            "",
            *sorted(own),
            "",
            "",
            *body,
            api_line,
            "",
        )
    )


def modules() -> dict[Path, str]:
    return {PACKAGE / f"{api}.py": module(api, *versions) for api, versions in SUPPORTED.items()}


def main() -> None:
    wanted = modules()
    existing = {path: path.read_text() for path in PACKAGE.glob("*.py") if path.name != "__init__.py"}
    if "--check" in sys.argv[1:]:
        if wanted != existing:
            sys.exit(f"{PACKAGE.name} is out of date: run python tools/generate_messages.py")
        return
    for path in existing.keys() - wanted.keys():
        path.unlink()
    for path, text in wanted.items():
        path.write_text(text)


if __name__ == "__main__":
    main()
