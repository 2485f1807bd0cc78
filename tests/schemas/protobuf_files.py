"""Descriptors for the tests, as ``protoc --descriptor_set_out`` writes them."""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_LABELS = {"optional": 1, "required": 2, "repeated": 3}


def file_set(syntax: str = "proto3", **messages: list[tuple[str, int, str]]) -> bytes:
    """``messages``: by name, fields as (name, number, "label type")."""
    files = descriptor_pb2.FileDescriptorSet()
    file = files.file.add(name="test.proto", package="test", syntax=syntax)
    for name, fields in messages.items():
        message = file.message_type.add(name=name)
        for field, number, kind in fields:
            label, _, type_name = kind.rpartition(" ")
            added = message.field.add(name=field, number=number, label=_LABELS[label or "optional"])
            value = getattr(descriptor_pb2.FieldDescriptorProto, f"TYPE_{type_name.upper()}", None)
            if value is None:
                added.type, added.type_name = 11, f".test.{type_name}"
            else:
                added.type = value
    return bytes(files.SerializeToString())


def message_class(files: bytes, name: str) -> Any:
    pool = descriptor_pool.DescriptorPool()
    for each in descriptor_pb2.FileDescriptorSet.FromString(files).file:
        pool.Add(each)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))
