from dataclasses import replace

import pytest

from einmal.metadata.features import SAFE_DOWNGRADE, UPGRADE, FeatureUpdate
from einmal.metadata.records import FeatureLevelRecord, SupportedFeature
from einmal.types import ErrorCode
from tests.metadata.cluster import DEFAULTS, Cluster


def update(cluster: Cluster, *updates: FeatureUpdate, validate_only: bool = False) -> ErrorCode:
    return cluster.done(cluster.controller.update_features(updates, validate_only=validate_only)).error


def test_a_new_cluster_begins_with_the_levels_of_its_first_controller_and_keeps_them() -> None:
    cluster = Cluster(1)
    assert cluster.image.features == {
        "metadata.version": 27,
        "eligible.leader.replicas.version": 1,
        "transaction.version": 2,
    }
    assert update(cluster, FeatureUpdate("transaction.version", 1, SAFE_DOWNGRADE)) is ErrorCode.none
    end = cluster.end
    cluster.take_over()
    assert (cluster.image.features["transaction.version"], cluster.end) == (1, end)


def test_a_level_that_the_controllers_file_demands_holds_from_its_takeover_on() -> None:
    cluster = Cluster(1)
    cluster.controller.defaults = replace(DEFAULTS, fixed_features={"transaction.version": 0})
    cluster.take_over()
    assert cluster.log[-1] == FeatureLevelRecord("transaction.version", 0)


@pytest.mark.parametrize(
    ("name", "level", "kind", "error"),
    [
        ("transaction.version", 2, UPGRADE, ErrorCode.none),
        ("transaction.version", 3, UPGRADE, ErrorCode.invalid_update_version),
        ("transaction.version", -1, SAFE_DOWNGRADE, ErrorCode.invalid_update_version),
        ("transaction.version", 1, UPGRADE, ErrorCode.invalid_update_version),
        ("transaction.version", 1, SAFE_DOWNGRADE, ErrorCode.none),
        ("transaction.version", 1, 9, ErrorCode.invalid_update_version),
        ("eligible.leader.replicas.version", 0, SAFE_DOWNGRADE, ErrorCode.invalid_update_version),
        ("metadata.version", 25, SAFE_DOWNGRADE, ErrorCode.none),
        ("metadata.version", 28, UPGRADE, ErrorCode.invalid_update_version),
        ("no.such", 1, UPGRADE, ErrorCode.invalid_update_version),
    ],
)
def test_a_level_must_be_supported_and_the_way_down_asked_for(
    name: str, level: int, kind: int, error: ErrorCode
) -> None:
    cluster = Cluster(1)
    assert update(cluster, FeatureUpdate(name, level, kind)) is error
    assert (cluster.image.features.get(name) == level) == (error is ErrorCode.none)


def test_up_is_not_the_way_down() -> None:
    cluster = Cluster(1)
    update(cluster, FeatureUpdate("transaction.version", 0, SAFE_DOWNGRADE))
    assert update(cluster, FeatureUpdate("transaction.version", 1, SAFE_DOWNGRADE)) is ErrorCode.invalid_update_version
    assert update(cluster, FeatureUpdate("transaction.version", 1)) is ErrorCode.none


def test_a_level_that_one_broker_does_not_support_is_refused() -> None:
    cluster = Cluster(1)
    update(cluster, FeatureUpdate("transaction.version", 1, SAFE_DOWNGRADE))
    old = tuple(
        replace(feature, max_supported_version=1) if feature.name == "transaction.version" else feature
        for feature in cluster.image.brokers[next(iter(cluster.image.brokers))].features
    )
    assert SupportedFeature("transaction.version", 0, 1) in old
    cluster.join(2, features=old)
    result = cluster.controller.update_features([FeatureUpdate("transaction.version", 2)]).response
    assert result.message == (
        "Invalid update version 2 for feature transaction.version. Broker 2 supports 0 to 1 only."
    )


def test_updates_are_all_made_or_none() -> None:
    cluster = Cluster(1)
    down = FeatureUpdate("transaction.version", 1, SAFE_DOWNGRADE)
    assert update(cluster, down, FeatureUpdate("no.such", 1)) is ErrorCode.invalid_update_version
    assert update(cluster, down, down) is ErrorCode.invalid_request
    assert update(cluster, down, validate_only=True) is ErrorCode.none
    assert cluster.image.features["transaction.version"] == 2


def test_an_update_that_is_repeated_is_refused_before_it_is_compared_with_each_broker() -> None:
    cluster = Cluster(2)
    known = FeatureUpdate("transaction.version", 2)
    wrong = FeatureUpdate("no.such", 1)
    assert update(cluster, known, known) is ErrorCode.invalid_request
    assert update(cluster, wrong, wrong) is ErrorCode.invalid_request
