"""Output of the commands: formats, tables, records, messages on stderr, progress."""
