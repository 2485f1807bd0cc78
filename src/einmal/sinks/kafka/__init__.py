"""Topics as a sink: rows, commit record and source positions in one Kafka transaction."""
