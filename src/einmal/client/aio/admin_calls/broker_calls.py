"""The admin client's calls about the settings and the loggers of single brokers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from einmal.client.aio.network.cluster import Cluster
from einmal.client.aio.network.results import check
from einmal.client.aio.network.retry import Retry
from einmal.client.descriptions import ConfigEntry
from einmal.client.errors import Disconnected, RequestRefused
from einmal.client.records import settings_of
from einmal.types import ErrorCode
from einmal.wire.api.describe_configs import API as DESCRIBE_CONFIGS
from einmal.wire.api.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
)
from einmal.wire.api.incremental_alter_configs import API as INCREMENTAL_ALTER_CONFIGS
from einmal.wire.api.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from einmal.wire.messages import Api, Q, R

_BROKER: Final = 4
_BROKER_LOGGER: Final = 8
_SET: Final = 0
_DELETE: Final = 1
_DEFAULT_CONFIG: Final = 5


def config_changes(configs: Mapping[str, str | None]) -> tuple[AlterableConfig, ...]:
    """Changes of settings, or levels, by name; None deletes one. Raises LocalError for what is no text."""
    return tuple(
        AlterableConfig(name, _DELETE if value is None else _SET, value) for name, value in settings_of(configs).items()
    )


class BrokerCalls:
    """Calls of ``Admin`` about brokers."""

    _cluster: Cluster

    async def describe_broker_configs(self, node_id: int) -> dict[str, ConfigEntry]:
        """All settings of a broker, as it runs. Raises RequestRefused."""
        return {
            config.name: ConfigEntry(
                config.name,
                config.value,
                config.config_source == _DEFAULT_CONFIG,
                config.read_only,
                config.is_sensitive,
            )
            for config in await self._described(_BROKER, node_id, f"settings of broker {node_id}")
        }

    async def describe_broker_loggers(self, node_id: int) -> dict[str, str]:
        """The level of each logger of a broker, in Kafka's names (KIP-412). Raises RequestRefused."""
        configs = await self._described(_BROKER_LOGGER, node_id, f"loggers of broker {node_id}")
        return {config.name: config.value or "" for config in configs}

    async def alter_broker_loggers(
        self, node_id: int, levels: Mapping[str, str | None], *, validate_only: bool = False
    ) -> None:
        """Set levels of a broker's loggers until its next start: FATAL, ERROR, WARN, INFO, DEBUG or TRACE.

        None: the level of the package above. ``validate_only``: only ask whether it may be. Raises RequestRefused.
        """
        resource = AlterConfigsResource(_BROKER_LOGGER, str(node_id), config_changes(levels))
        request = IncrementalAlterConfigsRequest((resource,), validate_only)
        about = f"loggers of broker {node_id}"
        for result in (await self._call_broker(node_id, INCREMENTAL_ALTER_CONFIGS, request, about)).responses:
            check(result, about)

    async def _described(self, kind: int, node_id: int, about: str) -> Sequence[DescribeConfigsResourceResult]:
        request = DescribeConfigsRequest((DescribeConfigsResource(kind, str(node_id), None),))
        (result,) = (await self._call_broker(node_id, DESCRIBE_CONFIGS, request, about)).results
        check(result, about)
        return result.configs

    async def _call_broker(self, node_id: int, api: Api[Q, R], request: Q, about: str) -> R:
        """Only the broker itself knows what is in its file, and its loggers."""
        retry = Retry(self._cluster, about, self._cluster.deadline())
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
                return await self._cluster.call(node_id, api, request)
            except Disconnected as error:
                await retry.after_disconnect(error)
