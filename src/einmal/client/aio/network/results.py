"""The error that the results of many APIs have in common, mostly with a message."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from einmal.client.aio.network.cluster import Cluster
from einmal.client.errors import error_for
from einmal.types import ErrorCode
from einmal.wire.messages import Api, Q, R


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


async def ask_for(cluster: Cluster, api: Api[Q, R], request: Q, results: Callable[[R], Iterable[ApiResult]]) -> R:
    """A request for any broker, retried while any of its results has a retriable error."""

    def retriable(response: R) -> ErrorCode:
        return next((result.error_code for result in results(response) if result.error_code.retriable), ErrorCode.none)

    return await cluster.call_any(api, request, deadline=cluster.deadline(), error_of=retriable)
