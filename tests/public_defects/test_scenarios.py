"""Each scenario of a public defect, on our broker and on Apache Kafka, ends as the page has it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest

from tests.interop.apache_kafka import ApacheKafka, KafkaUnavailable
from tests.interop.einmal_broker import EinmalBroker
from tests.public_defects.__main__ import target_of, version_settings
from tests.public_defects.scenario import APACHE, APACHE_TV1, EINMAL, EINMAL_TV1, KINDS, Scenario, Target
from tests.public_defects.table import SCENARIOS
from tests.suite.shared import shared

pytestmark = pytest.mark.interop

Targets = Callable[[str, Scenario], Target]
_TV1: Final = (EINMAL_TV1, APACHE_TV1)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Targets]:
    """The cluster of a kind for a scenario: the one that the run shares, or one that may be killed."""
    own: dict[str, ApacheKafka | EinmalBroker] = {}

    def get(kind: str, scenario: Scenario) -> Target:
        if not scenario.needs_restart:
            return target_of(shared(kind), may_restart=False)
        if kind not in own:
            version = 1 if kind in _TV1 else 2
            directory = tmp_path_factory.mktemp(kind)
            try:
                if kind in (APACHE, APACHE_TV1):
                    own[kind] = ApacheKafka(directory, transaction_version=version)
                else:
                    own[kind] = EinmalBroker(directory, version_settings(version))
            except KafkaUnavailable as error:
                pytest.skip(str(error))
            own[kind].start()
        return target_of(own[kind])

    yield get
    for node in own.values():
        node.stop()


def _cases() -> Iterator[Any]:
    """Ours in every run, and Apache Kafka, which no change of ours can change, in the long one. Of TV1 there are two
    brokers that differ in little. What is slow uses up the epochs of a producer id."""
    for scenario in SCENARIOS:
        for kind in KINDS:
            if scenario.changes_version and kind in _TV1:
                continue
            is_long = scenario.is_slow or kind in (APACHE, APACHE_TV1) or (kind != EINMAL and scenario.needs_restart)
            marks = [pytest.mark.slow] * scenario.is_slow + [pytest.mark.long] * is_long
            yield pytest.param(kind, scenario, id=f"{scenario.name}-{kind}", marks=marks)


@pytest.mark.parametrize(("kind", "scenario"), [*_cases()])
def test_its_outcome_is_the_one_on_the_page(target: Targets, kind: str, scenario: Scenario) -> None:
    assert scenario.run(target(kind, scenario)) in scenario.outcomes_on(kind)
