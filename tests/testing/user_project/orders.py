"""An application of somebody else: it writes orders in a transaction, and reads those that are committed."""

from confluent_kafka import Consumer, Producer, TopicPartition

WAIT_S = 60
READ_S = 120


def place_orders(bootstrap_servers, topic, orders):
    settings = {"bootstrap.servers": bootstrap_servers, "transactional.id": f"shop-{topic}", "socket.timeout.ms": 1000}
    producer = Producer(settings)
    producer.init_transactions(WAIT_S)
    for order in orders:
        producer.begin_transaction()
        producer.produce(topic, order)
        producer.commit_transaction(WAIT_S)


def committed_orders(bootstrap_servers, topic):
    consumer = Consumer({"bootstrap.servers": bootstrap_servers, "group.id": "none", "enable.partition.eof": True})
    consumer.assign([TopicPartition(topic, 0, 0)])
    orders = []
    while (message := consumer.poll(READ_S)) is not None:
        if message.error() is None:
            orders.append(message.value().decode())
        elif message.error().name() == "_PARTITION_EOF":
            break
    consumer.close()
    return orders
