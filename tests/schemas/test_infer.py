"""Claims about proposed schemas: every sample they were made from is valid, and has its type."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from einmal.schemas.infer import proposed
from einmal.schemas.json_format import JsonDecoder
from tests.suite.cases import each_case

documents = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.sampled_from([2**63, -(2**63) - 1, 10**400])
    | st.sampled_from(["2026-01-01T00:00:00Z", "2026-01-01T00:00:00.123456789Z", "0001-01-01T00:00:00+01:00"])
    | st.floats(-1e9, 1e9)
    | st.text(st.characters(codec="utf-8")),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from("abcd"), inner),
    max_leaves=20,
)


@given(st.lists(st.dictionaries(st.sampled_from("abcd"), documents), min_size=1, max_size=5))
def test_each_sample_is_valid_by_the_schema_that_was_proposed_from_it(samples: list[Any]) -> None:
    raw = [json.dumps(each).encode() for each in samples]
    found = proposed(raw)
    assert found.samples == len(raw)
    decoder = JsonDecoder(json.dumps(found.schema))
    for each in raw:
        assert not decoder.decode(each).unknown


def test_a_number_with_more_digits_than_a_double_is_a_number() -> None:
    assert proposed([b'{"a": 0.12345678901234567891}', b'{"a": 1}']).schema["properties"] == {"a": {"type": "number"}}


def test_properties_of_all_samples_are_required_and_times_have_a_format() -> None:
    samples = [
        b'{"a": 1, "t": "2026-01-01T00:00:00Z"}',
        b'{"a": 1.5, "b": null, "t": "2026-01-01T00:00:00+01:00"}',
        b"{",
    ]
    found = proposed(samples)
    assert found.schema["properties"] == {
        "a": {"type": "number"},
        "b": {"type": "null"},
        "t": {"type": "string", "format": "date-time"},
    }
    assert found.schema["required"] == ["a", "t"]
    assert found.refused == {"MalformedValue": 1}


def test_an_object_with_very_many_keys_is_a_map() -> None:
    found = proposed([json.dumps({f"key {number}": number for number in range(600)}).encode()])
    assert found.schema["additionalProperties"] == {"type": "integer"} and "properties" not in found.schema


@each_case(
    "values, proposal",
    [
        (["text"], {"type": "string"}),
        (["2026-01-01T00:00:00Z"], {"type": "string", "format": "date-time"}),
        (["2026-01-01T00:00:00Z"] * 599 + ["text"], {"type": "string"}),
        ([1] * 599 + ["text"], {"type": ["integer", "string"]}),
        ([1] * 599 + [2**63], {}),
    ],
)
def test_each_value_of_a_map_is_valid_by_the_proposal(values: list[Any], proposal: Any) -> None:
    sample = json.dumps({f"key {at}": values[min(at, len(values) - 1)] for at in range(600)}).encode()
    found = proposed([sample])
    assert found.schema["additionalProperties"] == proposal
    assert not JsonDecoder(json.dumps(found.schema)).decode(sample).unknown
