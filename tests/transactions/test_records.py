from __future__ import annotations

import contextlib
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from einmal.transactions.records import TransactionRecord, decode, encode
from einmal.transactions.states import TransactionState
from einmal.transactions.transaction import Transaction
from einmal.types import EPOCH_MAX, NO_PRODUCER_ID, ProducerEpoch, ProducerId, TopicPartition, TransactionVersion
from einmal.wire.errors import Malformed, WireError
from tests.suite.cases import each_case

int64 = st.integers(-(2**63), 2**63 - 1)
names = st.text(min_size=1, max_size=40).filter(lambda name: len(name.encode(errors="replace")) < 2**15)
partitions = st.lists(
    st.builds(TopicPartition, st.sampled_from(["a", "b", "a.b", "ü"]), st.integers(0, 2**31 - 1)), unique=True
)


@st.composite
def transactions(draw: st.DrawFn) -> Transaction:
    state = draw(st.sampled_from(TransactionState))
    is_kept = draw(st.booleans())
    return Transaction(
        transactional_id=draw(names.filter(lambda name: name.isprintable())),
        producer_id=ProducerId(draw(st.integers(0, 2**63 - 1))),
        producer_epoch=ProducerEpoch(draw(st.integers(0, 2**15 - 1))),
        previous_producer_id=ProducerId(draw(st.integers(-1, 2**63 - 1))),
        next_producer_id=ProducerId(draw(st.integers(0 if is_kept else -1, 2**63 - 1))),
        next_producer_epoch=ProducerEpoch(draw(st.integers(0, EPOCH_MAX)) if is_kept else -1),
        next_timeout_ms=draw(st.integers(-1, 2**31 - 1)),
        timeout_ms=draw(st.integers(0, 2**31 - 1)),
        state=state,
        partitions=() if state is TransactionState.EMPTY else tuple(sorted(draw(partitions))),
        last_update_ms=draw(int64),
        start_ms=draw(int64),
        client_version=draw(st.sampled_from(TransactionVersion)),
        last_producer_epoch=ProducerEpoch(draw(st.integers(-1, 2**15 - 1))),
    )


@given(transactions())
def test_a_record_survives_its_round_trip(transaction: Transaction) -> None:
    record = TransactionRecord(transaction.transactional_id, transaction)
    assert decode(*encode(record)) == record


def test_a_null_value_is_a_tombstone() -> None:
    record = TransactionRecord("gone", None)
    key, value = encode(record)
    assert value is None
    assert decode(key, value) == record


ONGOING = Transaction(
    transactional_id="tx",
    producer_id=ProducerId(7),
    producer_epoch=ProducerEpoch(3),
    previous_producer_id=ProducerId(7),
    timeout_ms=60_000,
    state=TransactionState.ONGOING,
    partitions=(TopicPartition("t", 0), TopicPartition("t", 2)),
    last_update_ms=2,
    start_ms=1,
    client_version=TransactionVersion.TV_2,
)


KEY = bytes.fromhex("000000027478")
HEAD = "000000000000000700030000ea6001"
TIMES = "00000000000000020000000000000001"
TAGS = "020008000000000000000702020002"


def test_the_bytes_are_those_of_apache_kafka() -> None:
    """Field by field after TransactionLogKey.json and TransactionLogValue.json."""
    partitions = "02027403000000000000000200"
    value = bytes.fromhex("0001" + HEAD + partitions + TIMES + TAGS)
    assert encode(TransactionRecord("tx", ONGOING)) == (KEY, value)


def test_a_kept_transaction_has_its_second_pair_in_the_tags_of_apache_kafka() -> None:
    """NextProducerId is tag 1, NextProducerEpoch tag 3 (KIP-939); the transaction's own pair stays where it was."""
    kept = replace(ONGOING, next_producer_id=ProducerId(7), next_producer_epoch=ProducerEpoch(4))
    tags = "04" + "00080000000000000007" + "01080000000000000007" + "02020002" + "03020004"
    value = bytes.fromhex("0001" + HEAD + "02027403000000000000000200" + TIMES + tags)
    assert encode(TransactionRecord("tx", kept)) == (KEY, value)
    assert decode(KEY, value) == TransactionRecord("tx", kept)


@pytest.mark.parametrize(
    "tags", ["0103020004", "020108ffffffffffffffff03020004", "0201080000000000000007" + "03027fff"]
)
def test_half_a_second_pair_is_refused_as_broken_input(tags: str) -> None:
    value = bytes.fromhex("0001" + HEAD + "01" + TIMES + tags)
    with pytest.raises(Malformed):
        decode(KEY, value)


def test_the_first_version_of_the_value_is_read_too() -> None:
    partitions = "00000001000174000000020000000000000002"
    value = bytes.fromhex("0000" + HEAD + partitions + TIMES)
    before_tv_1 = replace(ONGOING, previous_producer_id=NO_PRODUCER_ID, client_version=TransactionVersion.TV_0)
    assert decode(KEY, value) == TransactionRecord("tx", before_tv_1)


def test_a_tag_of_a_later_version_is_skipped() -> None:
    key, value = encode(TransactionRecord("tx", ONGOING))
    assert value is not None
    tags = len(value) - len(bytes.fromhex("020008000000000000000702020002"))
    later = value[:tags] + b"\x03" + value[tags + 1 :] + bytes.fromhex("04020005")
    assert decode(key, later) == TransactionRecord("tx", ONGOING)


def test_a_key_of_another_version_is_left_alone() -> None:
    assert decode(b"\x00\x01\x00\x02tx", b"") is None


@given(st.binary(max_size=80))
def test_garbage_is_refused_as_broken_input(value: bytes) -> None:
    key, _ = encode(TransactionRecord("tx", None))
    with contextlib.suppress(WireError):
        decode(key, value)


@each_case("cut", range(60))
def test_a_cut_record_is_refused(cut: int) -> None:
    key, value = encode(TransactionRecord("tx", ONGOING))
    assert value is not None
    if cut < len(value):
        with pytest.raises(WireError):
            decode(key, value[:cut])
