"""Pipelines on Spark's YARN: a real ResourceManager and NodeManagers on loopback, whose containers are killed."""
