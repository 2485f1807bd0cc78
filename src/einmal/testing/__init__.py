"""For tests of programs that build on einmal: ``sinks`` checks a sink of your own and needs pytest, and
``registry_server`` is a schema registry in this process."""

import contextlib

with contextlib.suppress(ImportError):
    import pytest

    pytest.register_assert_rewrite("einmal.testing.sinks")
