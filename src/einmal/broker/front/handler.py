"""The decorator of the classes in ``handlers/``."""

from __future__ import annotations

import sys
from typing import Any, TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True, eq_default=False)
def handler(cls: type[T]) -> type[T]:
    """A handler of one API, made from the parts of the node that its fields name; the type checker keeps it frozen.

    To the type checker this is a dataclass. At run time it is less: the code that ``dataclasses`` would generate for
    nearly sixty handlers takes a tenth of a broker's start.
    """
    annotations: dict[str, str] = cls.__dict__.get("__annotations__", {})
    names = [name for name, annotation in annotations.items() if not annotation.startswith("ClassVar")]

    def __init__(self: T, *parts: Any, **named: Any) -> None:
        self.__dict__.update(zip(names, parts, strict=False), **named)
        if len(parts) + len(named) != len(names) or self.__dict__.keys() != set(names):
            raise TypeError(f"{cls.__name__} is made from {', '.join(names) or 'nothing'}")

    setattr(cls, "__init__", __init__)  # noqa: B010
    cls.__doc__ = cls.__doc__ or sys.modules[cls.__module__].__doc__
    return cls
