"""Files that arrive or grow as a source: one record per line."""

from einmal.ingest.files.source import FilesSource

__all__ = ["FilesSource"]
