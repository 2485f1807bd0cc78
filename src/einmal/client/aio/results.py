"""The error that the results of many APIs have in common, mostly with a message."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from einmal.client.errors import error_for
from einmal.types import ErrorCode


class ApiResult(Protocol):
    @property
    def error_code(self) -> ErrorCode: ...


class ExplainedApiResult(ApiResult, Protocol):
    @property
    def error_message(self) -> str | None: ...


def check(result: ExplainedApiResult, what: str) -> None:
    """Raises the result's error, if it has one."""
    if result.error_code is not ErrorCode.none:
        message = result.error_message
        raise error_for(result.error_code, f"{what}: {message.rstrip('.')}" if message else what)


def error_code(result: ApiResult) -> ErrorCode:
    return result.error_code


def retriable_error(results: Iterable[ApiResult]) -> ErrorCode:
    """The first retriable error of any result, else none."""
    return next((each.error_code for each in results if each.error_code.retriable), ErrorCode.none)
