"""Kafka topics as a target: one Kafka transaction per batch, with the commit record in a compacted topic."""
