"""Structured fuzzing of a live broker: ``python -m tests.fuzz --frames 20000 --seed 1``, or ``make fuzz``.

Attackers send well-formed absurd requests, mutated ones, malformed batches, decompression bombs and wide requests of
every API and version, on several connections. An observer, a process of its own, works as a good client all the time
and measures how long it waits. At the end: the broker is alive, printed no traceback, stayed within its memory, and
what it accepted is readable by librdkafka. A run is a function of its seed, but for the timing.
"""
