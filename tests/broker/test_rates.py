"""Rates over windows and token buckets: what is used, against a limit."""

from __future__ import annotations

import pytest

from einmal.broker.resources.rates import TokenBucket, WindowedRate, Windows

WINDOWS = Windows(11, 1000)


def test_a_rate_within_its_limit_is_not_throttled() -> None:
    rate = WindowedRate(WINDOWS)
    for second in range(60):
        rate.record(90, second * 1000)
        assert rate.excess_ms(100, second * 1000) == 0


def test_a_burst_is_throttled_until_its_mean_is_the_limit() -> None:
    """A young rate is measured over the ten windows that might have been: 5,000 in 10 s are 500 a second."""
    rate = WindowedRate(WINDOWS)
    rate.record(5_000, 0)
    assert rate.excess_ms(500, 0) == 0
    assert rate.excess_ms(250, 0) == 10_000
    assert rate.excess_ms(100, 0) == 40_000


def test_what_is_older_than_all_windows_does_not_count() -> None:
    rate = WindowedRate(WINDOWS)
    rate.record(1_000_000, 0)
    assert rate.excess_ms(1, 10_999) > 0
    assert not rate.is_idle(10_999)
    assert rate.excess_ms(1, 11_000) == 0
    assert rate.is_idle(11_000)


def test_what_is_taken_back_does_not_count() -> None:
    rate = WindowedRate(WINDOWS)
    rate.record(5_000, 0)
    rate.record(-5_000, 0)
    assert rate.excess_ms(1, 0) == 0
    assert rate.is_idle(0)


@pytest.mark.parametrize("size", [1_000, 20_000, 300_000])
def test_a_sender_that_waits_for_so_long_has_the_rate_of_its_quota(size: int) -> None:
    """Whatever the size of its requests, over ten minutes, after the first burst."""
    limit, now_ms, sent = 100_000, 0, 0
    rate = WindowedRate(WINDOWS)
    while now_ms < 600_000:
        rate.record(size, now_ms)
        sent += size
        now_ms += 1 + rate.excess_ms(limit, now_ms)
    assert 0.95 * limit <= sent / 600 <= 1.1 * limit


def test_few_windows_are_measured_over_one_at_least() -> None:
    rate = WindowedRate(Windows(1, 1000))
    rate.record(10, 0)
    assert (rate.excess_ms(10, 0), rate.excess_ms(5, 0)) == (0, 1000)


def test_a_bucket_allows_a_burst_and_then_its_rate() -> None:
    bucket = TokenBucket(WINDOWS, 2, 0)
    bucket.take(22, 2, 0)
    assert bucket.overdrawn_ms(2, 0) == 0
    bucket.take(4, 2, 0)
    assert bucket.overdrawn_ms(2, 0) == 2_000
    assert bucket.overdrawn_ms(2, 1_500) == 500
    assert bucket.overdrawn_ms(2, 2_000) == 0
    bucket.take(22, 2, 1_000_000)
    assert bucket.overdrawn_ms(2, 1_000_000) == 0
    bucket.take(1, 2, 1_000_000)
    assert bucket.overdrawn_ms(2, 1_000_000) == 500
