"""Kafka clients of other libraries, with the interface, the values and the errors of ``einmal.client.aio``.

Each module adapts one library: ``confluent``, ``aio_kafka``, ``kafka_python`` and ``java``. ``processes`` opens them
for workloads.
An error of a commit leaves its outcome unknown, unless the library states that the transaction can only be aborted.
"""
