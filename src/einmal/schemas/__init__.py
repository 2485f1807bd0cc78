"""Schemas of records: JSON, Avro, Protobuf and Debezium bytes to typed values, with or without a schema registry.

Decoders are pure: bytes in; a value, or the reason why they have none, out. Only ``registry`` does I/O. Knows neither
Spark nor Kafka's client. The libraries come with ``einmal[schemas]``.
"""
