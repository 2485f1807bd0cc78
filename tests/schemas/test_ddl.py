"""Claims about a row's columns in Spark's DDL."""

from __future__ import annotations

import pytest

from einmal.schemas.ddl import DdlColumn, parsed_columns
from einmal.schemas.errors import SchemaError


def test_columns_have_names_types_and_not_null() -> None:
    assert parsed_columns(" id BIGINT NOT NULL,\n `a `` b` decimal( 10 , 2 ), at Timestamp not  null, n INTEGER ") == [
        DdlColumn("id", "bigint", 10, 0, True),
        DdlColumn("a ` b", "decimal", 10, 2, False),
        DdlColumn("at", "timestamp", 10, 0, True),
        DdlColumn("n", "int", 10, 0, False),
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no column"),
        ("id", "no column"),
        ("id BIGINT,", "no column"),
        ("id BIGINT name STRING", "no column"),
        ("id BIGINT, , name STRING", "no column"),
        ("1d BIGINT", "no column"),
        ("id BIGINT DEFAULT 1", "no column"),
        ("id UUID", "BOOLEAN, SMALLINT"),
        ("id ARRAY<INT>", "no column"),
        ("name STRING(10)", "has no length"),
        ("n DECIMAL(39,0)", "no decimal"),
        ("n DECIMAL(3,4)", "no decimal"),
        ("id BIGINT, ID INT", "named 'id'"),
        (",".join(f"c{number} INT" for number in range(1_601)), "more than 1,600"),
    ],
)
def test_what_is_no_list_of_columns_is_refused(text: str, message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        parsed_columns(text)
