"""Claims about the plan of a cluster on one machine."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from einmal.broker.config import broker_config, parse_properties
from einmal.local.layout import BrokerPlan, LayoutError, moved_brokers, plan_cluster, write_properties


def plan(folder: Path, count: int, first_port: int = 0) -> list[BrokerPlan]:
    return plan_cluster(folder, count, host="127.0.0.1", first_port=first_port)


def test_ports_are_a_thousand_apart_unless_one_is_taken(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        first_port = taken.getsockname()[1] - 1_000
        plans = plan(tmp_path, 3, first_port)
    ports = [each.port for each in plans]
    # Another test may have one of the ports beside it.
    assert ports[0] == first_port or (first_port, plans[0]) in moved_brokers(plans, first_port)
    assert ports[1] not in (first_port + 1_000, first_port)
    assert len({*ports, *(each.controller_port for each in plans)}) == 6
    assert (first_port + 1_000, plans[1]) in moved_brokers(plans, first_port)
    assert moved_brokers(plans, 0) == []


def test_port_zero_takes_free_ones(tmp_path: Path) -> None:
    plans = plan(tmp_path, 3)
    assert len({each.port for each in plans} - {0}) == 3


@pytest.mark.parametrize(("count", "controllers"), [(1, 1), (2, 1), (3, 3), (4, 3), (5, 5), (9, 5)])
def test_an_odd_number_of_brokers_are_controllers_too(tmp_path: Path, count: int, controllers: int) -> None:
    plans = plan(tmp_path, count)
    assert [each.controller_port is not None for each in plans] == [number < controllers for number in range(count)]


@pytest.mark.parametrize(("count", "replicas", "in_sync"), [(1, 1, 1), (2, 2, 1), (3, 3, 2), (5, 3, 2)])
def test_the_settings_are_those_of_one_cluster(tmp_path: Path, count: int, replicas: int, in_sync: int) -> None:
    plans = plan(tmp_path, count)
    write_properties(plans, {"num.partitions": "7"})
    configs = []
    for each in plans:
        config, unknown = broker_config(parse_properties(each.properties.read_text()))
        assert unknown == ()
        config.check_roles()
        configs.append(config)
    assert [config.node_id for config in configs] == list(range(1, count + 1))
    assert [config.named_listeners.first.endpoint.port for config in configs] == [each.port for each in plans]
    assert len({config.controller_quorum_voters for config in configs}) == 1
    for config in configs:
        assert config.default_replication_factor == config.offsets_topic_replication_factor == replicas
        assert config.transaction_state_log_replication_factor == replicas
        assert config.min_insync_replicas == config.transaction_state_log_min_isr == in_sync
        assert config.num_partitions == 7


@pytest.mark.parametrize(
    ("address", "own"),
    [("9404", ["9404", "10404"]), ("0.0.0.0:9404", ["0.0.0.0:9404", "0.0.0.0:10404"]), ("[::1]:0", ["[::1]:0"] * 2)],
)
def test_each_broker_has_its_own_address_of_metrics(tmp_path: Path, address: str, own: list[str]) -> None:
    plans = plan(tmp_path, 2)
    write_properties(plans, {"metrics.listeners": address})
    assert [parse_properties(each.properties.read_text())["metrics.listeners"] for each in plans] == own


def test_controllers_of_brokers_that_listen_everywhere_can_be_reached(tmp_path: Path) -> None:
    (first, *_others) = plan_cluster(tmp_path, 3, host="0.0.0.0", first_port=0)
    assert first.controller_address == f"127.0.0.1:{first.controller_port}"


def test_a_folder_with_another_number_of_brokers_is_refused(tmp_path: Path) -> None:
    for each in plan(tmp_path, 3):
        each.data.mkdir()
        each.properties.touch()
    assert len(plan(tmp_path, 3)) == 3
    with pytest.raises(LayoutError, match="has the data of 3 brokers, not of 5"):
        plan(tmp_path, 5)


def test_the_folder_of_a_broker_by_itself_is_refused(tmp_path: Path) -> None:
    """Its data would be left out without a word. It may have a topic named ``broker``."""
    for name in ("broker-0", "broker-1"):
        (tmp_path / name).mkdir()
    (tmp_path / "meta.properties").touch()
    with pytest.raises(LayoutError, match="has the data of one broker"):
        plan(tmp_path, 2)


def test_clusters_have_ids_of_their_own_which_stay(tmp_path: Path) -> None:
    """Others have the same addresses: 127.0.0.1 and the default ports."""
    ids = set()
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        plans = plan(tmp_path / name, 3, 19092)
        write_properties(plans, {})
        ids |= {parse_properties(each.properties.read_text())["einmal.cluster.id"] for each in plans}
    assert len(ids) == 2
    plans[1].data.mkdir(parents=True)
    (plans[1].data / "meta.properties").write_text("version=1\ncluster.id=of-before\nnode.id=2\n")
    write_properties(plans, {})
    assert {parse_properties(each.properties.read_text())["einmal.cluster.id"] for each in plans} == {"of-before"}


def test_brokers_authenticate_on_loopback_by_a_secret_that_only_the_owner_can_read(tmp_path: Path) -> None:
    plans = plan_cluster(tmp_path, 3, host="0.0.0.0", first_port=0)
    write_properties(plans, {})
    secret = (tmp_path / "cluster.secret").read_text()
    assert len(secret.strip()) >= 40
    assert (tmp_path / "cluster.secret").stat().st_mode & 0o777 == 0o600
    for each in plans:
        config, _unknown = broker_config(parse_properties(each.properties.read_text()))
        listeners = config.named_listeners
        assert listeners.between_brokers is not None
        for listener in (listeners.between_brokers, *listeners.of_controller):
            assert listener.endpoint.host == "127.0.0.1"
            assert listener.authenticates
        assert not config.clients_may_act_as_brokers
    write_properties(plans, {})
    assert (tmp_path / "cluster.secret").read_text() == secret


def test_settings_with_passwords_are_readable_by_their_owner_only(tmp_path: Path) -> None:
    """Also in a folder that others can look into, and in files of an earlier version."""
    tmp_path.chmod(0o755)
    plans = plan_cluster(tmp_path, 2, host="127.0.0.1", first_port=0)
    plans[1].properties.write_text("num.partitions=7\n" * 100)
    plans[1].properties.chmod(0o644)
    write_properties(plans, {"ssl.key.password": "a password"})
    for plan in plans:
        assert plan.properties.stat().st_mode & 0o777 == 0o600
        assert plan.properties.read_text().endswith("ssl.key.password=a password\n")
        assert "num.partitions" not in plan.properties.read_text()
