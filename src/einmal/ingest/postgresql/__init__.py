"""PostgreSQL's logical replication as a source: changes of tables, events of an outbox. ``source`` has the theory."""

from einmal.extras import explained

with explained():
    from einmal.ingest.postgresql.options import capture_options
    from einmal.ingest.postgresql.source import PostgresSource

__all__ = ["PostgresSource", "capture_options"]
