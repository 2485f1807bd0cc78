"""A topic and a database that are committed as one (KIP-939): each transaction is in both, whole, or in neither.

Values are unique. A reader of the topic may see a transaction later than the database has it, never earlier.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping

from einmal.checker.history import Anomaly


def find_disagreements(database: Mapping[str, Collection[str]], topic: Iterable[str]) -> list[Anomaly]:
    """``database``: the values of each committed transaction; ``topic``: all values that are visible at the end."""
    anomalies = []
    visible = Counter(topic)
    for transaction, values in database.items():
        missing = [value for value in values if value not in visible]
        if missing:
            how = "not" if len(missing) == len(values) else "only in part"
            anomalies.append(Anomaly("database-only", f"{transaction} is in the database, and {how} in the topic"))
    committed = {value for values in database.values() for value in values}
    for value, count in visible.items():
        if count > 1:
            anomalies.append(Anomaly("duplicate", f"{value!r} is {count} times in the topic"))
        if value not in committed:
            anomalies.append(
                Anomaly("topic-only", f"{value!r} is in the topic, and its transaction not in the database")
            )
    return anomalies
