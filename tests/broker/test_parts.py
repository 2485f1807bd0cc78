from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, ClassVar, cast

import pytest

from einmal.broker.front.handler import handler
from einmal.broker.front.parts import by_type, maker
from einmal.wire.api.end_txn import API


@dataclass(frozen=True)
class _Parts:
    directory: PurePosixPath
    names: tuple[str, ...]


@dataclass(frozen=True)
class _MoreParts:
    other_directory: PurePosixPath


@handler
class _AskingHandler:
    api: ClassVar = API
    asked: tuple[str, ...]

    def handle(self, context: object, request: object) -> None:
        """Answers nothing."""


@handler
class _LostHandler:
    api: ClassVar = API
    size: int

    def handle(self, context: object, request: object) -> None:
        """Answers nothing."""


_PARTS = cast(Any, _Parts(PurePosixPath("/data"), ("a", "b")))


def test_a_field_gets_the_part_of_its_type_whatever_its_name() -> None:
    made = maker(_AskingHandler)(by_type(_PARTS))
    assert isinstance(made, _AskingHandler)
    assert made.asked == ("a", "b")


def test_a_handler_without_a_part_for_a_field_is_not_made() -> None:
    with pytest.raises(TypeError, match=r"_LostHandler.*no part has the type of its field size, .*int"):
        maker(_LostHandler)(by_type(_PARTS))


def test_two_parts_of_the_same_type_are_refused() -> None:
    with pytest.raises(TypeError, match=r"_MoreParts\.other_directory: another part is a .*PurePosixPath.* too"):
        by_type(_PARTS, cast(Any, _MoreParts(PurePosixPath("/"))))
