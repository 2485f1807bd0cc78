"""Which columns keep every value of a type, decided from the catalog's description alone."""

from __future__ import annotations

import pytest
from pyspark.sql import types

from einmal.sinks.postgres.mapping import fits
from einmal.sinks.postgres.table import TableColumn
from einmal.spark.environment.plans.row_schemas import type_of


def column(base: str, modifier: int) -> TableColumn:
    return TableColumn(
        name="c",
        definition=base,
        base=base,
        category="D",
        element_category="D",
        modifier=modifier,
        is_required=False,
        has_default=False,
        identity="",
        generated="",
        is_domain=False,
    )


@pytest.mark.parametrize(
    ("kind", "base"), [(types.TimestampType(), "timestamptz"), (types.TimestampNTZType(), "timestamp")]
)
@pytest.mark.parametrize(("modifier", "is_kept"), [(-1, True), (6, True), (3, False), (0, False)])
def test_times_fit_only_columns_with_microseconds(
    kind: types.DataType, base: str, modifier: int, is_kept: bool
) -> None:
    assert fits(type_of(kind), column(base, modifier)) is is_kept
    assert fits(type_of(types.ArrayType(kind)), column(f"_{base}", modifier)) is is_kept
