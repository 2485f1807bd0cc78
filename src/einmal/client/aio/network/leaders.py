"""A question to the leaders of partitions: all leaders are asked at the same time, and each partition has its outcome.

A partition without a leader, one of an unknown topic, or one of a broker that does not answer holds back no other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, Generic, NamedTuple, TypeVar

from einmal.client.aio.network.background import end_tasks
from einmal.client.aio.network.cluster import Cluster, by_leader
from einmal.client.aio.network.results import ApiResult
from einmal.client.aio.network.retry import Retry
from einmal.client.apis import ApiKey
from einmal.client.errors import Disconnected, KafkaError, RetriableError, UnknownOutcome, error_for
from einmal.types import ErrorCode, TopicPartition
from einmal.wire.messages import Api, Q, R

P = TypeVar("P", bound=ApiResult)
"""A partition's result."""

UNKNOWN: Final = frozenset({ErrorCode.unknown_topic_or_partition, ErrorCode.unknown_topic_id})
_LEAST_WAIT_MS: Final = 1_000
"""For an answer, however near the deadline is."""
_EACH_MS: Final = 5_000
"""How long a partition without an answer may delay those of the others."""
_UNKNOWN_MS: Final = 1_000
"""How long one of an unknown topic may."""
_NAMED_MAX: Final = 5
"""Partitions that an error names."""


class LeaderRequest(NamedTuple, Generic[Q, R, P]):
    """``request_of`` builds the request for some partitions; ``results`` reads the answer.

    ``changes_something``: without an answer it may have been carried out.
    """

    api: Api[Q, R]
    request_of: Callable[[Sequence[TopicPartition]], Q]
    results: Callable[[R], Iterable[tuple[TopicPartition, P]]]
    changes_something: bool = False

    @property
    def name(self) -> str:
        return ApiKey(self.api.key).name

    def error(self, code: ErrorCode, partition: TopicPartition) -> KafkaError:
        """The partition's error."""
        return error_for(code, f"{self.name} of {partition}")


@dataclass(slots=True)
class Answers(Generic[P]):
    """Answers by partition: its result, or the error of its last attempt."""

    results: dict[TopicPartition, P] = field(default_factory=dict)
    errors: dict[TopicPartition, KafkaError] = field(default_factory=dict)

    def all_or_raise(self) -> dict[TopicPartition, P]:
        """The results. Raises an error that does not pass, else one that does; it names the partitions that have it."""
        if not self.errors:
            return self.results
        worst = next((error for error in self.errors.values() if not passes(error)), next(iter(self.errors.values())))
        same = [str(partition) for partition, error in self.errors.items() if error.code is worst.code]
        if len(same) > 1:
            rest = f" and {len(same) - _NAMED_MAX} more" if len(same) > _NAMED_MAX else ""
            worst.detail = f"{worst.detail}; so for {', '.join(same[:_NAMED_MAX])}{rest}"
        raise worst


def passes(error: KafkaError) -> bool:
    """Whether the same request may succeed later."""
    return isinstance(error, RetriableError) or (error.code is not None and error.code.retriable)


async def ask_each_leader(
    cluster: Cluster, request: LeaderRequest[Q, R, P], partitions: Iterable[TopicPartition], *, deadline: int
) -> Answers[P]:
    """Ask for what there is: a partition without an answer delays the others by at most 5 s. Raises
    NoBrokerReachable."""
    soon = min(deadline, cluster.deadline(_EACH_MS))
    return await ask_leaders(cluster, request, partitions, deadline=soon, appear_ms=_UNKNOWN_MS, needs_all=False)


async def ask_leaders(
    cluster: Cluster,
    request: LeaderRequest[Q, R, P],
    partitions: Iterable[TopicPartition],
    *,
    deadline: int,
    appear_ms: int | None = None,
    needs_all: bool = True,
) -> Answers[P]:
    """Ask until each partition has a result or an error that does not pass, at the latest until ``deadline``.

    ``appear_ms``: how long a topic may be unknown; None: until the deadline. ``needs_all``: end at the first error that
    does not pass. Raises NoBrokerReachable.
    """
    answers: Answers[P] = Answers()
    backoff = cluster.backoff()
    missing = list(dict.fromkeys(partitions))
    lost: dict[TopicPartition, None] = {}
    appear_until: int | None = None
    while missing:
        await _learn(cluster, missing, deadline)
        led, leaderless = by_leader(cluster.metadata, missing)
        answers.errors |= {
            partition: request.error(_why_leaderless(cluster, partition), partition) for partition in leaderless
        }
        await _ask_each(cluster, request, led, deadline, answers)
        lost |= {partition: None for partition, error in answers.errors.items() if _is_lost(error)}
        missing = [partition for partition, error in answers.errors.items() if passes(error)]
        if not missing or (needs_all and len(missing) < len(answers.errors)):
            break
        now, until = cluster.now_ms(), deadline
        unknown = [partition for partition in missing if answers.errors[partition].code in UNKNOWN]
        if unknown and appear_ms is not None and (needs_all or len(unknown) == len(missing)):
            appear_until = now + appear_ms if appear_until is None else appear_until
            until = min(deadline, appear_until)
        if now >= until:
            break
        cluster.raise_if_alone()
        cluster.refresh_soon()
        await backoff.pause(until - now)
    answers.errors = {
        partition: _last(request, partition, error, partition in lost) for partition, error in answers.errors.items()
    }
    return answers


