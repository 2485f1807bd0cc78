"""Apache Kafka's own dump tool reads what a broker of ours leaves behind: users' topics, coordinators', metadata.

The files of one log, in every detail, are in ``test_dump_log.py``.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from confluent_kafka import Producer

from einmal.client import Producer as OwnProducer
from tests.interop.apache_kafka import KafkaUnavailable, classpath
from tests.interop.apache_tools import dump_log
from tests.interop.einmal_broker import EinmalBroker
from tests.interop.topics import Broker, create_topic
from tests.interop.transaction_driver import TV2, TransactionDriver

pytestmark = pytest.mark.interop

_CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
_COMPLAINTS: Final = ("isvalid: false", "Exception", "Mismatches", "Could not", "corrupt", "not in the log")
_SEGMENT: Final = "00000000000000000000"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The data directory of a broker that was stopped, with a transaction still open."""
    try:
        classpath("tools")
    except KafkaUnavailable as error:
        pytest.skip(str(error))
    directory = tmp_path_factory.mktemp("dumped-")
    node = EinmalBroker(directory, {"transaction.two.phase.commit.enable": "true"})
    node.start()
    try:
        broker = Broker(node.host, node.port)
        _write_transactions(broker)
        _keep_a_transaction(node.bootstrap)
        for codec in _CODECS:
            _write_compressed(broker, codec)
    finally:
        node.stop()
    yield directory / "data"


def _write_transactions(broker: Broker) -> None:
    create_topic(broker, "transfers", 1)
    with TransactionDriver(broker, "bank", "transfers", TV2) as driver, driver.writer() as writer:
        driver.init_at_last()
        writer.write_at_last(driver.identity, 0, 0, ["committed"])
        driver.commit_offsets_at_last("tellers", {0: 100})
        driver.end_at_last(commit=True)
        writer.write_at_last(driver.identity, 0, 0, ["aborted"])
        driver.end_at_last(commit=False)
        driver.settled()
        writer.write_at_last(driver.identity, 0, 0, ["open"])


def _keep_a_transaction(bootstrap: str) -> None:
    """The records of KIP-939: a transaction that an instance has kept for its end."""
    settings = {"transactional.id": "kept", "transaction.two.phase.commit.enable": "true"}
    with OwnProducer({"bootstrap.servers": bootstrap, **settings}) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("transfers", "prepared")
        producer.prepare_transaction()
    with OwnProducer({"bootstrap.servers": bootstrap, **settings}) as producer:
        producer.init_transactions(keep_prepared_txn=True)


def _write_compressed(broker: Broker, codec: str) -> None:
    create_topic(broker, codec, 1)
    producer = Producer(
        {
            "bootstrap.servers": f"{broker.host}:{broker.port}",
            "compression.type": codec,
            "enable.idempotence": True,
            "linger.ms": 100,
        }
    )
    for number in range(50):
        producer.produce(codec, key=f"key {number}", value=f"value {number} {'.' * 100}")
    assert producer.flush(120) == 0


@pytest.mark.representatives(2)
@pytest.mark.parametrize("codec", _CODECS)
def test_batches_of_librdkafka_in_every_codec_are_read(data: Path, codec: str) -> None:
    text = _dump(data / f"{codec}-0" / f"{_SEGMENT}.log")
    assert f"compresscodec: {codec}" in text
    for number in range(50):
        assert f"key: key {number} payload: value {number} ." in text


def test_markers_are_read(data: Path) -> None:
    text = _dump(data / "transfers-0" / f"{_SEGMENT}.log")
    assert "endTxnMarker: COMMIT coordinatorEpoch: 0" in text
    assert "endTxnMarker: ABORT coordinatorEpoch: 0" in text
    assert text.rstrip().endswith("payload: prepared")


def test_the_logs_of_the_coordinators_are_read(data: Path) -> None:
    transactions = _dump_all(data, "__transaction_state", "transaction-log")
    assert '"transactionalId":"bank"' in transactions
    # Ongoing, PrepareCommit, PrepareAbort, CompleteCommit, CompleteAbort.
    for status in range(1, 6):
        assert f'"transactionStatus":{status}' in transactions
    assert '"transactionTimeoutMs":2147483647' in transactions
    assert '"nextProducerEpoch":1' in transactions
    offsets = _dump_all(data, "__consumer_offsets", "offsets")
    assert '"group":"tellers","topic":"transfers","partition":0' in offsets
    assert '"offset":100' in offsets


def test_the_metadata_log_is_read(data: Path) -> None:
    text = _dump(data / "__cluster_metadata-0" / f"{_SEGMENT}.log", "cluster-metadata")
    assert '"type":"TOPIC_RECORD","version":0,"data":{"name":"transfers"' in text


def _dump_all(data: Path, topic: str, decoder: str) -> str:
    segments = [each for each in data.glob(f"{topic}-*/*.log") if each.stat().st_size]
    return "".join(_dump(segment, decoder) for segment in segments)


def _dump(path: Path, decoder: str | None = None) -> str:
    text = dump_log(path, decoder)
    assert not [complaint for complaint in _COMPLAINTS if complaint in text], text
    return text
