"""Claims about records that Avro's and Protobuf's Java implementations decode, too."""

from __future__ import annotations

import pytest

from tests.interop.apache_kafka import KafkaUnavailable
from tests.schemas.beside_java.campaign import run


@pytest.mark.interop
def test_records_of_random_schemas_are_decoded_as_in_java() -> None:
    try:
        verdict = run(pairs=200, seed=20264)
    except KafkaUnavailable as error:
        pytest.skip(str(error))
    assert not verdict.unlisted, verdict.in_words()
    assert verdict.values["avro"] > 600 and verdict.values["protobuf"] > 300
