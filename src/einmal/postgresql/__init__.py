"""Settings, sessions, names and errors of a PostgreSQL server, for sinks and for sources."""
