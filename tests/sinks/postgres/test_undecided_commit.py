"""A COMMIT without an answer, and a successor that comes while its predecessor's COMMIT is under way."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from pyspark.sql import SparkSession

from einmal.sinks.commit_point import OutcomeUnknown, SinkError, SinkFenced
from einmal.sinks.postgres import commit_point
from einmal.sinks.postgres.commit_point import PostgresIdentity
from einmal.sinks.sink import Opening
from tests.sinks.local_tasks import local_session
from tests.sinks.postgres.proxy import Fault, Proxy
from tests.sinks.postgres.rig import NAME, Rig, record
from tests.sinks.postgres.server import until
from tests.suite.patience import patient

pytestmark = pytest.mark.slow

_HELD = 7
"""The advisory lock that COMMIT waits for."""


@pytest.fixture
def spark(monkeypatch: pytest.MonkeyPatch) -> SparkSession:
    return local_session(monkeypatch)


@pytest.fixture
def patient_successors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as end no session of their predecessor's within a test, however busy the machine is."""
    monkeypatch.setattr(commit_point, "_PREDECESSOR_MS", int(1_000 * patient(30)))


@pytest.fixture
def background() -> Iterator[Callable[..., Future[Any]]]:
    with ThreadPoolExecutor() as pool:
        yield pool.submit


def _slow_commits(rig: Rig) -> None:
    """From now on, COMMIT of rows waits for the advisory lock: a constraint trigger runs inside it."""
    rig.rows(
        "CREATE FUNCTION wait_for_test() RETURNS trigger LANGUAGE plpgsql AS"
        f" $$ BEGIN PERFORM pg_advisory_xact_lock({_HELD}); RETURN NULL; END $$"
    )
    rig.rows(
        "CREATE CONSTRAINT TRIGGER slow AFTER INSERT ON numbers DEFERRABLE INITIALLY DEFERRED"
        " FOR EACH ROW EXECUTE FUNCTION wait_for_test()"
    )


@contextmanager
def _held_commits(rig: Rig) -> Iterator[Callable[[], object]]:
    """Yields what lets them go."""
    with rig.server.connect(rig.database) as connection:
        connection.execute(f"SELECT pg_advisory_lock({_HELD})")
        yield lambda: connection.execute("SELECT pg_advisory_unlock_all()")


def _waits_for(rig: Rig, query: str, event: str) -> Callable[[], object]:
    return lambda: rig.rows(
        "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND query LIKE %s AND wait_event = %s",
        (query, event),
    )


@pytest.mark.usefixtures("patient_successors")
def test_acquire_waits_for_a_commit_under_way_and_then_reads_its_record(
    rig: Rig, background: Callable[..., Future[Any]]
) -> None:
    first, second = rig.driver(), rig.driver()
    first.start()
    first.batch(0, rig.frame(range(10)))
    _slow_commits(rig)
    first.stage(1, rig.frame(range(10, 20)))
    first.record(1)
    with _held_commits(rig) as release:
        committing = background(first.commit)
        until(_waits_for(rig, "COMMIT", "advisory"), "the predecessor's COMMIT is under way")
        starting = background(second.start)
        until(_waits_for(rig, "INSERT INTO%einmal_commits%", "transactionid"), "the successor waits")
        assert rig.committed_batch() == 0, "undecided as yet"
        release()
        assert starting.result(patient(30)) == record(1, 10)
    committing.result(patient(30))
    assert rig.numbers() == list(range(20))
    assert rig.staging() == []
    with pytest.raises(SinkFenced):
        first.stage(2, rig.frame(range(20, 30)))
    assert rig.staging() == [], "a fenced driver creates none"


def test_a_deferred_trigger_waits_for_locks_as_long_as_the_option_allows(rig: Rig) -> None:
    driver = rig.driver(lock_timeout="17s")
    driver.start()
    driver.batch(0, rig.frame(range(10)))
    rig.rows("CREATE TABLE seen (lock_timeout text)")
    rig.rows(
        "CREATE FUNCTION look() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN INSERT INTO seen VALUES (current_setting('lock_timeout')); RETURN NULL; END $$"
    )
    rig.rows(
        "CREATE CONSTRAINT TRIGGER looks AFTER INSERT ON numbers DEFERRABLE INITIALLY DEFERRED"
        " FOR EACH ROW EXECUTE FUNCTION look()"
    )
    driver.batch(1, rig.frame(range(10, 20)))
    assert {value for (value,) in rig.rows("SELECT lock_timeout FROM seen")} == {"17s"}


