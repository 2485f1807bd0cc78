"""The campaign's comparison finds each defect that it is there for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tests.ingest.postgresql.bookkeeping import Stored, problems

LEDGER, A, B = "shop.public.ledger-0", "shop.public.a-0", "shop.public.b-1"


class History:
    """Number 1 is in the snapshot; 2 changes one table and inserts into another, 3 deletes, 4 changes nothing; then a
    key is renamed, which 5 has, and 6 truncates two tables, one of whose topics is compacted."""

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        if "ledger" in query:
            return [(6,)]
        return [
            (1, "a", "INSERT", None, {"id": 1}, {"id": 1, "n": 1}),
            (2, "a", "UPDATE", {"id": 1}, {"id": 1}, {"id": 1, "n": 2}),
            (2, "b", "INSERT", None, {"id": 7}, {"id": 7, "n": 2}),
            (3, "b", "DELETE", {"id": 7}, None, None),
            (5, "b", "INSERT", None, {"key": 7}, {"key": 7, "n": 5}),
            (6, "a", "TRUNCATE", None, None, None),
            (6, "d", "TRUNCATE", None, None, None),
        ]


def record(
    place: str, number: int, op: str, key: int | None, row: dict[str, Any] | None, order: int = 1, name: str = "id"
) -> Stored:
    """Of transaction ``number``, in Kafka's transaction of the same epoch."""
    transaction = None if op == "r" else {"id": f"{number + 100}:{number * 10}", "total_order": order}
    table = place.split(".")[2].split("-")[0]
    value = {"op": op, "after": row, "source": {"table": table}, "transaction": transaction}
    return Stored(place, (1, number), None if key is None else {name: key}, value)


def ledger(number: int, op: str = "u") -> Stored:
    return record(LEDGER, number, op, 1, {"id": 1, "n": number})


SOUND: Sequence[Stored] = (
    ledger(1, "r"),
    ledger(2),
    ledger(3),
    ledger(4),
    ledger(5),
    ledger(6),
    record(A, 1, "r", 1, {"id": 1, "n": 1}),
    record(A, 2, "u", 1, {"id": 1, "n": 2}, 2),
    record(B, 2, "c", 7, {"id": 7, "n": 2}, 3),
    record(B, 3, "d", 7, None, 2),
    Stored(B, (1, 3), {"id": 7}, None),
    record(B, 5, "c", 7, {"key": 7, "n": 5}, 2, "key"),
    record(A, 6, "t", None, None, 2),
)


def found(records: Sequence[Stored]) -> list[str]:
    return list(problems(History(), records))  # type: ignore[arg-type]


def test_sound_topics_have_no_problems() -> None:
    assert found(SOUND) == []


@pytest.mark.parametrize("index", range(len(SOUND)))
def test_a_lost_record_is_found(index: int) -> None:
    assert found([*SOUND[:index], *SOUND[index + 1 :]])


@pytest.mark.parametrize("index", range(len(SOUND)))
def test_a_duplicate_is_found(index: int) -> None:
    assert found([*SOUND[: index + 1], *SOUND[index:]])


@pytest.mark.parametrize("index", [0, 1, 2, 8, 9])
def test_another_order_is_found(index: int) -> None:
    assert found([*SOUND[:index], SOUND[index + 1], SOUND[index], *SOUND[index + 2 :]])


@pytest.mark.parametrize(
    ("index", "changed"),
    [
        (6, lambda each: each._replace(transaction=(1, 9))),
        (7, lambda each: each._replace(transaction=(1, 9))),
        (7, lambda each: each._replace(value=each.value | {"after": {"id": 1, "n": 3}})),
        (9, lambda each: each._replace(key={"id": 8})),
        (6, lambda each: each._replace(value=each.value | {"after": {"id": 1, "n": 0}})),
        (11, lambda each: each._replace(key={"id": 7})),
        (11, lambda each: each._replace(key=None)),
        (12, lambda each: each._replace(key={"id": 7})),
        (7, lambda each: each._replace(place="shop.public.a-2")),
    ],
)
def test_a_torn_transaction_another_row_another_key_and_another_partition_are_found(
    index: int, changed: Callable[[Stored], Stored]
) -> None:
    assert found([*SOUND[:index], changed(SOUND[index]), *SOUND[index + 1 :]])
