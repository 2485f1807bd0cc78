"""The database of the example, by its address in the environment. ``python -m examples.accounts.database`` creates the
tables."""

import os
from pathlib import Path
from typing import Any

import psycopg

URL = os.environ.get("POSTGRES_URL", "postgresql://postgres@127.0.0.1:5432/postgres")
PASSWORD = os.environ.get("POSTGRES_PASSWORD", "postgres")


def connect() -> psycopg.Connection[Any]:
    return psycopg.connect(URL, password=PASSWORD, connect_timeout=10)


def main() -> None:
    with connect() as connection:
        connection.execute(Path(__file__).with_name("schema.sql").read_text())
        found = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public' ORDER BY 1")
        print("tables:", ", ".join(name for (name,) in found))


if __name__ == "__main__":
    main()
