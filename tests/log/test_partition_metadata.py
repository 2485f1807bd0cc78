from uuid import UUID

import pytest

from einmal.log.partition_metadata import decode, encode

TOPIC_ID = UUID("0f4a3c9e-8f4a-4b0a-9f5e-1d2c3b4a5968")


def test_the_id_is_written_as_apache_kafka_prints_it() -> None:
    assert encode(TOPIC_ID) == b"version: 0\ntopic_id: D0o8no9KSwqfXh0sO0pZaA"


def test_the_id_is_read_back() -> None:
    assert decode(encode(TOPIC_ID) + b"\n") == TOPIC_ID


@pytest.mark.parametrize("data", [b"", b"version: 0", b"version: 1\ntopic_id: D0o8no9KSwqfXh0sO0pZaA", b"nonsense"])
def test_a_broken_file_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError):
        decode(data)
