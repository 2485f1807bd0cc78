"""What the checker of dual writes finds."""

from __future__ import annotations

from einmal.checker.agreement import find_disagreements


def kinds(database: dict[str, list[str]], *topic: str) -> list[str]:
    return [anomaly.kind for anomaly in find_disagreements(database, topic)]


def test_what_only_one_side_has_is_found() -> None:
    both = {"1.1": ["a", "b"], "1.2": ["c"]}
    assert kinds(both, "a", "b", "c") == []
    assert kinds(both, "a", "b") == ["database-only"]
    assert kinds(both, "a", "c") == ["database-only"]
    assert kinds(both, "a", "b", "c", "d") == ["topic-only"]
    assert kinds(both, "a", "a", "b", "c") == ["duplicate"]
