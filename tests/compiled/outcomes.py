"""Outcomes of the modules that may be compiled, on random and on hostile input: the same in any process, by seed.

``python -m tests.compiled.outcomes SEED`` prints them as JSON, by scenario.
"""

from __future__ import annotations

import json
import random
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any, Final

from einmal.client.cores.fetched import visible_batches, whole_batches
from einmal.client.cores.metadata_cache import NO_TOPIC_ID, PartitionMetadata, TopicMetadata
from einmal.client.cores.partition_reading import FetchedPiece, PartitionReading
from einmal.client.cores.partitioner import Partitioner
from einmal.client.cores.producer_batch import record_size
from einmal.client.cores.producer_core import ProduceLimits, ProducerCore
from einmal.client.cores.record_router import RecordRouter, UnroutedRecord
from einmal.log.admission import Admission
from einmal.log.config import LogConfig
from einmal.log.producer_state import AppendOrigin, ProducerStates
from einmal.types import (
    SEQUENCE_MAX,
    ErrorCode,
    Offset,
    ProducerIdAndEpoch,
    Sequence,
    TopicPartition,
    TransactionVersion,
)
from einmal.wire import metadata
from einmal.wire.record_batch import BatchHeader, NewRecord, read_header
from tests.client.cores.test_fetched import LogWriter
from tests.log.making import FOLDER as LOG_FOLDER
from tests.log.making import SMALL, START, Machine, append, at, batch, end_transaction, open_log, producer
from tests.log.malformed import good, mutated
from tests.wire.kio_messages import encode
from tests.wire.mapped import APIS
from tests.wire.test_api_types import schema_and_type
from tests.wire.test_hot_codecs import _samples
from tests.wire.test_message_writer import random_fields

T0: Final = TopicPartition("t", 0)
CODES: Final = (ErrorCode.not_leader_or_follower, ErrorCode.out_of_order_sequence_number, ErrorCode.message_too_large)
"""Errors of a batch: one to retry, one that may be another's fault, one that is final."""


def outcome(call: Callable[[], Any]) -> str:
    """The value, or the error with its text."""
    try:
        return repr(plain(call()))
    except Exception as error:  # noqa: BLE001 - a bug of a compiled module may raise anything.
        return f"{type(error).__name__}: {error}"


def plain(value: Any) -> Any:
    """The value without what differs between processes: addresses, and views of bytes."""
    if isinstance(value, memoryview):
        return bytes(value)
    if isinstance(value, tuple | list):
        return [plain(each) for each in value]
    return value


def broken(data: bytes, source: random.Random) -> bytes:
    """The bytes with one to three of them changed, now and then cut off."""
    changed = bytearray(data or b"\x00")
    for _ in range(source.randint(1, 3)):
        changed[source.randrange(len(changed))] = source.choice((0, 1, 0x7F, 0x80, 0xFF, source.randrange(256)))
    return bytes(changed[: source.choice((None, None, source.randrange(len(changed) + 1)))])


def messages(source: random.Random) -> Iterator[str]:
    """Requests and responses of the APIs, read whole and in steps, and written."""
    for key in source.sample(sorted(APIS), 20):
        api = APIS[key]
        for version in {api.versions.min, api.versions.max}:
            for kind in ("request", "response"):
                schema, _message = schema_and_type(key, version, kind)
                frame = encode(schema, random_fields(schema, source))
                for each in (frame, *(broken(frame, source) for _ in range(8))):
                    if kind == "request":
                        yield outcome(lambda: list(api.decode_request_in_steps(version, each, 0)))  # noqa: B023
                        yield outcome(lambda: api.decode_request(version, each, 0))  # noqa: B023
                    else:
                        yield outcome(lambda: api.decode_response(version, each, 0))  # noqa: B023
                with suppress(Exception):
                    response = api.decode_response(version, frame, 0)
                    yield outcome(lambda: api.encode_response(version, response))  # noqa: B023
                    yield outcome(lambda: b"".join(api.response_slices(version, response)))  # noqa: B023


def hot_codecs(source: random.Random) -> Iterator[str]:
    """Produce and Fetch in every version, and answers to Metadata."""
    for version in range(3, 19):
        for decode, number, frame in _samples(version):
            yield frame.hex()
            for each in (frame, *(broken(frame, source) for _ in range(40))):
                yield outcome(lambda: decode(number, each, 0))  # noqa: B023
    for version in metadata.VERSIONS:
        response = APIS[3].decode_response(12, encode(*_metadata_fields(source)), 0)
        yield outcome(lambda: metadata.encode_metadata_response(version, response))  # noqa: B023


