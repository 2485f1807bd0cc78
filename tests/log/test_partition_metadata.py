from uuid import UUID

import pytest

from einmal.log.partition_metadata import decode, encode

TOPIC_ID = UUID("0f4a3c9e-8f4a-4b0a-9f5e-1d2c3b4a5968")


def test_the_id_is_written_as_apache_kafka_prints_it() -> None:
    lines = encode(TOPIC_ID).splitlines()
    assert lines[:2] == [b"version: 0", b"topic_id: D0o8no9KSwqfXh0sO0pZaA"]
    assert decode(b"\n".join(lines[:2])) == TOPIC_ID


def test_a_flipped_bit_is_noticed() -> None:
    data = encode(TOPIC_ID)
    for place in range(len(data) * 8):
        flipped = bytearray(data)
        flipped[place // 8] ^= 1 << place % 8
        try:
            assert decode(bytes(flipped)) == TOPIC_ID
        except ValueError:
            continue


def test_the_id_is_read_back() -> None:
    assert decode(encode(TOPIC_ID) + b"\n") == TOPIC_ID


@pytest.mark.parametrize("data", [b"", b"version: 0", b"version: 1\ntopic_id: D0o8no9KSwqfXh0sO0pZaA", b"nonsense"])
def test_a_broken_file_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError):
        decode(data)
