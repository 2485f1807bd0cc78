"""Compare the tables and the view of both databases, row by row, without Spark and Kafka."""

from collections import Counter

from examples.program import fail, run
from examples.replicated_orders.databases import REPORTS, SHOP, WAYS_OUT, connect

QUERIES = {
    "orders": "SELECT * FROM orders",
    "order_items": "SELECT * FROM order_items",
    "revenue": "SELECT * FROM revenue",
}


def rows(url: str) -> dict[str, Counter[tuple[object, ...]]]:
    """Of each query, in one snapshot of the database."""
    with connect(url) as connection:
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        return {name: Counter(connection.execute(query).fetchall()) for name, query in QUERIES.items()}


def main() -> int:
    shop, reports = rows(SHOP), rows(REPORTS)
    if empty := [name for name, found in shop.items() if not found]:
        fail(f"the shop has no rows in {', '.join(empty)}: there is nothing to compare.")
    wrong = 0
    for name, expected in shop.items():
        missing, others = (expected - reports[name]).total(), (reports[name] - expected).total()
        print(f"{name}: {expected.total():,} rows, {missing} missing in the copy, {others} that the shop has not")
        wrong += missing + others
    return 1 if wrong else 0


if __name__ == "__main__":
    run(main, WAYS_OUT)