def _last(request: LeaderRequest[Q, R, P], partition: TopicPartition, error: KafkaError, was_lost: bool) -> KafkaError:
    """Return the error that is reported of a partition when it is not asked for any more."""
    detail = f"{request.name} of {partition}; last: {error.detail}"
    if was_lost and request.changes_something:
        return UnknownOutcome(ErrorCode.request_timed_out, detail)
    return error_for(ErrorCode.network_exception, detail) if isinstance(error, Disconnected) else error


def _is_lost(error: KafkaError) -> bool:
    return isinstance(error, Disconnected) and error.was_sent


async def _learn(cluster: Cluster, partitions: Iterable[TopicPartition], deadline: int) -> None:
    """Ask once for the topics that have a partition without a known leader."""
    names = list(
        dict.fromkeys(partition.topic for partition in partitions if cluster.metadata.leader(partition) is None)
    )
    if not names:
        return
    for name in names:
        cluster.want_topic(name, may_create=False)
    retry = Retry(cluster, "Metadata", deadline)
    while True:
        try:
            await cluster.refresh_metadata(names)
            return
        except Disconnected as error:
            await retry.after_disconnect(error)


def _why_leaderless(cluster: Cluster, partition: TopicPartition) -> ErrorCode:
    topic = cluster.metadata.topics.get(partition.topic)
    if topic is not None and topic.error_code is not ErrorCode.none:
        return topic.error_code
    is_there = topic is not None and partition.partition in topic.partitions
    return ErrorCode.leader_not_available if is_there else ErrorCode.unknown_topic_or_partition


async def _ask_each(
    cluster: Cluster,
    request: LeaderRequest[Q, R, P],
    led: dict[int, list[TopicPartition]],
    deadline: int,
    answers: Answers[P],
) -> None:
    """One request to each leader, all at the same time."""
    loop = asyncio.get_running_loop()
    until = max(deadline, cluster.now_ms() + _LEAST_WAIT_MS)
    tasks = {node_id: loop.create_task(ask_leader(cluster, request, node_id, some)) for node_id, some in led.items()}
    try:
        for node_id, task in tasks.items():
            if await _is_done(task, until - cluster.now_ms()):
                of_leader = task.result()
            else:
                # It may not even be connected yet, which takes longer than this call may.
                silence = Disconnected(f"{request.name}: broker {node_id} does not answer", was_sent=True)
                of_leader = Answers(errors=dict.fromkeys(led[node_id], silence))
            answers.results |= of_leader.results
            answers.errors |= of_leader.errors
            for partition in of_leader.results:
                answers.errors.pop(partition, None)
    finally:
        await end_tasks(list(tasks.values()))


async def _is_done(task: asyncio.Task[Any], timeout_ms: int) -> bool:
    """Wait for a task that continues after the timeout."""
    with suppress(TimeoutError):
        async with asyncio.timeout(max(0, timeout_ms) / 1000):
            await asyncio.shield(task)
    return task.done()


async def ask_leader(
    cluster: Cluster, request: LeaderRequest[Q, R, P], node_id: int, partitions: Sequence[TopicPartition]
) -> Answers[P]:
    """One request to one leader, tried once. Its failure is that of each of the partitions; no KafkaError is raised."""
    answers: Answers[P] = Answers()
    try:
        response = await cluster.call(node_id, request.api, request.request_of(partitions))
    except KafkaError as error:
        return Answers(errors=dict.fromkeys(partitions, error))
    results = dict(request.results(response))
    for partition in partitions:
        result = results.get(partition)
        if result is None:
            detail = f"{request.name}: the answer of broker {node_id} lacks {partition}"
            answers.errors[partition] = RetriableError(ErrorCode.unknown_server_error, detail)
        elif result.error_code is ErrorCode.none:
            answers.results[partition] = result
        else:
            answers.errors[partition] = request.error(result.error_code, partition)
    return answers
