"""Kafka topics as a sink: one Kafka transaction per batch, with the commit record in a compacted topic."""
