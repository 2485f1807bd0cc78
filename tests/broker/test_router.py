"""What the router does with a frame before and after its handler, without a node."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, ClassVar, cast

import pytest

from einmal.broker.front.authorization.access import Access
from einmal.broker.front.context import Body, HandlerResult, Parked, RequestContext
from einmal.broker.front.handlers.envelope import EnvelopeHandler
from einmal.broker.front.routing.forwarding import Forwarding
from einmal.broker.front.routing.router import Deferred, Router
from einmal.broker.front.routing.routes import route
from einmal.broker.listeners import PLAINTEXT, Endpoint, NamedListener
from einmal.broker.resources.turns import Turns
from einmal.broker.rpc.authentication import Authentication, Unauthenticated
from einmal.seams import Clock
from einmal.security.principal import Principal
from einmal.types import ErrorCode, Instant
from einmal.wire.api import api_versions, envelope, heartbeat
from einmal.wire.errors import Malformed, Truncated, UnknownVersion
from einmal.wire.messages import RequestHeader, encode_request_header
from tests.wire.mapped import decode_response, encode_request

HEARTBEAT, API_VERSIONS, ENVELOPE = 12, 18, 58
LISTENER = NamedListener(PLAINTEXT, Endpoint("h", 1), PLAINTEXT)
NODES = LISTENER._replace(is_between_nodes=True)
SASL = LISTENER._replace(protocol="SASL_SSL")
FOUND = heartbeat.HeartbeatResponse(error_code=ErrorCode.rebalance_in_progress)


@dataclass(frozen=True, slots=True)
class HeartbeatHandler:
    api: ClassVar = heartbeat.API
    answer: Callable[[heartbeat.HeartbeatRequest], HandlerResult] = lambda request: FOUND

    def handle(self, context: RequestContext, request: heartbeat.HeartbeatRequest) -> HandlerResult:
        return self.answer(request)


def turns() -> Turns:
    return Turns(cast(Clock, SimpleNamespace(now=lambda: Instant(0, 0))))


def router(*handlers: Any, listener: NamedListener = LISTENER, **options: Any) -> Router:
    return Router([route(each) for each in handlers or [HeartbeatHandler()]], turns(), listener, **options)


def frame(key: int = HEARTBEAT, version: int = 4, **fields: Any) -> bytearray:
    return bytearray(encode_request_header(key, version, 77, "c") + encode_request(key, version, fields))


def error_of(parts: Any) -> ErrorCode:
    """Of a Heartbeat's response frame in version 4."""
    data = b"".join(parts)
    assert data[:9] == (len(data) - 4).to_bytes(4, "big") + (77).to_bytes(4, "big") + b"\x00"
    error: ErrorCode = decode_response(HEARTBEAT, 4, data, 9).error_code
    return error


async def finish(deferred: Any) -> Body | Parked:
    return await router().finish(deferred)


async def parts_of(started: Any) -> Any:
    """The frame that answers: the first request of a version waits for its turn."""
    assert isinstance(started, Deferred)
    return router().encode(started.header, await started.body())


async def test_only_the_first_request_of_a_version_waits_for_a_turn() -> None:
    one = router()
    for version in (4, 3):
        assert isinstance(one.dispatch(frame(version=version), "host"), Deferred)
        assert isinstance(one.dispatch(frame(version=version), "host"), list)


async def test_a_request_is_decoded_answered_and_encoded() -> None:
    seen: list[heartbeat.HeartbeatRequest] = []

    def answer(request: heartbeat.HeartbeatRequest) -> HandlerResult:
        seen.append(request)
        return FOUND

    started = router(HeartbeatHandler(answer)).dispatch(frame(group_id="g", generation_id=3), "host")
    assert error_of(await parts_of(started)) is ErrorCode.rebalance_in_progress
    assert seen == [heartbeat.HeartbeatRequest("g", 3)]


@pytest.mark.parametrize("body", [b"\x00ab", [b"\x00", b"ab"]])
async def test_an_encoded_body_is_sent_as_it_is(body: Body) -> None:
    started = router(HeartbeatHandler(lambda request: body)).dispatch(frame(), "host")
    assert b"".join(await parts_of(started))[9:] == b"\x00ab"


async def test_no_body_is_no_answer() -> None:
    assert await parts_of(router(HeartbeatHandler(lambda request: None)).dispatch(frame(), "host")) == []


