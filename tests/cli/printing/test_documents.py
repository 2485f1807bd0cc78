"""Claims about the documents that programs read: YAML has what JSON has, as a reader of YAML takes it."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from einmal.cli.printing.documents import encoded
from einmal.cli.printing.formats import Format
from tests.cli.running import Cli
from tests.interop.topics import at_last

_JSON: Any = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda members: st.lists(members, max_size=3) | st.dictionaries(st.text(), members, max_size=3),
    max_leaves=8,
)


@given(_JSON)
def test_yaml_is_read_as_what_it_was_made_of(value: Any) -> None:
    assert yaml.safe_load(encoded(value, Format.YAML)) == value


@pytest.mark.parametrize(
    "value",
    [
        *("no", "null", "Y", "1e5", "0x1f", "2026-12-01", "- a", "a: b", "#", "~", "=", "<<", ""),
        *("é\u2028\x7f", "\\ud83d", "😀"),
        *(1e16, 1e-7, 1.5e300, -0.5, 2**63, {"on": [{"a": [], "b": {}}, [[1, "x"], []]]}),
        {"é" * 600: {"k" * 2_000: [1], "": 2}},
    ],
)
def test_values_that_yaml_takes_for_another_are_quoted(value: Any) -> None:
    assert yaml.safe_load(encoded({"v": value}, Format.YAML)) == {"v": value}


def test_people_read_it_too_and_documents_follow_one_another() -> None:
    rows = [{"topic": "orders", "partitions": [0, 1], "size": None, "leader": {"id": 1, "host": "10.0.0.1"}}]
    lines = encoded(rows, Format.YAML).splitlines()
    assert lines == [
        "---",
        "- topic: orders",
        "  partitions:",
        "    - 0",
        "    - 1",
        "  size: null",
        "  leader:",
        "    id: 1",
        '    host: "10.0.0.1"',
    ]
    two = "\n".join([*lines, *lines])
    assert list(yaml.safe_load_all(two)) == [rows, rows]


@pytest.mark.system
@pytest.mark.parametrize(
    "arguments", [("topic", "list"), ("topic", "describe", "yaml"), ("cluster", "info"), ("group", "lag", "yaml-group")]
)
def test_commands_print_the_same_in_yaml(cluster: str, arguments: tuple[str, ...]) -> None:
    cli = Cli(cluster)
    if "yaml" not in {topic["name"] for topic in cli("topic", "list", "--format", "json").document}:
        cli("topic", "create", "yaml")
        cli("topic", "produce", "yaml", stdin="a\nb\n")
        cli("topic", "consume", "yaml", "-g", "yaml-group", "-n", "1")

    def looks() -> tuple[Any, Any, Any]:
        formats = (("json", json.loads), ("yaml", yaml.safe_load), ("json", json.loads))
        before, between, after = (
            _without_times(read("\n".join(cli(*arguments, "--format", name).lines))) for name, read in formats
        )
        return before, between, after

    # Other tests change this cluster, too.
    before, in_yaml, _after = at_last(looks, lambda found: found[0] == found[2])
    assert in_yaml == before


def _without_times(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            key: _without_times(member) for key, member in value.items() if key != "time" and not key.endswith("_ms")
        }
    return [_without_times(member) for member in value] if isinstance(value, list) else value


@pytest.mark.system
def test_records_are_documents_of_their_own(cluster: str) -> None:
    cli = Cli(cluster)
    cli("topic", "create", "yaml-records")
    cli("topic", "produce", "yaml-records", stdin="a\nb\n")
    consumed = cli("topic", "consume", "yaml-records", "-o", "earliest", "-n", "2", "--format", "yaml")
    records = list(yaml.safe_load_all("\n".join(consumed.lines)))
    assert [record["value"] for record in records] == ["a", "b"]
