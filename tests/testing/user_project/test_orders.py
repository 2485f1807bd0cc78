import pytest
from confluent_kafka import KafkaException, Producer
from orders import committed_orders, place_orders

from einmal.testing.containers import KafkaContainer


def test_orders_are_committed(bootstrap_servers, einmal_topic):
    place_orders(bootstrap_servers, einmal_topic, ["tea", "rice"])
    assert committed_orders(bootstrap_servers, einmal_topic) == ["tea", "rice"]


def test_a_lost_answer_does_not_repeat_an_order(kafka_proxy, einmal_topic):
    kafka_proxy.drop_next_answer("EndTxn")
    place_orders(kafka_proxy.bootstrap_servers, einmal_topic, ["tea", "rice"])
    assert committed_orders(kafka_proxy.bootstrap_servers, einmal_topic) == ["tea", "rice"]


def test_a_second_shop_fences_the_first(kafka_proxy, einmal_topic):
    first = Producer({"bootstrap.servers": kafka_proxy.bootstrap_servers, "transactional.id": "shop"})
    first.init_transactions()
    first.begin_transaction()
    first.produce(einmal_topic, "tea")
    kafka_proxy.fence("shop")
    with pytest.raises(KafkaException, match="fenced"):
        first.commit_transaction()
    assert committed_orders(kafka_proxy.bootstrap_servers, einmal_topic) == []


def test_orders_survive_the_leader(einmal_cluster, bootstrap_servers, einmal_topic):
    place_orders(bootstrap_servers, einmal_topic, ["tea"])
    einmal_cluster.kill_leader(einmal_topic)
    assert committed_orders(bootstrap_servers, einmal_topic) == ["tea"]


def test_orders_survive_a_flipped_bit(einmal_cluster, bootstrap_servers, einmal_topic):
    place_orders(bootstrap_servers, einmal_topic, ["tea"])
    node = einmal_cluster.kill_leader(einmal_topic)
    einmal_cluster.flip_bit(node, einmal_topic)
    einmal_cluster.start(node)
    assert committed_orders(bootstrap_servers, einmal_topic) == ["tea"]


def test_a_paused_broker_delays_no_order_for_ever(einmal_cluster, bootstrap_servers, einmal_topic):
    einmal_cluster.pause(einmal_cluster.leader(einmal_topic))
    place_orders(bootstrap_servers, einmal_topic, ["tea"])
    assert committed_orders(bootstrap_servers, einmal_topic) == ["tea"]


def test_orders_in_a_container_are_committed():
    with KafkaContainer() as kafka:
        place_orders(kafka.get_bootstrap_server(), "orders", ["tea"])
        assert committed_orders(kafka.get_bootstrap_server(), "orders") == ["tea"]
