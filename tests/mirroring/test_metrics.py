"""What Prometheus reads of a mirror."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest
from prometheus_client import generate_latest

from einmal.client import Producer
from einmal.commit_protocol.commit_record import CommitRecord
from einmal.mirror_protocol.flow import MirrorNotice, NoticeKind
from einmal.mirroring.metrics import MirrorMetrics
from tests.cli.running import Cli
from tests.interop.einmal_broker import EinmalBroker
from tests.suite.otlp_receiver import receiving

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


@pytest.mark.system
def test_a_mirror_pushes_what_it_has_copied_where_the_variables_ask_for_it(
    brokers: tuple[EinmalBroker, EinmalBroker], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Producer({"bootstrap.servers": brokers[0].bootstrap}) as producer:
        for number in range(7):
            producer.send("orders", str(number))
    with receiving() as receiver:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.endpoint)
        command = ["mirror", "run", "--available-now", "--file", str(tmp_path / "mirror.toml")]
        done = Cli("")(*command)
    assert f"metrics: pushed to {receiver.endpoint} every 60 s" in done.errors
    # Its end does not wait for the interval.
    (pushed,) = receiver.pushes
    assert pushed.value("einmal_mirror_records_total", flow="A->B") == 7
    assert pushed.resource["service.name"] == "einmal-mirror"
