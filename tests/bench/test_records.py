"""Claims about the records of a measurement: they vary as those of a real topic, and are the same in every round."""

from __future__ import annotations

import statistics
import time
import zlib

import pytest

from einmal.bench import load, records
from einmal.wire.record_batch import NewRecord


def parts(made: list[NewRecord]) -> list[tuple[bytes | None, bytes | None]]:
    return [(record.key, record.value) for record in made]


@pytest.mark.parametrize("mean", [100, 1_000])
def test_sizes_keys_and_timestamps_of_records_vary(mean: int) -> None:
    made = records.varied(mean)
    sizes = [len(record.value or b"") for record in made]
    assert statistics.mean(sizes) == pytest.approx(mean, rel=0.05)
    deciles = statistics.quantiles(sizes, n=10)
    assert deciles[0] < 0.6 * mean and deciles[-1] > 1.5 * mean
    assert len({record.key for record in made}) > len(made) / 2
    steps = [after.timestamp - before.timestamp for before, after in zip(made, made[1:], strict=False)]
    assert min(steps) < 0 < max(steps)
    assert max(record.timestamp for record in made) <= time.time() * 1_000


def test_values_compress_like_text() -> None:
    text = b"".join(record.value or b"" for record in records.varied(1_000)[:100])
    assert 2 < len(text) / len(zlib.compress(text)) < 4


def test_every_round_sends_the_same_records() -> None:
    assert parts(records.varied(100)) == parts(records.varied(100))
    assert parts(records.equal(100)) == parts(records.equal(100))


def test_equal_records_differ_in_nothing() -> None:
    assert len({*records.equal(100)}) == 1
    assert len(records.equal(100)[0].value or b"") == 100


def test_a_batch_has_about_the_wanted_size() -> None:
    batch, count = load.batch(records.varied(100), 16_000)
    assert 16_000 < len(batch) < 20_000
    assert 100 < count < 200
    assert load.batch(records.equal(100), 100)[1] == 1
