"""The server killed with -9 at every step, its standby promoted, a task's session ended."""

from __future__ import annotations

import psycopg
import pytest
from pyspark.sql import SparkSession

from einmal.pipeline.errors import PipelineRefused
from einmal.sinks.commit_point import OutcomeUnknown, SinkError, SinkFailed, SinkFenced
from einmal.spark.operate.ownership import Ownership
from tests.sinks.local_tasks import local_session
from tests.sinks.postgres.rig import NAME, Driver, Rig, record, replace, standby_of

pytestmark = pytest.mark.slow


@pytest.fixture
def spark(monkeypatch: pytest.MonkeyPatch) -> SparkSession:
    return local_session(monkeypatch)


def _steps(driver: Driver, rig: Rig) -> None:
    """Batch 1, again and again until it is in, as the committer would have it written."""
    for _ in range(4):
        try:
            driver.stage(1, rig.frame(range(10, 20)))
            driver.record(1)
            driver.commit()
            return
        except SinkFailed:
            driver.abort()
        except OutcomeUnknown:
            if driver.restart() == record(1, 10):
                return
    raise AssertionError("the batch was never written")


@pytest.mark.representatives(2)
@pytest.mark.parametrize("step", ["acquired", "staged", "recorded", "committed"])
def test_a_server_killed_at_this_step_comes_back_and_the_batch_is_in_once(own: Rig, step: str) -> None:
    driver = own.driver()
    driver.start()
    driver.batch(0, own.frame(range(10)))
    if step in ("staged", "recorded", "committed"):
        driver.stage(1, own.frame(range(10, 20)))
    if step in ("recorded", "committed"):
        driver.record(1)
    if step == "committed":
        driver.commit()
    own.server.kill()
    own.server.start()
    if step == "committed":
        assert driver.restart() == record(1, 10)
    elif step == "staged":
        with pytest.raises(SinkFailed, match="0 rows are staged, the tasks reported 10"):
            driver.record(1)
        driver.abort()
        _steps(driver, own)
    elif step == "recorded":
        with pytest.raises(SinkError):
            driver.commit()
        assert driver.restart() == record(0, 10)
        _steps(driver, own)
    else:
        _steps(driver, own)
    assert own.numbers() == list(range(20))
    driver.batch(2, own.frame(range(20, 30)))
    assert own.numbers() == list(range(30))
    assert own.staging() == []


@pytest.mark.long
def test_a_promoted_standby_that_lags_is_refused_by_a_run_that_knows_more(own: Rig) -> None:
    driver = own.driver()
    driver.start()
    driver.batch(0, own.frame(range(10)))
    with standby_of(own) as standby:
        standby.catch_up()
        standby.pause()
        driver.batch(1, own.frame(range(10, 20)))
        replace(own.server, standby)
        standby.promote()
        with pytest.raises(
            PipelineRefused, match="was batch 1, but public.einmal_commits now has batch 0.*lost transactions"
        ):
            _refused(driver, own)
        assert [n for (n,) in standby.rows("SELECT n FROM numbers ORDER BY n", database=own.database)] == list(
            range(10)
        )


@pytest.mark.long
def test_an_epoch_that_a_failover_lost_and_another_instance_was_granted_is_not_taken_for_the_first(
    own: Rig,
) -> None:
    first, second = own.driver(), own.driver()
    first.start()
    first.batch(0, own.frame(range(10)))
    with standby_of(own) as standby:
        standby.catch_up()
        standby.pause()
        first.restart()
        replace(own.server, standby)
        standby.promote()
        assert second.start() == record(0, 10)
        assert first.identity is not None and second.identity is not None
        assert first.identity.producer_id == second.identity.producer_id, "the same number, twice"
        with pytest.raises(SinkError, match="another instance has acquired"):
            first.stage(1, own.frame(range(10, 20)))
        second.batch(1, own.frame(range(10, 20)))
        assert [n for (n,) in standby.rows("SELECT n FROM numbers ORDER BY n", database=own.database)] == list(
            range(20)
        )


def _refused(driver: Driver, rig: Rig) -> None:
    """Batch 2, with the retries that a failover costs."""
    for _ in range(4):
        try:
            driver.stage(2, rig.frame(range(20, 30)))
            driver.record(2)
            driver.commit()
        except SinkFailed:
            driver.abort()


@pytest.mark.long
def test_an_unlogged_record_table_and_a_server_without_fsync_are_refused(own: Rig) -> None:
    driver = own.driver()
    driver.start()
    own.rows("ALTER TABLE einmal_commits SET UNLOGGED")
    assert any("would not survive a crash" in what for what, _ in own.sink().problems("p", None))
    with pytest.raises(PipelineRefused):
        own.driver().start()
    own.server.reload({"fsync": "off"})
    try:
        assert any("fsync = off" in what for what, _ in own.sink().problems("p", None))
    finally:
        own.server.reload({"fsync": "on"})


