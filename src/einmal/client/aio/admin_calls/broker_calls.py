"""The admin client's calls about the settings of single brokers."""

from __future__ import annotations

from typing import Final

from einmal.client.aio.network.cluster import Cluster
from einmal.client.aio.network.results import check
from einmal.client.aio.network.retry import Retry
from einmal.client.descriptions import ConfigEntry
from einmal.client.errors import Disconnected, RequestRefused
from einmal.types import ErrorCode
from einmal.wire.api.describe_configs import API as DESCRIBE_CONFIGS
from einmal.wire.api.describe_configs import DescribeConfigsRequest, DescribeConfigsResource

_BROKER: Final = 4
_DEFAULT_CONFIG: Final = 5


class BrokerCalls:
    """Calls of ``Admin`` about brokers."""

    _cluster: Cluster

    async def describe_broker_configs(self, node_id: int) -> dict[str, ConfigEntry]:
        """All settings of a broker, as it runs. Raises RequestRefused."""
        request = DescribeConfigsRequest((DescribeConfigsResource(_BROKER, str(node_id), None),))
        retry = Retry(self._cluster, f"settings of broker {node_id}", self._cluster.deadline())
        while True:
            try:
                await self._cluster.refresh_metadata([])
                if node_id not in self._cluster.metadata.brokers:
                    known = ", ".join(map(str, sorted(self._cluster.metadata.brokers)))
                    raise RequestRefused(
                        ErrorCode.broker_id_not_registered,
                        f"broker {node_id}; known: {known}",
                        meaning="the cluster has no broker with this id now",
                        what_to_do="choose one of those that are known",
                    )
                # Only the broker itself knows what is in its file.
                response = await self._cluster.call(node_id, DESCRIBE_CONFIGS, request)
                break
            except Disconnected as error:
                await retry.after_disconnect(error)
        (result,) = response.results
        check(result, f"settings of broker {node_id}")
        return {
            config.name: ConfigEntry(
                config.name,
                config.value,
                config.config_source == _DEFAULT_CONFIG,
                config.read_only,
                config.is_sensitive,
            )
            for config in result.configs
        }
