"""Claims about the JSON form of the read model: its schema has every field, and nothing else."""

from __future__ import annotations

import dataclasses
from typing import Any

import jsonschema_rs
import pytest

from einmal.inspection import activity, content, diagnosis, health, lag, model, topic, transaction
from einmal.inspection.document import document, schema

INTERNAL = {"Open", "RangeContent"}
"""Values that are never printed."""
KINDS: dict[str, Any] = {
    name: kind
    for module in (activity, content, diagnosis, health, lag, model, topic, transaction)
    for name, kind in vars(module).items()
    if dataclasses.is_dataclass(kind) and not name.startswith("_") and name not in INTERNAL
}
LAG = lag.PartitionLag("t", 0, 1, None, None, None, None, None, None, unknown={"unread": "no leader"})


def test_the_schema_has_every_value() -> None:
    assert schema("ClusterView")["$defs"].keys() - {"Reasons"} == KINDS.keys()


@pytest.mark.parametrize("name", KINDS)
def test_the_schema_has_every_field_of_a_value(name: str) -> None:
    defined = schema(name)["$defs"][name]
    names = [each.name for each in dataclasses.fields(KINDS[name])]
    assert list(defined["properties"]) == defined["required"] == names
    assert defined["additionalProperties"] is False


def test_a_null_has_its_reason() -> None:
    found = document(lag.GroupLag("g", None, None, False, (LAG,)))
    jsonschema_rs.validate(schema("GroupLag"), found)
    assert found["partitions"][0]["unknown"] == {"unread": "no leader"}


def test_a_field_of_another_kind_is_refused() -> None:
    found = document(lag.GroupLag("g", None, None, False, (LAG,)))
    found["unread"] = "none"
    with pytest.raises(jsonschema_rs.ValidationError):
        jsonschema_rs.validate(schema("GroupLag"), found)
