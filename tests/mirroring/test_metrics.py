"""What Prometheus reads of a mirror."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from prometheus_client import generate_latest

from einmal.commit_protocol.commit_record import CommitRecord
from einmal.mirror_protocol.flow import MirrorNotice, NoticeKind
from einmal.mirroring.metrics import MirrorMetrics

_PAGE: Final = (Path(__file__).parents[2] / "docs" / "mirror.md").read_text()


def test_what_a_mirror_measures_is_what_its_page_lists() -> None:
    metrics = MirrorMetrics("A->B")
    metrics.commit(CommitRecord(transactional_id="t", query_id="q", checkpoint="", batch_id=0, end=(), records=7))
    metrics.notice(MirrorNotice(NoticeKind.STUCK, "A->B", "a cluster does not answer"))
    text = generate_latest(metrics.registry).decode()
    assert 'einmal_mirror_records_total{flow="A->B"} 7.0' in text
    assert 'einmal_mirror_notices_total{flow="A->B",kind="stuck"} 1.0' in text
    names = {line.partition("{")[0] for line in text.splitlines() if line.startswith("einmal_")}
    assert {each for each in names if not each.endswith("_created")} == set(re.findall(r"`(einmal_mirror_\w+)`", _PAGE))
