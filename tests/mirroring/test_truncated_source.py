"""A source whose log loses its end, and grows again: what is gone is reported, and nothing that is there is skipped."""

from __future__ import annotations

import shutil
from collections.abc import Callable

import pytest

from einmal.client import Admin, NewTopic, Producer
from einmal.mirror_protocol.flow import Flow, MirrorNotice, NoticeKind
from einmal.mirror_protocol.replication_policy import NameFilter
from einmal.mirroring import faults, source
from einmal.mirroring.run import MirrorIncomplete, MirrorProcess, MirrorStopped
from tests.interop.einmal_broker import EinmalBroker
from tests.mirroring.test_incomplete import values

pytestmark = pytest.mark.system

Brokers = tuple[EinmalBroker, EinmalBroker]


def write(broker: EinmalBroker, topic: str, *contents: str) -> None:
    with Producer({"bootstrap.servers": broker.bootstrap}) as producer:
        for content in contents:
            producer.send(topic, content)
        producer.flush()


def mirror(brokers: Brokers, *, fail_on_data_loss: bool = True) -> list[MirrorNotice]:
    """Copy everything, and return what was reported."""
    notices: list[MirrorNotice] = []
    flow = Flow(source="A", target="B", topics=NameFilter(("orders", "other")), fail_on_data_loss=fail_on_data_loss)
    process = MirrorProcess(
        flow,
        {"bootstrap.servers": brokers[0].bootstrap},
        {"bootstrap.servers": brokers[1].bootstrap},
        notify=notices.append,
        ends_when_idle=True,
    )
    try:
        process.run()
    finally:
        process.close()
    return [notice for notice in notices if notice.kind is not NoticeKind.UNTRANSLATED]


def restore(broker: EinmalBroker, place: str, change: Callable[[], None]) -> None:
    """Undo what ``change`` does to a partition, as an operator who gives up what is missing in the backup."""
    directory, copy = broker.log_directory / place, broker.log_directory.parent / "copy"
    broker.stop()
    shutil.copytree(directory, copy)
    broker.start()
    change()
    broker.stop()
    shutil.rmtree(directory)
    shutil.move(copy, directory)
    (broker.log_directory / "high-watermarks").unlink()
    broker.start()


@pytest.fixture
def truncated(brokers: Brokers) -> Brokers:
    """The topics orders, of whose five copied records the last two are gone, and other."""
    broker = brokers[0]
    with Admin({"bootstrap.servers": broker.bootstrap}) as admin:
        admin.create_topics([NewTopic("orders", num_partitions=1), NewTopic("other", num_partitions=1)])
    write(broker, "orders", "0", "1", "2")

    def copy_more() -> None:
        write(broker, "orders", "lost 3", "lost 4")
        assert mirror(brokers) == []

    restore(broker, "orders-0", copy_more)
    return brokers


def test_a_source_that_was_truncated_and_has_grown_again_stops_the_mirror(truncated: Brokers) -> None:
    write(truncated[0], "orders", *"3456789")
    with pytest.raises(MirrorStopped, match=r"orders-0 was truncated to offset 3"):
        mirror(truncated)
    (notice,) = mirror(truncated, fail_on_data_loss=False)
    assert notice.kind is NoticeKind.DATA_LOSS
    copied = [b"0", b"1", b"2", b"lost 3", b"lost 4", *(b"%d" % each for each in range(3, 10))]
    assert values(truncated[1].bootstrap, "A.orders") == copied
    assert mirror(truncated, fail_on_data_loss=False) == []


def test_a_topic_that_ends_before_its_position_for_an_unknown_reason_holds_back_no_other(
    truncated: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As from brokers that do not report leader epochs.
    monkeypatch.setattr(source, "epoch_ends_each", lambda cluster, epochs: ({}, {}))
    monkeypatch.setattr(faults, "LASTS_S", 0.0)
    write(truncated[0], "other", "a")
    with pytest.raises(MirrorIncomplete, match=r"partition orders-0 ends at offset 3 .* before offset 5"):
        mirror(truncated)
    assert values(truncated[1].bootstrap, "A.other") == [b"a"]
