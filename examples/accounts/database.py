"""The database of the example, by its address in the environment. ``python -m examples.accounts.database`` creates the
tables."""

import os
from pathlib import Path
from typing import Any

import psycopg
from examples.program import fail, run

URL = os.environ.get("POSTGRES_URL", "postgresql://postgres@127.0.0.1:5432/postgres")
PASSWORD = os.environ.get("POSTGRES_PASSWORD", "postgres")

WAYS_OUT: dict[type[Exception], str] = {
    psycopg.OperationalError: "Start PostgreSQL, or set POSTGRES_URL and POSTGRES_PASSWORD.",
    psycopg.errors.UndefinedTable: "Run the README's commands before this one.",
}


def connect() -> psycopg.Connection[Any]:
    return psycopg.connect(URL, password=PASSWORD, connect_timeout=10)


def main() -> None:
    with connect() as connection:
        try:
            connection.execute(Path(__file__).with_name("schema.sql").read_text())
        except (psycopg.errors.DuplicateTable, psycopg.errors.DuplicateFunction) as error:
            fail(
                f"the tables of an earlier run are there: {error.diag.message_primary}. For fresh data: "
                "DROP TABLE IF EXISTS entries, counters, balances, einmal_commits; "
                "DROP FUNCTION IF EXISTS count_entries; then stop the broker, and run `rm -r build/examples`."
            )
        found = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public' ORDER BY 1")
        print("tables:", ", ".join(name for (name,) in found))


if __name__ == "__main__":
    run(main, WAYS_OUT)
