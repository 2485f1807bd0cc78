"""Defects of the offsets that transactions commit."""

from __future__ import annotations

from einmal.types import ErrorCode
from tests.interop import raw
from tests.interop.topics import RETRIABLE, at_last
from tests.interop.transaction_driver import TransactionDriver
from tests.public_defects.scenario import Target


def _commit_plainly(driver: TransactionDriver, group: str, offset: int) -> None:
    partitions = [{"partition_index": 0, "committed_offset": offset, "committed_metadata": ""}]
    answer = driver.connection.call(
        raw.OFFSET_COMMIT,
        8,
        group_id=group,
        generation_id_or_member_epoch=-1,
        member_id="",
        group_instance_id=None,
        topics=[{"name": driver.topic, "partitions": partitions}],
    )
    assert answer.topics[0].partitions[0].error_code == ErrorCode.none, answer


def _committed(driver: TransactionDriver, group: str) -> int:
    """The offset, once no transaction has a pending one."""
    error, offset = at_last(
        lambda: driver.fetch_offsets(group, 0),
        lambda found: found[0] not in (*RETRIABLE, ErrorCode.unstable_offset_commit),
    )
    assert error == ErrorCode.none, error
    return offset


def pending_over_a_restart(target: Target) -> str | None:
    with target.driver() as driver:
        group = f"group-of-{driver.topic}"
        driver.init_at_last()
        driver.open_offsets(group)
        assert driver.commit_offsets_at_last(group, {0: 5}) == ErrorCode.none
        target.restart_under(driver)
        pending = at_last(lambda: driver.fetch_offsets(group, 0)[0], lambda error: error not in RETRIABLE)
        driver.end_at_last(commit=True)
        driver.settled()
        target.restart_under(driver)
        if pending != ErrorCode.unstable_offset_commit:
            return "a pending offset is forgotten at a restart"
        return None if _committed(driver, group) == 5 else "the committed offset is lost"


def plain_commit_after_a_pending_one(target: Target) -> str | None:
    with target.driver() as driver:
        group = f"group-of-{driver.topic}"
        driver.init_at_last()
        driver.open_offsets(group)
        assert driver.commit_offsets_at_last(group, {0: 5}) == ErrorCode.none
        _commit_plainly(driver, group, 7)
        driver.end_at_last(commit=True)
        driver.settled()
        found = _committed(driver, group)
        return None if found == 7 else f"{found}, the earlier one of the transaction"


def pending_commit_after_a_plain_one(target: Target) -> str | None:
    with target.driver() as driver:
        group = f"group-of-{driver.topic}"
        driver.init_at_last()
        _commit_plainly(driver, group, 7)
        driver.open_offsets(group)
        assert driver.commit_offsets_at_last(group, {0: 5}) == ErrorCode.none
        driver.end_at_last(commit=True)
        driver.settled()
        found = _committed(driver, group)
        return None if found == 5 else f"{found}, the earlier one outside of the transaction"


def large_metadata(target: Target) -> str | None:
    with target.driver() as driver:
        group = f"group-of-{driver.topic}"
        driver.init_at_last()
        driver.open_offsets(group)
        error = at_last(
            lambda: driver.commit_offsets(group, {0: 5}, metadata="x" * 5_000), lambda error: error not in RETRIABLE
        )
        if error != ErrorCode.offset_metadata_too_large:
            return error.name.upper()
        assert driver.commit_offsets_at_last(group, {0: 6}) == ErrorCode.none
        driver.end_at_last(commit=True)
        driver.settled()
        return None if _committed(driver, group) == 6 else "the transaction's other offset is lost"
