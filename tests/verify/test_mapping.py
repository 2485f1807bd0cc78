"""Claims about mappings of pipelines, and about the comparison of what they demand with an output."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from einmal.types import TopicPartition
from einmal.verify.pipeline.comparison import Output, OutputComparison
from einmal.verify.pipeline.mapping import (
    InputRecord,
    InputRecords,
    MappingWrong,
    OutputRecord,
    canonical,
    function,
    identity,
    projection,
    query,
)
from einmal.verify.verdict import definition

_RECORDS = [InputRecord(n % 2, n, f"key-{n}", f'{{"id":{n},"amount":{10 * n}}}') for n in range(3)]
_OUT = TopicPartition("out", 0)


def words(value: str) -> list[str]:
    return value.strip("{}").split(",")


def nothing(_value: str) -> None:
    return None


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SELECT value FROM input", [[each.value] for each in _RECORDS]),
        ("SELECT amount FROM input WHERE id > 0;", [[], ["10"], ["20"]]),
        (
            'SELECT key, "offset" AS at FROM input',
            [['{"at":0,"key":"key-0"}'], ['{"at":1,"key":"key-1"}'], ['{"at":2,"key":"key-2"}']],
        ),
        ("SELECT id + n FROM input, range(2) r(n)", [["0", "1"], ["1", "2"], ["2", "3"]]),
    ],
)
def test_a_query_makes_the_outputs_of_each_record(sql: str, expected: list[list[str]]) -> None:
    assert [sorted(each) for each in query(sql).outputs(_RECORDS)] == expected


def test_a_query_with_a_mistake_is_refused_before_the_run() -> None:
    with pytest.raises(MappingWrong, match="--sql: .*amuont"):
        query("SELECT amuont FROM input")


def test_a_function_makes_one_value_several_or_none() -> None:
    assert function(f"{__name__}:words").outputs(_RECORDS[:1]) == [['"id":0', '"amount":0']]
    assert function(f"{__name__}:nothing").outputs(_RECORDS) == [[], [], []]


@pytest.mark.parametrize("name", ["nowhere:words", f"{__name__}:nowhere", "words", ":"])
def test_a_function_that_is_not_there_is_refused(name: str) -> None:
    with pytest.raises(MappingWrong, match="is not module:function"):
        function(name)


def located(record: InputRecord) -> str:
    return f"in-{record.partition} {record.offset}"


def missing_of(comparison: OutputComparison, outputs: Sequence[Output]) -> int:
    missing = comparison.missing()
    for output in outputs:
        missing.came([output])
    return missing.count


@pytest.mark.parametrize(
    ("outputs", "kinds"),
    [
        ([0, 1, 2], []),
        ([2, 0, 1], []),
        ([0, 2], ["lost-output"]),
        ([0, 1, 1, 2], ["duplicate-output"]),
        ([0, 1, 2, 3], ["invented-output"]),
    ],
)
def test_output_is_compared_as_a_multiset(outputs: Sequence[int], kinds: list[str]) -> None:
    comparison = OutputComparison(located, InputRecords(_RECORDS), identity())
    read = [(_OUT, at, f'{{"id":{n},"amount":{10 * n}}}') for at, n in enumerate(outputs)]
    found = list(comparison.anomalies(read))
    assert [each.kind for each in found] == kinds
    assert (missing_of(comparison, read) == 0) == ("lost-output" not in kinds)
    assert all("in-1 1" in each.detail for each in found if each.kind != "invented-output")


def test_output_of_an_aborted_record_is_named_with_its_offset_in_the_input() -> None:
    aborted = [InputRecord(2, 7, "k", '{"id":9,"amount":90}')]
    comparison = OutputComparison(located, InputRecords(_RECORDS, aborted), identity())
    (anomaly,) = comparison.anomalies([(_OUT, 0, '{"id":9,"amount":90}')], is_complete=False)
    assert anomaly.kind == "aborted-output"
    assert "an aborted transaction: in-2 7" in anomaly.detail


def test_objects_are_equal_whatever_the_order_of_their_fields() -> None:
    comparison = OutputComparison(located, InputRecords(_RECORDS[:1]), query("SELECT id, amount FROM input"))
    assert missing_of(comparison, [(_OUT, 0, '{ "id": 0, "amount": 0 }')]) == 0


@pytest.mark.parametrize(
    ("sql", "output"),
    [
        ("SELECT id, 1.5*amount AS amount FROM input", '{"id": 1, "amount": 15.0}'),
        ("SELECT id, 1.5*amount AS amount FROM input", '{"amount":15,"id":1.0e0}'),
        ("SELECT 1.25*amount FROM input", "12.50"),
        ("SELECT amount/2 FROM input", "5"),
        ("SELECT -amount/4 FROM input", "-2.5"),
        ("SELECT id, CAST(value AS JSON) AS whole FROM input", '{"id":1,"whole":{"amount":10,"id":1}}'),
        ("SELECT CAST(NULL AS INTEGER) FROM input", "null"),
        ("SELECT id * 123456789012345678901234567890::HUGEINT AS n, 'x' AS s FROM input",
         '{"s":"x","n":123456789012345678901234567890}'),
    ],
)  # fmt: skip
def test_numbers_are_equal_by_their_value_and_json_by_its_content(sql: str, output: str) -> None:
    comparison = OutputComparison(located, InputRecords(_RECORDS[1:2]), query(sql))
    assert list(comparison.anomalies([(_OUT, 0, output)])) == []
    assert [each.kind for each in comparison.anomalies([(_OUT, 0, output + "1")])] == ["invented-output", "lost-output"]


def raising(value: str) -> object:
    raise KeyError(value)


def returning_an_object(value: str) -> object:
    return [{"value": value}]


@pytest.mark.parametrize("name", ["raising", "returning_an_object"])
def test_a_function_that_fails_or_returns_what_is_no_value_is_refused_before_the_run(name: str) -> None:
    with pytest.raises(MappingWrong, match=f"{name} (of|returns)"):
        function(f"{__name__}:{name}")


def test_a_projection_makes_of_an_output_record_the_values_that_count() -> None:
    counted = projection("SELECT value->>'op' AS op, (key->>'id')::int AS id FROM output WHERE value IS NOT NULL")
    records = [
        OutputRecord(0, 0, '{"id":5}', '{"op":"c","source":{"lsn":77}}'),
        OutputRecord(0, 1, '{"id":5}', None),
        OutputRecord(1, 0, '{"id":6}', '{"op":"d"}'),
    ]
    assert counted.values(records) == [['{"id":5,"op":"c"}'], [], ['{"id":6,"op":"d"}']]
    assert counted.values([]) == []


@pytest.mark.parametrize("sql", ["SELECT", "SELECT nothing FROM output", "SELECT id FROM input"])
def test_a_projection_that_is_no_query_of_the_output_is_refused(sql: str) -> None:
    with pytest.raises(MappingWrong, match="--output-sql: "):
        projection(sql)


def test_a_record_from_before_the_pipeline_may_become_output_or_not() -> None:
    comparison = OutputComparison(located, InputRecords(_RECORDS[:1], first=[(_RECORDS[1],)]), identity())
    for outputs in (_RECORDS[:1], _RECORDS[:2]):
        assert list(comparison.anomalies([(_OUT, each.offset, each.value) for each in outputs])) == []
    twice = [*_RECORDS[:2], _RECORDS[1]]
    (anomaly,) = comparison.anomalies([(_OUT, at, each.value) for at, each in enumerate(twice)])
    assert anomaly.kind == "duplicate-output"


@pytest.mark.parametrize(("count", "kinds"), [(0, ["lost-output"]), (1, []), (2, []), (3, ["duplicate-output"])])
def test_it_counts_once_where_several_records_become_one_value(count: int, kinds: list[str]) -> None:
    same = query("SELECT 'changed' FROM input")
    comparison = OutputComparison(located, InputRecords(_RECORDS[:1], first=[(_RECORDS[1], _RECORDS[2])]), same)
    assert [each.kind for each in comparison.anomalies([(_OUT, at, "changed") for at in range(count)])] == kinds


_VERSIONS = [
    InputRecord(0, at, row, f'{{"id":{row},"amount":{amount}}}')
    for at, (row, amount) in enumerate([("7", 1), ("8", 2), ("7", 3)])
]
_ELSEWHERE = TopicPartition("out", 1)
_FIRST, _OF_ANOTHER, _SECOND = [record.value for record in _VERSIONS]


@pytest.mark.parametrize(
    ("outputs", "is_reordered"),
    [
        ([(_OUT, 0, _FIRST), (_OUT, 1, _OF_ANOTHER), (_OUT, 2, _SECOND)], False),
        ([(_OUT, 0, _OF_ANOTHER), (_OUT, 1, _FIRST), (_OUT, 2, _SECOND)], False),
        ([(_OUT, 0, _SECOND), (_OUT, 1, _OF_ANOTHER), (_OUT, 2, _FIRST)], True),
        ([(_OUT, 5, _FIRST), (_OUT, 1, _OF_ANOTHER), (_ELSEWHERE, 0, _SECOND)], False),
    ],
)
def test_versions_of_one_row_are_in_their_order(outputs: Sequence[Output], is_reordered: bool) -> None:
    ordered = OutputComparison(located, InputRecords(_VERSIONS, is_ordered=True), identity())
    found = list(ordered.anomalies(outputs))
    assert [each.kind for each in found] == ["reordered-output"] * is_reordered
    assert all("in-0 0, in-0 2" in each.detail and definition(each.kind) for each in found)
    assert list(OutputComparison(located, InputRecords(_VERSIONS), identity()).anomalies(outputs)) == []


def test_an_order_needs_values_that_come_from_one_record() -> None:
    ordered = OutputComparison(located, InputRecords(_VERSIONS, is_ordered=True), query("SELECT key FROM input"))
    assert list(ordered.anomalies([(_OUT, 0, "8"), (_OUT, 1, "7"), (_OUT, 2, "7")])) == []


def test_the_order_in_a_partition_is_that_of_all_versions_in_it() -> None:
    third = InputRecord(0, 3, "7", '{"id":7,"amount":4}')
    ordered = OutputComparison(located, InputRecords([*_VERSIONS, third], is_ordered=True), identity())
    outputs = [(_OUT, 5, _FIRST), (_OUT, 1, _OF_ANOTHER), (_ELSEWHERE, 0, _SECOND), (_OUT, 3, third.value)]
    (found,) = ordered.anomalies(outputs)
    assert found.kind == "reordered-output" and "in-0 0, in-0 3" in found.detail


@pytest.mark.parametrize(
    ("order", "is_reordered"),
    [("1a 1b 3a 3b", False), ("1b 1a 3b 3a", False), ("3a 1a 1b 3b", True), ("1a 3b 1b 3a", True)],
)
def test_outputs_of_one_record_have_no_order_among_each_other(order: str, is_reordered: bool) -> None:
    both = query("SELECT unnest([amount || 'a', amount || 'b']) FROM input")
    ordered = OutputComparison(located, InputRecords([_VERSIONS[0], _VERSIONS[2]], is_ordered=True), both)
    found = list(ordered.anomalies([(_OUT, at, value) for at, value in enumerate(order.split())]))
    assert {each.kind for each in found} == ({"reordered-output"} if is_reordered else set())


_DEEP = "[" * 700 + "]" * 700


@pytest.mark.parametrize("text", [_DEEP, "[" * 100_000, "1e99999999999999999999", '{"a":1e99999999999999999999}'])
def test_output_that_nobody_can_parse_is_text(text: str) -> None:
    assert canonical(text) == text
