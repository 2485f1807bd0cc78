"""One Fetch request to one broker, by topic name whatever the version has on the wire. Knows no positions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple
from uuid import UUID

from einmal.client.aio.network.cluster import Cluster
from einmal.client.aio.network.connections import DATA_LANE, decode_by
from einmal.client.apis import ApiKey, choose_version
from einmal.client.cores.metadata_cache import NO_TOPIC_ID
from einmal.client.errors import error_for
from einmal.types import ErrorCode, IsolationLevel, TopicPartition
from einmal.wire.fetch import (
    FetchedPartition,
    FetchPartition,
    FetchRequest,
    decode_fetch_response,
    encode_fetch_request,
)
from einmal.wire.primitives import Topic

_BY_ID_SINCE: Final = 13


class FetchLimits(NamedTuple):
    isolation: IsolationLevel
    max_wait_ms: int = 500
    min_bytes: int = 1
    max_bytes: int = 52_428_800


async def fetch(
    cluster: Cluster,
    node_id: int,
    asked: Iterable[tuple[TopicPartition, FetchPartition]],
    limits: FetchLimits,
    *,
    lane: str = DATA_LANE,
    topic_ids: Mapping[str, UUID] | None = None,
    confirms_names: bool = True,
) -> list[tuple[TopicPartition, FetchedPartition]]:
    """The answer's partitions, without a fetch session; the cluster's metadata has the leaders that they name.

    ``topic_ids``: of the wanted topics; other topics under their names are left out, on brokers that fetch by name only
    with ``confirms_names``, at the cost of a request. Raises Disconnected, or KafkaError for the whole request.
    """
    partitions = list(asked)
    connection = await cluster.connection(node_id, lane)
    wanted = topic_ids or {}
    # A topic may have been forgotten since it was wanted.
    ids = {
        topic_partition.topic: wanted.get(topic_partition.topic) or cluster.metadata.topic_id(topic_partition.topic)
        for topic_partition, _partition in partitions
    }
    knows_ids = NO_TOPIC_ID not in ids.values()
    version = choose_version(connection.versions, ApiKey.FETCH, at_most=32_767 if knows_ids else _BY_ID_SINCE - 1)
    names: dict[Topic, str] = {}
    by_topic: dict[Topic, list[FetchPartition]] = {}
    for (name, _index), partition in partitions:
        topic: Topic = ids[name] if version >= _BY_ID_SINCE else name
        names[topic] = name
        by_topic.setdefault(topic, []).append(partition)
    request = FetchRequest(
        limits.max_wait_ms, limits.min_bytes, limits.max_bytes, int(limits.isolation), list(by_topic.items())
    )
    timeout = cluster.settings.request_timeout_ms + limits.max_wait_ms
    body = encode_fetch_request(version, request)
    answer = await connection.send(ApiKey.FETCH, version, (body,), timeout, wait_ms=limits.max_wait_ms)
    response = decode_by(decode_fetch_response, connection, version, answer)
    if response.error_code is not ErrorCode.none:
        raise error_for(response.error_code, f"Fetch at {connection.name}")
    results = [
        (TopicPartition(names[topic], partition.partition), partition)
        for topic, fetched in response.topics
        if topic in names
        for partition in fetched
    ]
    if confirms_names and version < _BY_ID_SINCE and any(name in wanted for name in ids):
        # Before Kafka 3.1 a broker answers for whatever has the name. An id is never used again, so what has it now had
        # it when the broker answered.
        await cluster.refresh_metadata(ids, node_id=node_id)
        results = [
            result for result in results if cluster.metadata.is_topic(result[0].topic, wanted.get(result[0].topic))
        ]
    cluster.update_leaders(
        [(topic_partition, partition.current_leader) for topic_partition, partition in results], response.node_endpoints
    )
    return results
