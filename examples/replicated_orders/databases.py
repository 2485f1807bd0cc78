"""Both databases of the example, by their addresses in the environment. Run as a program it creates the tables."""

import os
from pathlib import Path
from typing import Any

import psycopg
from examples.program import fail, run

SHOP = os.environ.get("SHOP_URL", "postgresql://postgres@127.0.0.1:5432/postgres")
REPORTS = os.environ.get("REPORTS_URL", "postgresql://postgres@127.0.0.1:5433/postgres")
PASSWORD = os.environ.get("POSTGRES_PASSWORD", "postgres")
_FILES = {SHOP: ("tables.sql", "shop.sql"), REPORTS: ("tables.sql",)}

WAYS_OUT: dict[type[Exception], str] = {
    psycopg.OperationalError: "Start both servers, or set SHOP_URL, REPORTS_URL and POSTGRES_PASSWORD.",
    psycopg.errors.UndefinedTable: "Run `python -m examples.replicated_orders.databases` first.",
}


def connect(url: str) -> psycopg.Connection[Any]:
    return psycopg.connect(url, password=PASSWORD, connect_timeout=10)


def main() -> None:
    for name, url in (("shop", SHOP), ("reports", REPORTS)):
        with connect(url) as connection:
            for file in _FILES[url]:
                try:
                    connection.execute(Path(__file__).with_name(file).read_text())
                except (psycopg.errors.DuplicateTable, psycopg.errors.DuplicateObject) as error:
                    fail(
                        f"the database of the {name} has tables of an earlier run: {error.diag.message_primary}. "
                        "For fresh data: start both servers again with empty databases; stop the broker, and run "
                        "`rm -r build/examples`."
                    )
            found = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public' ORDER BY 1")
            print(f"{name}:", ", ".join(table for (table,) in found))


if __name__ == "__main__":
    run(main, WAYS_OUT)
