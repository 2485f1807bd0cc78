"""What a sink keeps on the driver while it writes: a line to the cluster, the claims of its tasks, the job.

A Spark Connect session has its driver elsewhere, where none of this could live: it is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from pyspark.sql import DataFrame

from einmal.spark.claim_service import ClaimService
from einmal.spark.cluster import KafkaCluster
from einmal.spark.errors import PipelineRefused
from einmal.spark.job import Job
from einmal.spark.spark_session import CONNECT_REFUSED

CLAIMS_PORT: Final = "spark.einmal.claims.port"
"""A Spark setting: the first port for the drivers' claim services; by default any that is free."""


@dataclass(frozen=True, slots=True)
class Driver:
    cluster: KafkaCluster
    service: ClaimService
    job: Job

    def close(self) -> None:
        self.service.close()
        self.cluster.close()


def require_classic_session(frame: DataFrame) -> None:
    """Raises PipelineRefused for a frame of Spark Connect, which has no JVM here."""
    if not hasattr(frame.sparkSession, "_jvm"):
        raise PipelineRefused(*CONNECT_REFUSED)


def on_driver(frame: DataFrame, client: Mapping[str, str], topic: str | None) -> Driver:
    """For one query or write of ``frame``. ``client``: settings under Kafka's names. Raises PipelineRefused."""
    require_classic_session(frame)
    cluster = KafkaCluster(client)
    context = frame.sparkSession.sparkContext.getConf()
    advertised = context.get("spark.driver.host") or "127.0.0.1"
    port = int(context.get(CLAIMS_PORT) or 0)
    service = ClaimService(context.get("spark.driver.bindAddress") or advertised, advertised, port)
    return Driver(cluster, service, Job(cluster, client, topic, service.address))
