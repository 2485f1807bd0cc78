"""The read model of any Kafka cluster, read through its public protocol: for commands, metrics, tests and programs."""
