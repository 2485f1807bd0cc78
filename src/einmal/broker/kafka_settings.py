"""Kafka's broker settings that this broker does not have: which of them prevent a start, and which are only logged.

A setting that promises safety (who may do what, what is encrypted, what survives) must not be dropped: a cluster would
run without what its operator relies on. The others are harmless; an unknown name is probably misspelt. Names are those
of Apache Kafka 4.4.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final

from einmal.misspelt import nearest_name

_NO_CLASSES: Final = "no class of your own runs here: remove it"
_NO_POLICY: Final = "requests are not checked by classes of your own: remove it"
_FLUSH: Final = "only log.flush.interval.messages=1 (every write is flushed before it is acknowledged) is supported"

_REFUSED: Final[Mapping[str, str]] = {
    "delegation.token.*": "delegation tokens are not supported: remove it",
    "principal.builder.class": _NO_CLASSES,
    "sasl.*": "clients authenticate by PLAIN, SCRAM or OAUTHBEARER, without classes of your own, Kerberos or logins of "
    "the broker (docs/security.md): remove it",
    "security.inter.broker.protocol": "set inter.broker.listener.name and listener.security.protocol.map instead",
    "security.providers": _NO_CLASSES,
    "ssl.engine.factory.class": "certificates are read from PEM only: remove it, and set ssl.keystore.location",
    "ssl.*": "TLS of OpenSSL has no such setting: remove it",
    "alter.config.policy.class.name": _NO_POLICY,
    "client.quota.callback.class": _NO_POLICY,
    "create.topic.policy.class.name": _NO_POLICY,
    "log.flush.interval.ms": _FLUSH,
    "log.flush.scheduler.interval.ms": _FLUSH,
    "config.providers": "only file and env are supported: ${file:/path:key} and ${env:NAME}, with or without it",
    "remote.log.storage.system.enable": "tiered storage is not supported: remove it",
}
"""Advice for each refused setting, by name or by prefix."""

_HARMLESS: Final[Mapping[str, str]] = {
    "remote.log.storage.system.enable": "false",
    "sasl.mechanism.controller.protocol": "SCRAM-SHA-256",
    "sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-256",
    "security.inter.broker.protocol": "PLAINTEXT",
    "ssl.allow.dn.changes": "false",
    "ssl.allow.san.changes": "false",
    "ssl.keymanager.algorithm": "SunX509",
    "ssl.trustmanager.algorithm": "PKIX",
}
"""Values without effect. So is an empty one."""

_NAMES_WITHOUT_EFFECT: Final = """
    alter.log.dirs.replication.quota.window.num alter.log.dirs.replication.quota.window.size.seconds background.threads
    compression.gzip.level compression.lz4.level compression.zstd.level
    controller.performance.always.log.threshold.ms controller.performance.sample.period.ms
    controller.quorum.append.linger.ms controller.quorum.auto.join.enable controller.quorum.bootstrap.servers
    controller.quorum.fetch.max.bytes controller.quorum.fetch.snapshot.max.bytes controller.quorum.retry.backoff.ms
    controller.socket.timeout.ms cordoned.log.dirs
    delete.records.purgatory.purge.interval.requests early.start.listeners
    errors.deadletterqueue.auto.create.topics.enable errors.deadletterqueue.topic.name.prefix
    fetch.purgatory.purge.interval.requests follower.fetch.last.tiered.offset.enable
    group.consumer.assignment.interval.ms group.consumer.assignor.offload.enable group.consumer.assignors
    group.consumer.heartbeat.interval.ms group.consumer.max.assignment.interval.ms
    group.consumer.max.heartbeat.interval.ms group.consumer.max.session.timeout.ms group.consumer.max.size
    group.consumer.migration.policy group.consumer.min.assignment.interval.ms group.consumer.min.heartbeat.interval.ms
    group.consumer.min.session.timeout.ms group.consumer.regex.refresh.interval.ms group.consumer.session.timeout.ms
    group.coordinator.append.linger.ms group.coordinator.background.threads group.coordinator.cached.buffer.max.bytes
    group.coordinator.rebalance.protocols group.coordinator.threads group.share.assignment.interval.ms
    group.share.assignor.offload.enable group.share.assignors group.share.delivery.count.limit
    group.share.dlq.manager.class.name group.share.heartbeat.interval.ms group.share.initialize.retry.interval.ms
    group.share.max.assignment.interval.ms group.share.max.delivery.count.limit group.share.max.heartbeat.interval.ms
    group.share.max.partition.max.record.locks group.share.max.record.lock.duration.ms
    group.share.max.session.timeout.ms group.share.max.share.sessions group.share.max.size
    group.share.min.assignment.interval.ms group.share.min.delivery.count.limit group.share.min.heartbeat.interval.ms
    group.share.min.partition.max.record.locks group.share.min.record.lock.duration.ms
    group.share.min.session.timeout.ms group.share.partition.max.record.locks group.share.persister.class.name
    group.share.record.lock.duration.ms group.share.session.timeout.ms group.streams.acceptable.recovery.lag
    group.streams.assignment.interval.ms group.streams.assignor.offload.enable group.streams.assignors
    group.streams.heartbeat.interval.ms group.streams.initial.rebalance.delay.ms
    group.streams.max.assignment.interval.ms group.streams.max.heartbeat.interval.ms
    group.streams.max.session.timeout.ms group.streams.max.size group.streams.max.standby.replicas
    group.streams.max.warmup.replicas group.streams.min.assignment.interval.ms group.streams.min.heartbeat.interval.ms
    group.streams.min.session.timeout.ms group.streams.min.task.offset.interval.ms group.streams.num.standby.replicas
    group.streams.num.warmup.replicas group.streams.rack.aware.assignment.tags group.streams.session.timeout.ms
    group.streams.task.offset.interval.ms group.streams.topology.description.plugin.class
    initial.broker.registration.timeout.ms kafka.metrics.polling.interval.secs kafka.metrics.reporters
    log.cleaner.io.buffer.load.factor log.cleaner.io.buffer.size log.cleaner.io.max.bytes.per.second log.cleaner.threads
    log.dir.failure.timeout.ms log.flush.offset.checkpoint.interval.ms log.flush.start.offset.checkpoint.interval.ms
    log.index.size.max.bytes log.initial.task.delay.ms log.local.retention.bytes log.local.retention.ms
    log.preallocate log.remote.copy.lag.bytes log.remote.copy.lag.ms
    log.roll.jitter.hours log.roll.jitter.ms log.segment.delete.delay.ms max.decompressed.message.bytes
    max.request.partition.size.limit metadata.log.dir metadata.log.max.snapshot.interval.ms metadata.log.segment.bytes
    metadata.log.segment.ms metadata.max.idle.interval.ms metadata.max.retention.bytes metadata.max.retention.ms
    metric.reporters metrics.num.samples metrics.recording.level metrics.sample.window.ms num.io.threads
    num.network.threads num.recovery.threads.per.data.dir num.replica.alter.log.dirs.threads num.replica.fetchers
    offsets.commit.timeout.ms offsets.load.buffer.size offsets.topic.compression.codec
    producer.purgatory.purge.interval.requests queued.max.requests
    remote.fetch.max.wait.ms remote.list.offsets.request.timeout.ms
    remote.log.index.file.cache.total.size.bytes remote.log.index.file.cache.ttl.ms
    remote.log.manager.copier.thread.pool.size remote.log.manager.copy.max.bytes.per.second
    remote.log.manager.copy.quota.window.num remote.log.manager.copy.quota.window.size.seconds
    remote.log.manager.expiration.thread.pool.size remote.log.manager.fetch.max.bytes.per.second
    remote.log.manager.fetch.quota.window.num remote.log.manager.fetch.quota.window.size.seconds
    remote.log.manager.follower.thread.pool.size remote.log.manager.task.interval.ms
    remote.log.manager.task.retry.backoff.max.ms remote.log.manager.task.retry.backoff.ms
    remote.log.manager.task.retry.jitter remote.log.manager.thread.pool.size
    remote.log.metadata.custom.metadata.max.bytes remote.log.metadata.manager.class.name
    remote.log.metadata.manager.class.path remote.log.metadata.manager.impl.prefix
    remote.log.metadata.manager.listener.name remote.log.reader.max.pending.tasks remote.log.reader.threads
    remote.log.storage.manager.class.name remote.log.storage.manager.class.path remote.log.storage.manager.impl.prefix
    replica.fetch.backoff.ms replica.high.watermark.checkpoint.interval.ms replica.selector.class
    replica.socket.receive.buffer.bytes replica.socket.timeout.ms replication.quota.window.num
    replication.quota.window.size.seconds request.timeout.ms server.max.startup.time.ms
    share.coordinator.append.linger.ms share.coordinator.cached.buffer.max.bytes
    share.coordinator.cold.partition.snapshot.interval.ms share.coordinator.load.buffer.size
    share.coordinator.snapshot.update.records.per.snapshot share.coordinator.state.topic.compression.codec
    share.coordinator.state.topic.min.isr share.coordinator.state.topic.num.partitions
    share.coordinator.state.topic.prune.interval.ms share.coordinator.state.topic.replication.factor
    share.coordinator.state.topic.segment.bytes share.coordinator.threads share.coordinator.write.timeout.ms
    share.fetch.purgatory.purge.interval.requests socket.connection.setup.timeout.max.ms
    socket.connection.setup.timeout.ms socket.listen.backlog.size socket.receive.buffer.bytes socket.send.buffer.bytes
    telemetry.max.bytes transaction.abort.timed.out.transaction.cleanup.interval.ms
    transaction.state.log.load.buffer.size unclean.leader.election.interval.ms unstable.api.versions.enable
    unstable.feature.versions.enable
