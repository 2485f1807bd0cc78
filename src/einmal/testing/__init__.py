"""For tests of programs that build on einmal, or use Kafka.

``pytest_plugin`` has fixtures: brokers (``own_brokers``), topics and a proxy (``proxy``). ``containers`` replaces
testcontainers' class, ``sinks`` checks a sink of your own, and ``registry_server`` is a schema registry in this
process.
"""

import contextlib

with contextlib.suppress(ImportError):
    import pytest

    pytest.register_assert_rewrite("einmal.testing.sinks")
