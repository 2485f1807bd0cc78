"""The campaign's comparison finds each defect that it is there for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tests.ingest.postgresql.bookkeeping import Stored, problems

LEDGER, A, B = "shop.public.ledger-0", "shop.public.a-0", "shop.public.b-1"


class History:
    """Number 1 is in the snapshot; 2 inserts into both tables, 3 deletes, 4 changes nothing."""

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        if "ledger" in query:
            return [(4,)]
        return [
            (1, "a", "INSERT", None, {"id": 1, "n": 1}),
            (2, "a", "UPDATE", 1, {"id": 1, "n": 2}),
            (2, "b", "INSERT", None, {"id": 7, "n": 2}),
            (3, "b", "DELETE", 7, None),
        ]


def record(place: str, number: int, op: str, key: int, row: dict[str, Any] | None, order: int = 1) -> Stored:
    """Of transaction ``number``, in Kafka's transaction of the same epoch."""
    transaction = None if op == "r" else {"id": f"{number + 100}:{number * 10}", "total_order": order}
    table = place.split(".")[2].split("-")[0]
    value = {"op": op, "after": row, "source": {"table": table}, "transaction": transaction}
    return Stored(place, (1, number), {"id": key}, value)


def ledger(number: int, op: str = "u") -> Stored:
    return record(LEDGER, number, op, 1, {"id": 1, "n": number})


SOUND: Sequence[Stored] = (
    ledger(1, "r"),
    ledger(2),
    ledger(3),
    ledger(4),
    record(A, 1, "r", 1, {"id": 1, "n": 1}),
    record(A, 2, "u", 1, {"id": 1, "n": 2}, 2),
    record(B, 2, "c", 7, {"id": 7, "n": 2}, 3),
    record(B, 3, "d", 7, None, 2),
    Stored(B, (1, 3), {"id": 7}, None),
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


@pytest.mark.parametrize("index", [0, 1, 2, 6, 7])
def test_another_order_is_found(index: int) -> None:
    assert found([*SOUND[:index], SOUND[index + 1], SOUND[index], *SOUND[index + 2 :]])


@pytest.mark.parametrize(
    ("index", "changed"),
    [
        (4, lambda each: each._replace(transaction=(1, 9))),
        (5, lambda each: each._replace(transaction=(1, 9))),
        (5, lambda each: each._replace(value=each.value | {"after": {"id": 1, "n": 3}})),
        (7, lambda each: each._replace(key={"id": 8})),
        (4, lambda each: each._replace(value=each.value | {"after": {"id": 1, "n": 0}})),
    ],
)
def test_a_torn_transaction_and_another_row_are_found(index: int, changed: Callable[[Stored], Stored]) -> None:
    assert found([*SOUND[:index], changed(SOUND[index]), *SOUND[index + 1 :]])
