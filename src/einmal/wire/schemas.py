"""Metadata of the fields of kio's generated classes and of our message types, for code that reads or writes by it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints


def unwrap(annotation: Any) -> tuple[Any, bool, bool]:
    """The innermost type of a field, whether it may be null itself (not only its elements), whether it is an array."""
    is_nullable = is_array = False
    while True:
        origin = get_origin(annotation)
        if origin in (UnionType, Union):
            is_nullable = is_nullable or not is_array
            annotation = next(item for item in get_args(annotation) if item is not type(None))
        elif origin in (tuple, Sequence):
            is_array = True
            annotation = get_args(annotation)[0]
        else:
            return annotation, is_nullable, is_array


@cache
def field_types(message: Any) -> dict[str, Any]:
    """The annotations of the fields of one of our message types, in their order."""
    return get_type_hints(message)
