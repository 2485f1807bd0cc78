"""Structured fuzzing of a live broker: ``python -m tests.fuzz --frames 20000 --seed 1``, or ``make fuzz``.

Attackers send well-formed absurd requests, mutated ones, malformed batches, decompression bombs and wide requests of
every API and version, on connections to the listeners of clients, brokers and controllers. An observer, a process of
its own, works as a good client all the time and measures how long it waits. librdkafka and the Java consumer follow the
topics under attack.

What must hold: the broker is alive, printed no traceback, stayed within its memory; no other client waited for long;
nothing was answered without authentication where that is needed; and what was accepted is readable, on the way and at
the end. A run is a function of its seed, but for the timing and the ids that the broker draws.
"""
