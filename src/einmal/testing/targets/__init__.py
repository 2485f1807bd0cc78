"""The test battery of sinks: what ``einmal.sinks.commit_point`` demands, as tests that can fail.

Derive a class from ``TargetTests`` in a test module, and implement its six hooks::

    class TestMyTarget(TargetTests):
        def sink(self, location: Path) -> RowSink:
            return MySink(Options({"path": location / "rows"}))

        def rows(self, location: Path) -> list[tuple[int, str]]:
            ...

The tests kill runs between two verbs and, in processes of their own, at any moment; lose the answer of a commit; let
two drivers run under one name in every order of their verbs; let tasks run twice and outlive their batch; lose and copy
staged rows; damage the record; and run a random campaign, whose seed a failure names. docs/targets.md explains them.
"""

from einmal.testing.targets.campaign import CampaignTests
from einmal.testing.targets.commits import CommitTests
from einmal.testing.targets.fencing import FencingTests
from einmal.testing.targets.hooks import SCHEMA
from einmal.testing.targets.processes import ProcessTests
from einmal.testing.targets.records import RecordTests
from einmal.testing.targets.sinks import SinkTests
from einmal.testing.targets.staging import StagingTests

__all__ = ["SCHEMA", "TargetTests"]


class TargetTests(CommitTests, FencingTests, StagingTests, RecordTests, SinkTests, ProcessTests, CampaignTests):
    """All tests of a target. The hooks are described in ``hooks.TargetHooks``."""
