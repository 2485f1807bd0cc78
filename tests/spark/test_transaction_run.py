"""What a user reads of a run's end, by the sink that it wrote to."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import pytest

from einmal.commit_protocol.batch_plan import BATCH_WRITES
from einmal.commit_protocol.run_state import Query
from einmal.options.values import Options
from einmal.pipeline.errors import PipelineFenced, PipelineRefused
from einmal.sinks.sink import Opening
from einmal.sinks.sqlite import SQLiteSink
from einmal.spark.protocol.run import SinkBatch
from einmal.spark.protocol.transaction_run import NoAdditions, TransactionRun
from einmal.spark.sinks.kafka.commit_point import KafkaFrameCommitPoint

QUERY = Query(transactional_id="rows", query_id=BATCH_WRITES, checkpoint="", is_fresh=False, stateful=False, version=1)


def test_an_idle_run_is_refused_where_its_sink_lacks_what_it_has_committed(tmp_path: Path) -> None:
    path = tmp_path / "rows.sqlite"
    sink = SQLiteSink(Options({"path": str(path), "table": "rows"}))
    run = TransactionRun(sink.commit_point(Opening(name="rows")), QUERY, NoAdditions(), lambda _: None)
    run.start()
    run.check()
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE einmal_commits SET record = '{' WHERE pipeline = 'rows'")
    with pytest.raises(PipelineRefused, match="was none, and now it is unreadable"):
        run.check()
    run.close()


def test_a_run_that_a_database_has_fenced_does_not_hear_of_the_brokers_timeouts(tmp_path: Path) -> None:
    sink = SQLiteSink(Options({"path": str(tmp_path / "rows.sqlite"), "table": "rows"}))
    older = TransactionRun(sink.commit_point(Opening(name="rows")), QUERY, NoAdditions(), lambda _: None)
    older.start()
    with closing(sink.commit_point(Opening(name="rows"))) as newer:
        newer.acquire(None)
    with pytest.raises(PipelineFenced) as caught:
        # It is fenced before it looks at the rows.
        older.write(SinkBatch(1, cast(Any, None)))
    older.close()
    assert "use one per pipeline" in caught.value.hint
    assert "transaction.timeout.ms" not in caught.value.hint
    assert "transaction.timeout.ms" in KafkaFrameCommitPoint.fenced_hint
