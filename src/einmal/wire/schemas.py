"""What kio's generated classes say of their fields. For whoever reads or writes messages by them."""

from __future__ import annotations

from types import UnionType
from typing import Any, Union, get_args, get_origin


def unwrap(annotation: Any) -> tuple[Any, bool, bool]:
    """The innermost type of a field, whether it may be null, whether it is an array."""
    is_nullable = is_array = False
    while True:
        origin = get_origin(annotation)
        if origin in (UnionType, Union):
            is_nullable = True
            annotation = next(item for item in get_args(annotation) if item is not type(None))
        elif origin is tuple:
            is_array = True
            annotation = get_args(annotation)[0]
        else:
            return annotation, is_nullable, is_array
