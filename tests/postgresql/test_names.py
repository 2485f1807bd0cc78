"""Names in PostgreSQL, as options have them and as SQL writes them."""

from __future__ import annotations

import pytest

from einmal.options.values import OptionError
from einmal.postgresql.names import TableName, table_name


@pytest.mark.parametrize(
    ("text", "schema", "name"),
    [
        ("orders", None, "orders"),
        ("Sales.Orders", "sales", "orders"),
        ('"Sales"."Or""ders"', "Sales", 'Or"ders'),
        ('sales . "a.b"', "sales", "a.b"),
        ("größe", None, "größe"),
    ],
)
def test_table_names_are_read_as_sql_reads_them(text: str, schema: str | None, name: str) -> None:
    assert table_name("table", text) == TableName(schema, name)


@pytest.mark.parametrize("text", ["a.b.c", "a b", "a.", "1a", 'a"b', '""', "x" * 64, "orders; DROP TABLE orders"])
def test_text_that_is_no_table_name_is_refused(text: str) -> None:
    with pytest.raises(OptionError, match='option "table"'):
        table_name("table", text)


def test_a_name_is_quoted_where_it_needs_it_and_always_for_the_catalog() -> None:
    name = TableName("sales", 'Or"ders')
    assert (str(name), name.in_quotes) == ('sales."Or""ders"', '"sales"."Or""ders"')
    assert TableName(None, "orders").in_quotes == '"orders"'
