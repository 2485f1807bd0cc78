"""Both databases of the example, by their addresses in the environment. Run as a program it creates the tables."""

import os
from pathlib import Path
from typing import Any

import psycopg

SHOP = os.environ.get("SHOP_URL", "postgresql://postgres@127.0.0.1:5432/postgres")
REPORTS = os.environ.get("REPORTS_URL", "postgresql://postgres@127.0.0.1:5433/postgres")
PASSWORD = os.environ.get("POSTGRES_PASSWORD", "postgres")
_FILES = {SHOP: ("tables.sql", "shop.sql"), REPORTS: ("tables.sql",)}


def connect(url: str) -> psycopg.Connection[Any]:
    return psycopg.connect(url, password=PASSWORD, connect_timeout=10)


def main() -> None:
    for name, url in (("shop", SHOP), ("reports", REPORTS)):
        with connect(url) as connection:
            for file in _FILES[url]:
                connection.execute(Path(__file__).with_name(file).read_text())
            found = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public' ORDER BY 1")
            print(f"{name}:", ", ".join(table for (table,) in found))


if __name__ == "__main__":
    main()
