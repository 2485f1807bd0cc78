"""Histories in files: JSON Lines, which keep everything, and EDN of Jepsen's Kafka workload."""