async def test_the_response_of_a_coroutine_is_encoded_when_it_has_ended() -> None:
    async def later() -> Body:
        return FOUND

    deferred = router(HeartbeatHandler(lambda request: later())).dispatch(frame(), "host")
    assert isinstance(deferred, Deferred)
    assert await finish(deferred) == heartbeat.API.encode_response(4, FOUND)


async def test_a_large_request_waits_for_its_turn() -> None:
    deferred = router().dispatch(frame(group_id="g" * 5_000), "host")
    assert isinstance(deferred, Deferred)
    assert await finish(deferred) == heartbeat.API.encode_response(4, FOUND)


async def test_only_as_many_large_requests_are_unpacked_at_once_as_memory_allows() -> None:
    """Of fifty wide requests, not all are in memory for the sake of fairness; and each is worked on in turns."""
    order: list[str] = []
    answered = asyncio.Event()
    waiting = asyncio.Semaphore(0)

    def in_three_steps(context: RequestContext, data: Any, position: int) -> Any:
        name = chr(data[position + 10])

        async def handle() -> Body:
            order.append(f"{name} waits")
            waiting.release()
            await answered.wait()
            return FOUND

        for step in range(3):
            order.append(f"{name}{step}")
            yield None if step < 2 else handle

    clock = iter(range(0, 1_000_000, 10))
    turns = Turns(cast(Clock, SimpleNamespace(now=lambda: Instant(0, next(clock)))))
    one = Router([route(HeartbeatHandler())._replace(prepare_in_steps=in_three_steps)], turns, LISTENER)
    deferred = [one.dispatch(frame(group_id=name * 30_000), "host") for name in "abcdef"]
    running = [asyncio.ensure_future(one.finish(cast(Deferred, each))) for each in deferred]
    for _ in range(4):
        await waiting.acquire()
    for _ in range(100):
        await asyncio.sleep(0)
    assert "e0" not in order, "four requests of 30,000 elements may take 60 MB"
    answered.set()
    await asyncio.gather(*running)
    assert order.index("b0") < order.index("a2"), "in turns with others"
    assert [each[0] for each in order if each.endswith("waits")] == list("abcdef")


async def test_a_request_that_is_cut_off_closes_the_connection() -> None:
    one = router()
    with pytest.raises(Truncated):
        await parts_of(one.dispatch(frame()[:-3], "host"))
    with pytest.raises(Truncated):
        one.dispatch(frame()[:-3], "host")


def test_an_api_or_version_that_is_not_supported_closes_the_connection() -> None:
    for data in (frame(key=13), bytearray(frame()[:2] + b"\x00\x05" + frame()[4:])):
        with pytest.raises(UnknownVersion):
            router().dispatch(data, "host")


def test_a_later_version_of_api_versions_is_answered_in_version_0() -> None:
    response = api_versions.ApiVersionsResponse(error_code=ErrorCode.unsupported_version)
    handler = SimpleNamespace(api=api_versions.API, handle=None)
    asked = bytearray(frame(API_VERSIONS, 4)[:2] + b"\x00\x63" + frame(API_VERSIONS, 4)[4:])
    parts = cast(Any, router(handler, unsupported=lambda: response).dispatch(asked, "host"))
    assert decode_response(API_VERSIONS, 0, b"".join(parts), 8).error_code is ErrorCode.unsupported_version


async def test_only_authentication_is_answered_before_it() -> None:
    origin = cast(Any, SimpleNamespace(authentication=Authentication()))
    with pytest.raises(Unauthenticated):
        router(listener=SASL).dispatch(frame(), "host", origin)
    origin.authentication.is_done = True
    assert error_of(await parts_of(router(listener=SASL).dispatch(frame(), "host", origin)))


# --- forwarding --------------------------------------------------------------------------------------------------


def controller(*, is_active: bool) -> Any:
    return SimpleNamespace(is_active=is_active)


class Channel:
    """In place of the one to the controller: its answer to an Envelope."""

    def __init__(self, answer: envelope.EnvelopeResponse) -> None:
        self.answer = answer

    async def ask(self, *_args: Any, **_options: Any) -> Any:
        return self.answer


