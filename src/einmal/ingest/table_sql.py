"""Conditions on the rows of a table, which the queries of a table as a source have in common. Pure."""

from __future__ import annotations

from typing import Final, NamedTuple

from psycopg import sql

_BITS: Final = 2**32
_NORMAL: Final = 3
"""The first transaction id; lower ones stand for rows that are older than all."""


class OrderColumn(NamedTuple):
    name: str
    type: str


def literally(part: sql.Composable) -> sql.Composable:
    """As a part of a query with parameters, in which a percent sign begins a placeholder."""
    return sql.SQL(part.as_string().replace("%", "%%"))


def name_of(column: OrderColumn) -> sql.Composable:
    return literally(sql.Identifier("t", column.name))


def value_of(column: OrderColumn) -> sql.Composable:
    """Return the SQL of a value of the column's type, from text."""
    return sql.SQL("%s::text::{}").format(literally(sql.SQL(column.type)))


def xmin_between(begin: int, end: int) -> sql.Composable:
    """Whether the xmin of a row is from the first transaction on and below the second, by its bits."""
    return xmin_from(sql.Literal(begin), sql.Literal(end - begin))


def xmin_from(begin: sql.Composable, width: sql.Composable) -> sql.Composable:
    """Whether the bits of the xmin of a row are one of so many from the first on."""
    bits, modulus = sql.SQL("t.xmin::text::bigint"), sql.Literal(_BITS)
    distance = sql.SQL("mod({} - mod({}, {}) + {}, {})").format(bits, begin, modulus, modulus, modulus)
    return sql.SQL("({} >= {} AND {} < {})").format(bits, sql.Literal(_NORMAL), distance, width)