@pytest.mark.usefixtures("patient_successors")
def test_a_lost_answer_to_commit_is_undecided_and_the_next_run_reads_the_outcome(
    rig: Rig, background: Callable[..., Future[Any]]
) -> None:
    with Proxy(rig.server.port) as proxy:
        driver = rig.driver(proxy.port)
        driver.start()
        driver.batch(0, rig.frame(range(10)))
        _slow_commits(rig)
        driver.stage(1, rig.frame(range(10, 20)))
        driver.record(1)
        proxy.fault = Fault.LOSE_ANSWER
        with _held_commits(rig) as release:
            with pytest.raises(OutcomeUnknown, match="no answer to COMMIT"):
                driver.commit()
            # Its backend does not know that the client is gone, and is still committing.
            until(_waits_for(rig, "COMMIT", "advisory"), "the COMMIT is under way")
            starting = background(driver.restart)
            until(_waits_for(rig, "UPDATE%einmal_commits%", "transactionid"), "the next run waits for it")
            release()
            assert starting.result(patient(30)) == record(1, 10)
        driver.batch(2, rig.frame(range(20, 30)))
    assert rig.numbers() == list(range(30))
    assert rig.staging() == []


def test_a_commit_that_never_arrived_is_undecided_for_the_driver_and_the_next_run_finds_nothing(rig: Rig) -> None:
    with Proxy(rig.server.port) as proxy:
        driver = rig.driver(proxy.port)
        driver.start()
        driver.batch(0, rig.frame(range(10)))
        driver.stage(1, rig.frame(range(10, 20)))
        driver.record(1)
        proxy.fault = Fault.CUT_BEFORE
        with pytest.raises(OutcomeUnknown):
            driver.commit()
        assert driver.restart() == record(0, 10)
        assert rig.numbers() == list(range(10))
        driver.batch(1, rig.frame(range(10, 20)))
    assert rig.numbers() == list(range(20))
    assert rig.staging() == []


def test_a_lost_answer_to_acquire_does_not_fence_the_query_itself(rig: Rig) -> None:
    with Proxy(rig.server.port) as proxy:
        driver = rig.driver(proxy.port)
        driver.start()
        driver.batch(0, rig.frame(range(10)))
        held = driver.identity
        assert isinstance(held, PostgresIdentity)
        driver.commit_point.close()
        for fault in (Fault.LOSE_ANSWER, Fault.CUT_BEFORE):
            commit_point = driver.sink.commit_point(Opening(name=NAME))
            commit_point.look()
            # The table is looked for in a transaction of its own.
            commit_point._session.in_transaction("waiting", commit_point._prepared)
            proxy.fault = fault
            with pytest.raises(SinkError):
                commit_point._raise(held, held.holder, 30_000)
            assert proxy.fault is Fault.NONE, "COMMIT met it"
            commit_point.close()
        assert driver.restart() == record(0, 10)
        driver.batch(1, rig.frame(range(10, 20)))
    assert rig.numbers() == list(range(20))


def test_a_write_that_is_given_up_forgets_its_name_only_if_it_has_committed_nothing(
    rig: Rig, background: Callable[..., Future[Any]]
) -> None:
    with Proxy(rig.server.port) as proxy:
        for name, fault, left in (("lost", Fault.LOSE_ANSWER, [("lost", 0)]), ("cut", Fault.CUT_BEFORE, [])):
            driver = rig.driver(proxy.port, name)
            driver.commit_point = driver.sink.commit_point(Opening(name=name, is_new=True))
            driver.start()
            driver.record(0)
            proxy.fault = fault
            with pytest.raises(OutcomeUnknown):
                driver.commit()
            driver.commit_point.abandon()
            driver.commit_point.close()
            assert rig.rows("SELECT pipeline, batch_id FROM einmal_commits WHERE pipeline = %s", (name,)) == left


def test_a_suspended_driver_that_holds_the_record_is_ended_and_can_commit_nothing(rig: Rig) -> None:
    first, second = rig.driver(), rig.driver()
    first.start()
    first.batch(0, rig.frame(range(10)))
    first.stage(1, rig.frame(range(10, 20)))
    first.record(1)
    began = time.monotonic()
    assert second.start() == record(0, 10)
    assert time.monotonic() - began < patient(20)
    second.batch(1, rig.frame(range(10, 20)))
    with pytest.raises(SinkError):
        first.commit()
    first.abort()
    with pytest.raises(SinkFenced):
        first.stage(1, rig.frame(range(10, 20)))
    assert rig.numbers() == list(range(20))
    assert rig.staging() == []
