"""The JSON form of the read model's values: their fields by name, as ``schema.json`` has them."""

from __future__ import annotations

import dataclasses
import json
from enum import Enum
from importlib.resources import files
from typing import Any


def document(value: Any) -> Any:
    """A value of this package, or a list or mapping of them, for ``json.dumps``."""
    if dataclasses.is_dataclass(value):
        return {field.name: document(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, dict):
        return {str(key): document(member) for key, member in value.items()}
    if isinstance(value, list | tuple):
        return [document(member) for member in value]
    return value


def schema(name: str) -> dict[str, Any]:
    """The JSON Schema of one kind of document: Activity, ClusterHealth, ClusterView, Diagnosis, GroupLag,
    PartitionContent, ShownTransaction."""
    whole: dict[str, Any] = json.loads(files("einmal.inspection").joinpath("schema.json").read_text(encoding="utf-8"))
    return {**whole, "$ref": f"#/$defs/{name}"}
