"""The columns of the rows that a sink takes, under Spark's names for types, whoever has made the rows. Pure.

Spark's names because users declare and read them; ``kind`` is a type's short name, its text is what a user writes:
``long`` and ``bigint``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final


@dataclass(frozen=True, slots=True)
class RowType:
    """A type without parameters that matter to a sink. ``json``: as the schema of a Delta table has it, where that is
    not ``kind``."""

    kind: str
    text: str = ""
    json: Any = field(default=None, compare=False)

    def __str__(self) -> str:
        return self.text or _TEXTS.get(self.kind, self.kind)

    @property
    def as_json(self) -> Any:
        return self.kind if self.json is None else self.json


_TEXTS: Final = {"byte": "tinyint", "short": "smallint", "integer": "int", "long": "bigint"}


@dataclass(frozen=True, slots=True)
class DecimalRowType(RowType):
    kind: str = "decimal"
    precision: int = 10
    scale: int = 0

    def __str__(self) -> str:
        return f"decimal({self.precision},{self.scale})"

    @property
    def as_json(self) -> Any:
        return str(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrayRowType(RowType):
    kind: str = "array"
    element: RowType
    has_null: bool = True

    def __str__(self) -> str:
        return f"array<{self.element}>"

    @property
    def as_json(self) -> Any:
        return {"type": "array", "elementType": self.element.as_json, "containsNull": self.has_null}


@dataclass(frozen=True, slots=True, kw_only=True)
class MapRowType(RowType):
    kind: str = "map"
    key: RowType
    value: RowType
    has_null: bool = True

    def __str__(self) -> str:
        return f"map<{self.key},{self.value}>"

    @property
    def as_json(self) -> Any:
        types = {"keyType": self.key.as_json, "valueType": self.value.as_json}
        return {"type": "map", **types, "valueContainsNull": self.has_null}


@dataclass(frozen=True, slots=True)
class RowField:
    """``metadata``: of the table that the column may come from."""

    name: str
    type: RowType
    nullable: bool = True
    metadata: Mapping[str, Any] = field(default_factory=dict, compare=False)

    @property
    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "type": self.type.as_json,
            "nullable": self.nullable,
            "metadata": dict(self.metadata),
        }


@dataclass(frozen=True, slots=True)
class RowSchema(RowType):
    """Columns in order; also the type of a struct."""

    kind: str = "struct"
    fields: tuple[RowField, ...] = ()

    def __iter__(self) -> Iterator[RowField]:
        return iter(self.fields)

    @property
    def names(self) -> list[str]:
        return [column.name for column in self.fields]

    def without(self, name: str) -> RowSchema:
        return RowSchema(fields=tuple(column for column in self.fields if column.name != name))

    def __str__(self) -> str:
        return f"struct<{','.join(f'{column.name}:{column.type}' for column in self.fields)}>"

    @property
    def as_json(self) -> Any:
        return {"type": "struct", "fields": [column.as_json for column in self.fields]}
