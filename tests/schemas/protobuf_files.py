"""Descriptors for the tests, as ``protoc --descriptor_set_out`` writes them."""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_LABELS = {"optional": 1, "required": 2, "repeated": 3}


def file_set(syntax: str = "proto3", **messages: list[tuple[str, int, str]]) -> bytes:
    """``messages``: by name, fields as (name, number, "label type") or (name, number, "map key type")."""
    files = descriptor_pb2.FileDescriptorSet()
    file = files.file.add(name="test.proto", package="test", syntax=syntax)
    for name, fields in messages.items():
        message = file.message_type.add(name=name)
        for field, number, kind in fields:
            label, _, type_name = kind.rpartition(" ")
            if label.startswith("map "):
                entry = message.nested_type.add(name=f"{field.capitalize()}Entry")
                entry.options.map_entry = True
                _set_type(entry.field.add(name="key", number=1, label=1), label.removeprefix("map "))
                _set_type(entry.field.add(name="value", number=2, label=1), type_name)
                label, type_name = "repeated", f"{name}.{entry.name}"
            _set_type(message.field.add(name=field, number=number, label=_LABELS[label or "optional"]), type_name)
    return bytes(files.SerializeToString())


def _set_type(field: Any, type_name: str) -> None:
    value = getattr(descriptor_pb2.FieldDescriptorProto, f"TYPE_{type_name.upper()}", None)
    if value is None:
        field.type, field.type_name = 11, f".test.{type_name}"
    else:
        field.type = value


def message_class(files: bytes, name: str) -> Any:
    pool = descriptor_pool.DescriptorPool()
    for each in descriptor_pb2.FileDescriptorSet.FromString(files).file:
        pool.Add(each)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))
