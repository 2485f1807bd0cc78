"""How the epoch of a transactional id moves over its end, to a new producer id.

An epoch is reached by as many requests: these tests are long. Those of KIP-890 and KIP-939 begin at the last epochs, on
the coordinator's machine alone.
"""

from __future__ import annotations

import pytest

from einmal.types import EPOCH_MAX, ErrorCode
from tests.interop.conftest import SETTINGS, NodeFactory, Setting, setting_named
from tests.interop.raw import Identity
from tests.interop.transaction_driver import NOBODY, TV1, TransactionDriver

pytestmark = [pytest.mark.interop, pytest.mark.long]


@pytest.fixture(params=SETTINGS)
def setting(request: pytest.FixtureRequest, node_of: NodeFactory) -> Setting:
    """Each broker under each transaction version."""
    return setting_named(request.param, node_of)


def test_after_the_last_epoch_comes_a_new_producer_id(driver: TransactionDriver) -> None:
    driver.init_at_last()
    driver.move_epoch_to(EPOCH_MAX - 2)
    expected = []
    with driver.writer() as writer:
        for turn in range(5):
            old = driver.identity
            driver.open(0)
            assert writer.write_at_last(old, 0, 0, [f"{turn}"]).error == ErrorCode.none
            expected.append(f"{turn}")
            new = driver.end_at_last(commit=True)
            driver.settled()
            if old.producer_epoch < EPOCH_MAX:
                assert new == old._replace(producer_epoch=old.producer_epoch + 1)
            else:
                assert new.producer_id != old.producer_id
                assert new.producer_epoch == 0
                assert _ask_again(driver, old) == (ErrorCode.none, new)
            assert writer.write(old, 0, 1, ["late"]).error in (
                ErrorCode.invalid_producer_epoch,
                # TV1, and the producer id is no longer the one of this transactional id.
                ErrorCode.invalid_producer_id_mapping,
            )
    assert driver.committed(0) == expected


def _ask_again(driver: TransactionDriver, old: Identity) -> tuple[ErrorCode, Identity]:
    """Repeat what brought the new identity."""
    return driver.init(old) if driver.dialect is TV1 else driver.end(commit=True, identity=old)


def test_a_repeated_step_to_the_last_epoch_never_brings_a_second_identity(driver: TransactionDriver) -> None:
    driver.init_at_last()
    old = driver.move_epoch_to(EPOCH_MAX - 1)
    new = driver.init_at_last(old)
    assert new.producer_epoch == EPOCH_MAX
    # Apache Kafka 4.4 fails here; the way out is InitProducerId without id.
    assert driver.init(old) in ((ErrorCode.none, new), (ErrorCode.unknown_server_error, NOBODY))
    assert driver.state()[1] == new
    assert driver.init_at_last().producer_epoch == 0


@pytest.mark.parametrize("epoch", [EPOCH_MAX - 1, EPOCH_MAX])
def test_a_driver_takes_over_an_open_transaction_at_the_end_of_the_epochs(
    driver: TransactionDriver, epoch: int
) -> None:
    driver.init_at_last()
    old = driver.move_epoch_to(epoch)
    driver.open(0)
    with driver.writer() as writer:
        assert writer.write_at_last(old, 0, 0, ["x"]).error == ErrorCode.none
        new = driver.init_at_last()
        assert new.producer_id != old.producer_id
        assert writer.write(old, 0, 1, ["late"]).error == ErrorCode.invalid_producer_epoch
        assert driver.end(commit=True, identity=old).error in (
            ErrorCode.producer_fenced,
            ErrorCode.invalid_producer_id_mapping,
        )
        driver.open(0)
        assert writer.write_at_last(new, 0, 0, ["next"]).error == ErrorCode.none
    driver.end_at_last(commit=True)
    assert driver.committed(0) == ["next"]
