"""Resources that a sink keeps in the driver process while it writes: connection, claim service, job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql import SparkSession

from einmal.clusters.kafka_cluster import KafkaCluster
from einmal.options.sink import CLAIMS_PORT
from einmal.security.ephemeral_identity import ephemeral_identity
from einmal.sinks.kafka.claim_service import ClaimService
from einmal.spark.output.job import Job


@dataclass(frozen=True, slots=True)
class SinkResources:
    """For one query or batch write."""

    service: ClaimService
    job: Job


def open_resources(
    spark: SparkSession, cluster: KafkaCluster, client: Mapping[str, str], topic: str | None
) -> SinkResources:
    """``client``: settings under Kafka's names. Raises PipelineRefused."""
    service = claim_service(spark)
    return SinkResources(service, Job(cluster, client, topic, service.address))


def claim_service(spark: SparkSession) -> ClaimService:
    """With a key pair of its own. Raises PipelineRefused."""
    context = spark.sparkContext.getConf()
    advertised = context.get("spark.driver.host") or "127.0.0.1"
    port = int(context.get(CLAIMS_PORT) or 0)
    return ClaimService(ephemeral_identity(), context.get("spark.driver.bindAddress") or advertised, advertised, port)
