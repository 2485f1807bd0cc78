"""Bytes to messages and back. Knows no connection, no log and no state."""