"""
WITHOUT_EFFECT: Final = frozenset(_NAMES_WITHOUT_EFFECT.split())


def why_refused(name: str, value: str) -> str | None:
    """The problem of an unsupported setting, and what to do; None: it may be ignored."""
    if not value or value.lower() == _HARMLESS.get(name, "").lower():
        return None
    family = next((pattern for pattern in _REFUSED if pattern.endswith("*") and name.startswith(pattern[:-1])), name)
    advice = _REFUSED.get(family)
    return None if advice is None else f"{name} is not supported: {advice}"


def warnings_of(unknown: Iterable[str], known: Collection[str]) -> list[str]:
    """Warnings about ignored settings: one line for all of Kafka's, one for each unknown one."""
    names = list(unknown)
    warnings = [_misspelt(name, known) for name in names if name not in WITHOUT_EFFECT]
    without_effect = [name for name in names if name in WITHOUT_EFFECT]
    if without_effect:
        warnings.append(f"settings of Apache Kafka that have no effect here: {', '.join(without_effect)}")
    return warnings


def _misspelt(name: str, known: Collection[str]) -> str:
    near = nearest_name(name, [*known, *WITHOUT_EFFECT])
    return f"unknown setting {name} is ignored" + (f"; did you mean {near}?" if near else "")
