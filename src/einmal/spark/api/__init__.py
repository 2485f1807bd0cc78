"""The verbs that users call: `write_stream`, `write` and `pipeline`."""
