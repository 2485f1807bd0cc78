"""Formats of sources: bytes to typed columns in tasks, bad rows to dead letters, and what is reported of both."""