@pytest.mark.parametrize("is_active", [True, False])
async def test_what_only_the_controller_answers_is_passed_on_unless_it_is_here(is_active: bool) -> None:
    encoded = (77).to_bytes(4, "big") + b"\x00" + heartbeat.API.encode_response(4, heartbeat.HeartbeatResponse())
    channel: Any = Channel(envelope.EnvelopeResponse(response_data=encoded))
    routes = [route(HeartbeatHandler(), is_forwarded=True)]
    forwarding = Forwarding(controller(is_active=is_active), channel, 10_000)
    result = Router(routes, turns(), LISTENER, forwarding=forwarding).dispatch(frame(), "host")
    if is_active:
        assert error_of(await parts_of(result)) is ErrorCode.rebalance_in_progress
    else:
        assert await finish(result) == encoded[5:]


@pytest.mark.parametrize("principal", [None, Principal("User", "x" * 3_000)])
async def test_what_fits_in_no_envelope_closes_the_connection_of_its_client_alone(principal: Principal | None) -> None:
    """In an Envelope above its limit a controller would close the one of this node."""
    sent: list[envelope.EnvelopeRequest] = []

    class Noting(Channel):
        async def ask(self, _api: Any, _version: int, request: Any, **_options: Any) -> Any:
            sent.append(request)
            return self.answer

    limit = 10_000
    channel: Any = Noting(envelope.EnvelopeResponse(error_code=ErrorCode.not_controller))
    forwarding = Forwarding(controller(is_active=False), channel, limit)
    one = Router([route(HeartbeatHandler(), is_forwarded=True)], turns(), LISTENER, forwarding=forwarding)
    origin: Any = SimpleNamespace(authentication=SimpleNamespace(is_bare=False, principal=principal))
    refused = 0
    for size in range(limit - 4_000, limit, 50):
        deferred = one.dispatch(frame(group_id="g" * (size - len(frame()))), "1" * 45, origin)
        try:
            await finish(deferred)
        except Malformed:
            refused += 1
        else:
            body = encode_request_header(ENVELOPE, 0, 1, "node") + envelope.API.encode_request(0, sent[-1])
            assert len(body) <= limit
    assert 4 < refused < 70, "and nearly all that fit are passed on"


async def test_the_error_of_this_node_is_the_answer_when_no_controller_answers() -> None:
    channel: Any = Channel(envelope.EnvelopeResponse(error_code=ErrorCode.not_controller))
    forwarding = Forwarding(controller(is_active=False), channel, 10_000)
    routes = [route(HeartbeatHandler(), is_forwarded=True)]
    result = Router(routes, turns(), LISTENER, forwarding=forwarding).dispatch(frame(), "host")
    assert await finish(result) == heartbeat.API.encode_response(4, FOUND)


async def enveloped(
    answer: HandlerResult, data: bytes | bytearray, *, is_active: bool = True
) -> envelope.EnvelopeResponse:
    inner = router(HeartbeatHandler(lambda request: answer))
    handler = EnvelopeHandler(Access(None), controller(is_active=is_active), inner)
    context = RequestContext(RequestHeader(ENVELOPE, 0, 1, None), "host", turns())
    return await handler.handle(context, envelope.EnvelopeRequest(bytes(data), None, b"host"))


async def test_an_envelope_has_the_whole_answer_to_the_request_in_it() -> None:
    response = await enveloped(FOUND, frame())
    assert response.error_code is ErrorCode.none
    assert response.response_data is not None
    assert error_of([len(response.response_data).to_bytes(4, "big"), response.response_data])


async def test_an_envelope_is_refused_where_the_controller_is_not_or_is_no_more() -> None:
    async def lost() -> Body:
        return heartbeat.HeartbeatResponse(error_code=ErrorCode.not_controller)

    for refused in (await enveloped(FOUND, frame(), is_active=False), await enveloped(lost(), frame())):
        assert refused == envelope.EnvelopeResponse(error_code=ErrorCode.not_controller)


async def test_a_bug_in_a_handler_costs_no_node_its_connection() -> None:
    async def fails() -> Body:
        raise struct.error("'h' format requires a smaller number")

    reported: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, what: reported.append(what["exception"]))
    for broken in (fails(), heartbeat.HeartbeatResponse(throttle_time=2**40)):
        assert (await enveloped(broken, frame())).error_code is ErrorCode.unknown_server_error
    assert [type(each) for each in reported] == [struct.error] * 2


async def test_an_envelope_around_what_is_not_passed_on_is_invalid() -> None:
    for data in (frame(key=13), b"\x00", frame()[:-3], frame(group_id="g" * 5_000)[:-3]):
        assert (await enveloped(FOUND, data)).error_code is ErrorCode.invalid_request
