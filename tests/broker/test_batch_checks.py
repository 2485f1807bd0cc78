"""Checks in the background: whoever sends many, or expensive ones, waits for the own ones."""

import asyncio
import threading
from collections.abc import Callable

import pytest

from einmal.broker.replicas.batch_checks import BatchChecks
from einmal.log.admission import QUICK_RECORDS, Admission
from einmal.log.config import LogConfig
from einmal.log.disk import OsDisk
from einmal.types import ErrorCode, Header
from einmal.wire.record_batch import NewRecord, encode_batch

MANY = QUICK_RECORDS + 1


async def test_senders_take_turns_however_many_checks_one_of_them_has() -> None:
    checks, order = BatchChecks(OsDisk()), []
    begun, may_go_on = threading.Event(), threading.Event()

    def check(name: str) -> Callable[[int, int | None], bool]:
        def run(_max_bytes: int, _max_elements: int | None) -> bool:
            begun.set()
            assert may_go_on.wait(30)
            order.append(name)
            return True

        return run

    many = [asyncio.create_task(checks.run(check(f"many {number}"), "many")) for number in range(5)]
    await asyncio.to_thread(begun.wait)
    one = asyncio.create_task(checks.run(check("one"), "one"))
    abandoned = asyncio.create_task(checks.run(check("abandoned"), "abandoned"))
    await asyncio.sleep(0)
    abandoned.cancel()
    may_go_on.set()
    await asyncio.gather(*many, one)
    assert order == ["many 0", "many 1", "one", "many 2", "many 3", "many 4"]


async def test_what_is_large_in_bytes_or_elements_does_not_hold_up_what_is_not() -> None:
    checks = BatchChecks(OsDisk())
    begun, may_go_on = threading.Event(), threading.Event()

    def large(_max_bytes: int, max_elements: int | None) -> bool:
        if max_elements is not None:
            return False
        begun.set()
        return may_go_on.wait(30)

    waiting = [asyncio.create_task(checks.run(large, number)) for number in range(3)]
    await asyncio.to_thread(begun.wait)
    await checks.run(lambda _max_bytes, _max_elements: True, "another")
    assert not any(each.done() for each in waiting)
    may_go_on.set()
    await asyncio.gather(*waiting)


@pytest.mark.parametrize(
    "records", [[NewRecord(None, b"v", 0, (Header("", b""),) * MANY)], [NewRecord(None, b"v", 0)] * MANY]
)
def test_an_admission_is_bounded_in_headers_and_records_too(records: list[NewRecord]) -> None:
    admission = Admission(bytearray(encode_batch(records)), LogConfig(), 0)
    assert not admission.is_decided
    assert not admission.decide(max_elements=MANY - 1) and not admission.is_decided
    assert admission.decide(max_elements=MANY) and admission.error is ErrorCode.none
