"""Two sinks of a query that would share one commit record are refused before anything is acquired."""

from __future__ import annotations

from pathlib import Path

from einmal.spark.declare.preflight import shared_record_problems
from einmal.spark.targets.kinds import destination
from einmal.spark.targets.part import Part


def part(path: Path, table: str) -> Part:
    made = destination("sqlite", {"path": str(path), "table": table})
    assert made.problems("pipeline", None) == []
    return Part(made, table)


def test_two_tables_of_one_database_are_refused(tmp_path: Path) -> None:
    first, second = part(tmp_path / "a.db", "orders"), part(tmp_path / "a.db", "items")
    ((what, hint),) = shared_record_problems([first, second])
    assert "orders and items" in what and "one commit record" in what and "schema" in hint


def test_tables_of_two_databases_have_a_record_each(tmp_path: Path) -> None:
    assert shared_record_problems([part(tmp_path / "a.db", "orders"), part(tmp_path / "b.db", "orders")]) == []
