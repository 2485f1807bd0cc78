"""The test battery of sinks: what ``einmal.sinks.commit_point`` demands, as tests that can fail.

Derive a class from ``SinkTests`` in a test module, and implement its six hooks::

    class TestMySink(SinkTests):
        def sink(self, location: Path) -> RowSink:
            return MySink(Options({"path": location / "rows"}))

        def rows(self, location: Path) -> list[tuple[int, str]]:
            ...

The tests kill runs between two verbs and, in processes of their own, at any moment; lose the answer of a commit; let
two drivers run under one name in every order of their verbs; let tasks run twice and outlive their batch; lose and copy
staged rows; damage the record; and run a random campaign, whose seed a failure names. docs/sinks.md explains them.
"""

from einmal.testing.sinks.campaign import CampaignTests
from einmal.testing.sinks.commits import CommitTests
from einmal.testing.sinks.description import DescriptionTests
from einmal.testing.sinks.fencing import FencingTests
from einmal.testing.sinks.hooks import SCHEMA
from einmal.testing.sinks.processes import ProcessTests
from einmal.testing.sinks.records import RecordTests
from einmal.testing.sinks.staging import StagingTests

__all__ = ["SCHEMA", "SinkTests"]


class SinkTests(CommitTests, FencingTests, StagingTests, RecordTests, DescriptionTests, ProcessTests, CampaignTests):
    """All tests of a sink. The hooks are described in ``hooks.SinkHooks``."""
