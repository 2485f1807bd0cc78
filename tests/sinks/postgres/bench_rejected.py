"""Seconds that a batch takes of which PostgreSQL rejects some rows, without Spark: from staged rows to the last one.

    python -m tests.sinks.postgres.bench_rejected

The rejected rows are spread evenly. The transaction is rolled back after each measurement.
"""

from __future__ import annotations

import argparse
import time

import psutil
from psycopg import sql

from einmal.options.values import Options
from einmal.schemas.settings import ErrorSettings
from einmal.sinks.postgres.options import postgres_options
from einmal.sinks.postgres.rejecting import RECORD_COLUMNS, apply_and_reject
from einmal.sinks.postgres.session import Session
from einmal.sinks.postgres.staging import Staged, StagingColumn
from einmal.sinks.postgres.table import find_table
from einmal.sinks.rejections import Rejections
from tests.sinks.postgres.server import PASSWORD, PostgresServer, running

_TABLE = """
    CREATE TABLE t (id bigint PRIMARY KEY, n bigint CHECK (n >= 0), note text);
    CREATE TABLE history (id bigint, n bigint CHECK (n >= 0), note text, valid_from timestamp, valid_to timestamp,
        is_current boolean NOT NULL);
    CREATE UNIQUE INDEX ON history (id) WHERE is_current;
    CREATE INDEX ON history (id, valid_to)
"""
_COLUMNS = (
    StagingColumn("c0", sql.SQL("bigint"), "id", "id"),
    StagingColumn("c1", sql.SQL("bigint"), "n", "n"),
    StagingColumn("c2", sql.SQL("text"), "note", "note"),
)
_SINCE = StagingColumn("c3", sql.SQL("timestamp"), "valid_from", "valid_from")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--rejected", type=int, nargs="+", default=[0, 10, 100, 1_000, 10_000])
    arguments = parser.parse_args()
    with running() as server:
        server.rows(_TABLE)
        for mode in ("append", "upsert", "scd2"):
            for rejected in arguments.rejected:
                seconds, of_cpu = measured(server, mode, arguments.rows, rejected)
                print(
                    f"{mode:8} {rejected:7,} of {arguments.rows:,} rejected: {seconds:7.2f} s, {of_cpu:.2f} s of CPU",
                    flush=True,
                )


def measured(server: PostgresServer, mode: str, rows: int, rejected: int) -> tuple[float, float]:
    """Seconds for one batch, and those of the CPU, for client and server, which depend less on other programs."""
    server.rows("DROP TABLE IF EXISTS staged; CREATE UNLOGGED TABLE staged (c0 bigint, c1 bigint, c2 text,"
                " c3 timestamp, record_topic text, record_partition integer, record_offset bigint, refusal text,"
                " attempt bigint DEFAULT 1)")  # fmt: skip
    every = rows // rejected if rejected else rows + 1
    server.rows(
        f"INSERT INTO staged SELECT n, CASE WHEN n % {every} = {every} - 1 THEN -1 ELSE n END,"
        f" 'note ' || n, '2026-01-01', 'in', 0, n FROM generate_series(0, {rows - 1}) AS n"
    )
    table, columns = ("history", (*_COLUMNS, _SINCE)) if mode == "scd2" else ("t", _COLUMNS)
    keyed = {} if mode == "append" else {"mode": mode, "key": "id"}
    options = postgres_options(Options({"url": server.url, "password": PASSWORD, "table": f"public.{table}", **keyed}))
    session = Session(options.connecting, options.schema, "bench")
    try:
        session.begin("measuring")
        shape = find_table(session, options.table)
        assert shape is not None
        rejections = Rejections("bench", ErrorSettings(), 0, rows)
        staged = Staged("public", "staged", (*columns, *RECORD_COLUMNS), tolerates=True, counts={1: rows})
        ((pid,),) = session.execute("measuring", sql.SQL("SELECT pg_backend_pid()")).fetchall()
        began, of_cpu = time.perf_counter(), _of_cpu(pid)
        apply_and_reject(session, options, shape, staged, rejections)
        taken = time.perf_counter() - began, _of_cpu(pid) - of_cpu
        ((kept,),) = session.execute(
            "measuring", sql.SQL("SELECT count(*) FROM {}").format(sql.Identifier(table))
        ).fetchall()
        assert (kept, len(rejections.rejected)) == (rows - rejected, rejected)
        return taken
    finally:
        session.rollback()
        session.close()


def _of_cpu(pid: int) -> float:
    server = psutil.Process(pid).cpu_times()
    return float(time.process_time() + server.user + server.system)


if __name__ == "__main__":
    main()