def test_settings_of_the_role_change_neither_durability_nor_isolation_nor_time(own: Rig) -> None:
    own.rows("CREATE TABLE numbers (n bigint)")
    own.rows(
        "CREATE FUNCTION sleep() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN PERFORM pg_sleep(0.5); RETURN NULL; END $$"
    )
    own.rows("CREATE TRIGGER slow AFTER INSERT ON numbers FOR EACH STATEMENT EXECUTE FUNCTION sleep()")
    settings = {
        "synchronous_commit": "off",
        "default_transaction_isolation": "'serializable'",
        "statement_timeout": "300",
        "default_transaction_read_only": "on",
    }
    with own.server.connect(own.database) as connection:
        for name, value in settings.items():
            connection.execute(f"ALTER ROLE admin IN DATABASE {own.database} SET {name} = {value}")
    driver = own.driver()
    driver.start()
    driver.batch(0, own.frame(range(10)))
    own.server.kill()
    own.server.start()
    assert driver.restart() == record(0, 10)
    with own.server.connect() as elsewhere:
        # This look at the table is no claim about time.
        elsewhere.execute(f"ALTER ROLE admin IN DATABASE {own.database} RESET ALL")
    assert own.numbers() == list(range(10))


def test_another_pipelines_staging_table_is_never_removed(rig: Rig) -> None:
    mine, other = rig.driver(), rig.driver(name="other")
    mine.start()
    other.start()
    mine.stage(0, rig.frame(range(5)))
    other.stage(0, rig.frame(range(5)))
    (left,) = [name for name in rig.staging() if name not in _of(other, rig)]
    rig.rows("CREATE TABLE einmal_staging_000000000000_1_0_0 ()")
    successor = rig.driver()
    successor.start()
    assert left not in rig.staging()
    assert len(rig.staging()) == 2
    other.record(0)
    other.commit()
    assert rig.numbers() == list(range(5))


def test_a_pipeline_of_the_same_name_in_another_schema_ends_no_sessions(rig: Rig) -> None:
    rig.rows("CREATE SCHEMA other")
    mine, other = rig.driver(lock_timeout="500ms"), rig.driver(schema="other", table="others")
    other.start()
    other.stage(0, rig.frame(range(5)))
    other.record(0)
    # Of the same epoch as that of the others, which holds its record all the time.
    mine.start()
    mine.stage(0, rig.frame(range(5)))
    (left,) = _of(mine, rig, "public")
    with rig.server.connect(rig.database) as holds:
        holds.execute("BEGIN")
        holds.execute(f"LOCK TABLE {left} IN ROW EXCLUSIVE MODE")
        # It looks for sessions of its predecessor, because the table is in use, and again because the record is.
        rig.driver().start()
        holds.execute("SELECT FROM einmal_commits FOR UPDATE")
        with pytest.raises(SinkFailed, match="locked by another session"):
            rig.driver(lock_timeout="500ms").start()
    other.commit()
    assert rig.rows("SELECT count(*) FROM others") == [(5,)]


def test_epochs_do_not_begin_again_after_a_reset(rig: Rig) -> None:
    # With the same epoch the two drivers would have staging tables of one name.
    older, newer = rig.driver(), rig.driver()
    older.start()
    older.batch(0, rig.frame(range(5)))
    older.stage(1, rig.frame(range(5, 9)))
    (left,) = rig.staging()
    with Ownership(rig.sink()) as owned:
        owned.change(NAME, record(0, 5), None)
    assert rig.committed_batch() is None
    assert newer.start() is None
    newer.batch(0, rig.frame(range(10, 15)))
    newer.stage(1, rig.frame(range(15, 19)))
    (staged,) = rig.staging()
    assert staged != left
    with pytest.raises(SinkFenced):
        older.record(1)
    with pytest.raises(SinkError):
        older.commit()
    older.abort()
    assert rig.staging() == [staged]
    newer.record(1)
    newer.commit()
    assert rig.numbers() == [*range(5), *range(10, 19)]


def test_a_staging_table_that_a_zombie_task_still_writes_to_does_not_hold_up_the_successor(rig: Rig) -> None:
    first = rig.driver()
    first.start()
    first.stage(0, rig.frame(range(5)))
    (left,) = rig.staging()
    from einmal.sinks.postgres.names import application_name

    with rig.server.connect(rig.database, application_name=application_name("public", NAME, 1)) as zombie:
        zombie.execute("BEGIN")
        zombie.execute(f"LOCK TABLE {left} IN ROW EXCLUSIVE MODE")
        successor = rig.driver()
        assert successor.start() is None
        assert rig.staging() == []
        with pytest.raises(psycopg.OperationalError):
            zombie.execute("SELECT 1")
        successor.batch(0, rig.frame(range(5)))
    assert rig.numbers() == list(range(5))


def _of(driver: Driver, rig: Rig, schema: str = "public") -> list[str]:
    from einmal.sinks.postgres.names import staging_prefix

    found = rig.rows("SELECT tablename FROM pg_tables WHERE schemaname = %s", (schema,))
    return [name for (name,) in found if name.startswith(staging_prefix(driver.name))]