def _metadata_fields(source: random.Random) -> tuple[Any, Any]:
    schema, _message = schema_and_type(3, 12, "response")
    return schema, random_fields(schema, source)


def admissions(source: random.Random) -> Iterator[str]:
    """Batches of clients, broken inside and outside."""
    configs = (LogConfig(), LogConfig(cleanup_policy="compact", max_message_bytes=150), LogConfig())
    for data in mutated(source.randrange(1 << 30), 200, START):
        for each in (data, broken(data, source), broken(good(3, START), source), source.randbytes(70)):
            admission = Admission(bytearray(each), source.choice(configs), START)
            if not admission.is_decided:
                admission.decide()
            found = admission.error, admission.message, admission.record_errors, admission.max_timestamp
            yield repr((found, admission.headers))


def producer_states(source: random.Random) -> Iterator[str]:
    """Appends and markers of three producers, in order and out of it, with snapshots in between."""
    states = ProducerStates()
    end = 0
    for step in range(600):
        of = producer(source.randrange(3), source.choice((0, 0, 0, 0, step // 100)))
        entry = states.entry(of.producer_id)
        header = _header_of(source, of, -1 if entry is None else entry.last_sequence, end)
        origin = source.choice((AppendOrigin.CLIENT, AppendOrigin.CLIENT, AppendOrigin.COORDINATOR))
        guard = None
        if source.random() < 0.2:
            guard = states.begin_verification(of, Sequence(header.base_sequence), TransactionVersion.TV_2)
            yield str(guard)
        verdict = states.check(header, origin, guard)
        yield repr(verdict)
        if verdict is ErrorCode.none:
            yield outcome(
                lambda: states.replay_batch(header, header.base_offset, header.last_offset, START, at(step))  # noqa: B023
            )
            end = header.next_offset
        if source.random() < 0.15:
            checked = states.check_marker(of, 0, TransactionVersion.TV_0)
            yield repr(checked)
            if checked is ErrorCode.none:
                yield repr(
                    states.replay_marker(
                        of, committed=True, coordinator_epoch=0, offset=Offset(end), timestamp=START, now=at(step)
                    )
                )
                end += 1
                states.advance_high_watermark(Offset(end - source.randrange(2)))
        yield repr(states.first_unstable_offset)
        if step % 50 == 0:
            data = states.picture().encode()
            yield data.hex()
            for each in (data, broken(data, source)):
                yield outcome(lambda: ProducerStates.decode_snapshot(each, at(step), 1_000).picture().encode())  # noqa: B023
            list(states.expire(at(step), 200))
            yield repr(list(states.describe()))


def _header_of(source: random.Random, of: ProducerIdAndEpoch, last_sequence: int, base_offset: int) -> BatchHeader:
    next_sequence = (last_sequence + 1) & SEQUENCE_MAX
    data = batch(
        source.randint(1, 3),
        of=of,
        sequence=source.choice(
            (next_sequence, next_sequence, next_sequence, 0, max(0, last_sequence), SEQUENCE_MAX - 1)
        ),
        transactional=source.random() < 0.4,
        base_offset=base_offset,
    )
    return read_header(data)


def logs(source: random.Random) -> Iterator[str]:
    """Appends, transactions, reads, truncations and new starts of a partition's log on a simulated disk."""
    machine = Machine(source.randrange(1 << 30))
    machine.process().make_directory(LOG_FOLDER.parent)
    log = open_log(machine.process())
    for step in range(250):
        producer_id, count = source.randrange(2), source.randint(1, 4)
        of = producer(producer_id)
        entry = log.producers.entry(of.producer_id)
        sequence = 0 if entry is None else max(0, entry.last_sequence + source.choice((1, 1, 1, 0)))
        data = batch(count, of=of, sequence=sequence, transactional=producer_id == 1, timestamp=START + step)
        if source.random() < 0.2:
            data = bytearray(broken(bytes(data), source))
        yield repr(append(log, data, now=at(step)))
        if source.random() < 0.1:
            yield repr(end_transaction(log, producer(1), committed=source.random() < 0.5, now=at(step)))
        start, size = Offset(source.randrange(log.log_end_offset + 1)), source.choice((1, 200, 2_000))
        yield outcome(lambda: log.read(start, size, below=log.last_stable_offset).hex())  # noqa: B023
        if step % 60 == 59:
            yield outcome(lambda: log.truncate_to(Offset(max(log.log_start_offset, log.log_end_offset - 5))))  # noqa: B023
        if step % 80 == 79:
            log.close(clean=source.random() < 0.5)
            log = open_log(machine.process(), config=SMALL, now=at(step))
        yield repr((log.log_start_offset, log.log_end_offset, log.last_stable_offset, log.producers.picture().encode()))


def producers(source: random.Random) -> Iterator[str]:
    """Records in, batches out, and every answer that a broker may give to one."""
    limits = ProduceLimits(linger_ms=2, batch_size=200, delivery_timeout_ms=60)
    core = ProducerCore(limits._replace(is_idempotent=source.random() < 0.7))
    yield repr(core.begin_identity(producer(7)))
    flying: list[Any] = []
    for now in range(400):
        value = None if source.random() < 0.1 else source.randbytes(source.randrange(90))
        record = NewRecord(source.choice((None, b"key")), value, START + now)
        size = record_size(record.key, record.value, ())
        yield repr(core.append(TopicPartition("t", source.randrange(3)), record, size, now, now))
        for _node, batches in core.drain(now, lambda each: each.partition % 2, lambda _node: 0).items():
            flying += batches
            yield repr([(each.topic_partition, each.data, each.attempts) for each in batches])
        while flying and source.random() < 0.5:
            each = flying.pop(source.randrange(len(flying)))
            answer = source.random()
            if answer < 0.6:
                settled = core.accepted(each, now, -1)
            elif answer < 0.9:
                settled = core.refused(each, source.choice(CODES), None, now)
            else:
                settled = core.lost(each, was_sent=answer < 0.95, now=now)
            yield repr([(one.batch.tickets, one.base_offset, str(one.error)) for one in settled])
        yield repr([(one.batch.tickets, str(one.error)) for one in core.expire(now)])
        yield repr((core.next_deadline(now), core.buffered_bytes, core.in_flight, str(core.error)))
        if core.must_renew_identity and not flying:
            core.fail_rest(core.error) if core.error is not None else None
            yield repr(len(core.begin_identity(producer(7, now))))


def routed(source: random.Random) -> Iterator[str]:
    """Records on their way to a partition, of topics that become known."""
    router = RecordRouter(Partitioner(random.Random(source.random()), 100))
    for step in range(300):
        topic = source.choice("ab")
        partitions = {index: PartitionMetadata(index, 1) for index in range(source.randint(0, 3))}
        known = TopicMetadata(topic, NO_TOPIC_ID, partitions)
        record = NewRecord(source.choice((None, source.randbytes(4))), b"v", step)
        wanted = source.choice((None, None, 0, 2))
        found = router.route(topic, known if source.random() < 0.8 else None, record.key, 20, wanted)
        if found is None:
            router.wait(topic, UnroutedRecord(record, 20, wanted, step))
        yield repr((found, router.topics, router.waiting_bytes))
        if router.is_waiting(topic):
            yield repr(router.missing_partition(topic, known))
            if partitions:
                yield repr(list(router.routable(topic, known)))


def readings(source: random.Random) -> Iterator[str]:
    """Records of fetched pieces, transactions and aborted ones among them, also damaged."""
    log = LogWriter()
    for step in range(60):
        producer_id = source.choice((None, 1, 2))
        log.write([b"%d" % step] * source.randint(1, 3), producer_id)
        if producer_id is not None and source.random() < 0.4:
            log.mark(producer_id, committed=source.random() < 0.5)
    reading = PartitionReading(position=0)
    for _ in range(80):
        data, aborted = log.fetch(source.randrange(log.end), source.randint(80, 600))
        if source.random() < 0.2:
            data = memoryview(broken(bytes(data), source))
        with suppress(Exception):
            batches = deque(visible_batches(whole_batches(T0, data), aborted))
            reading.pieces.append(FetchedPiece(batches, batches[-1].header.next_offset if batches else 0))
        taken: list[Any] = []
        yield outcome(lambda: reading.take(T0, taken, source.randint(1, 9)))  # noqa: B023
        yield repr((taken, reading.position, reading.fetch_offset))
        if source.random() < 0.4:
            reading.drop_fetched(1)
            reading.position = source.randrange(log.end)


SCENARIOS: Final[Mapping[str, Callable[[random.Random], Iterator[str]]]] = {
    "admissions": admissions,
    "hot codecs": hot_codecs,
    "logs": logs,
    "messages": messages,
    "producer states": producer_states,
    "producers": producers,
    "readings": readings,
    "routed": routed,
}


def outcomes(seed: int) -> dict[str, list[str]]:
    return {name: list(scenario(random.Random(seed))) for name, scenario in SCENARIOS.items()}


if __name__ == "__main__":
    json.dump(outcomes(int(sys.argv[1])), sys.stdout)
