"""A JSON Schema from samples, as a proposal: what all samples have in common. Pure.

The schema is of draft 2020-12, without ``additionalProperties``. A property that every sample has is required. Values
of several types have the list of these types, except integers and other numbers, which are numbers. Where an integer
has more than 64 bits no type is proposed: the column then has JSON, and all digits.
"""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from einmal.schemas.columns import moment_of
from einmal.schemas.decoder import Limits
from einmal.schemas.errors import BadRow
from einmal.schemas.json_format import parsed

DRAFT: Final = "https://json-schema.org/draft/2020-12/schema"
_PROPERTIES_MAX: Final = 500
"""An object with more is a map: its keys are data."""
_LONG: Final = 2**63


@dataclass(slots=True)
class Shape:
    """The values seen at one path."""

    kinds: set[str] = field(default_factory=set)
    objects: int = 0
    properties: dict[str, Shape] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    items: Shape | None = None
    times: int = 0
    strings: int = 0
    has_longer: bool = False
    """An integer has more bits than a column of integers."""
    others: Shape | None = None
    """The values of properties beyond the first ones."""

    def add(self, value: Any) -> None:
        match value:
            case None:
                self.kinds.add("null")
            case bool():
                self.kinds.add("boolean")
            case int():
                self.kinds.add("integer")
                self.has_longer |= not -_LONG <= value < _LONG
            case float() | decimal.Decimal():
                self.kinds.add("number")
            case str():
                self.kinds.add("string")
                self.strings += 1
                self.times += _is_time(value)
            case list():
                self.kinds.add("array")
                self.items = self.items or Shape()
                for nested in value:
                    self.items.add(nested)
            case dict():
                self._add_object(value)

    def _add_object(self, value: dict[str, Any]) -> None:
        self.kinds.add("object")
        self.objects += 1
        for name, property_value in value.items():
            if name in self.properties or len(self.properties) < _PROPERTIES_MAX:
                self.properties.setdefault(name, Shape()).add(property_value)
                self.counts[name] = self.counts.get(name, 0) + 1
            else:
                self.counts[name] = 0
                self.others = self.others or Shape()
                self.others.add(property_value)

    def schema(self) -> dict[str, Any]:
        kinds = self.kinds - {"integer"} if "number" in self.kinds else self.kinds
        if not kinds or self.has_longer:
            return {}
        result: dict[str, Any] = {"type": next(iter(kinds)) if len(kinds) == 1 else sorted(kinds)}
        if "object" in kinds:
            result |= self._object_schema()
        if self.items is not None:
            result["items"] = self.items.schema()
        if "string" in kinds and self.times == self.strings:
            result["format"] = "date-time"
        return result

    def _object_schema(self) -> dict[str, Any]:
        if len(self.counts) > _PROPERTIES_MAX:
            values = Shape()
            for shape in (*self.properties.values(), self.others or Shape()):
                values.kinds |= shape.kinds
                values.times += shape.times
                values.strings += shape.strings
                values.has_longer |= shape.has_longer
            return {"additionalProperties": values.schema()}
        required = sorted(name for name, count in self.counts.items() if count == self.objects)
        properties = {name: self.properties[name].schema() for name in sorted(self.properties)}
        return {"properties": properties} | ({"required": required} if required else {})


@dataclass(frozen=True, slots=True)
class Proposal:
    """``refused``: samples that are not JSON, by reason."""

    schema: dict[str, Any]
    samples: int
    refused: dict[str, int]


def proposed(samples: Iterable[bytes]) -> Proposal:
    """From the samples that are JSON."""
    shape, count = Shape(), 0
    refused: dict[str, int] = {}
    for sample in samples:
        try:
            shape.add(parsed(sample, Limits()))
            count += 1
        except BadRow as error:
            reason = type(error).__name__
            refused[reason] = refused.get(reason, 0) + 1
    return Proposal({"$schema": DRAFT} | shape.schema(), count, refused)


def _is_time(text: str) -> bool:
    """RFC 3339, with an offset, and a timestamp of Spark's."""
    try:
        moment = moment_of(text)
        return "T" in text and moment.tzinfo is not None and bool(moment.astimezone(datetime.UTC))
    except (ValueError, OverflowError):
        return False
