"""The decorator of the classes in ``handlers/``."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True)
def handler(cls: type[T]) -> type[T]:
    """A handler of one API, made from the parts of the node that its fields name; the type checker keeps it frozen.

    At run time it is not: what a frozen and comparable dataclass generates for nearly sixty handlers would cost a
    broker's start 40 ms.
    """
    # Else a dataclass makes one up from its signature, which takes as long as the rest.
    cls.__doc__ = cls.__doc__ or sys.modules[cls.__module__].__doc__
    return dataclass(eq=False, repr=False)(cls)
