"""einmal: a Kafka-compatible log with exactly-once transactions, and an exactly-once pipeline on Spark."""

__version__ = "0.1.0"
