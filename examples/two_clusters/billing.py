"""Bill each order once, in the cluster where this runs: orders in, bills out, the group's offsets with them.

Input, output and offsets are one transaction, so it does not matter when this is stopped, nor in which cluster it
continues: its offsets show which orders have a bill.
"""

import argparse
import signal
import threading

from examples.program import run
from examples.two_clusters.shop import BILLS, ORDERS

from einmal.client import Consumer, OffsetAndMetadata, Producer, TopicPartition

GROUP = "billing"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("servers")
    parser.add_argument("--prefix", default="", help='What the mirror has put before the topic: "A.".')
    options = parser.parse_args()
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    settings = {
        "bootstrap.servers": options.servers,
        "group.id": GROUP,
        "auto.offset.reset": "earliest",
        "isolation.level": "read_committed",
    }
    transactional = {"bootstrap.servers": options.servers, "transactional.id": GROUP}
    with Producer(transactional) as producer, Consumer(settings) as consumer:
        consumer.subscribe([options.prefix + ORDERS])
        while not stopping.is_set():
            if records := consumer.poll(200):
                ends = {
                    TopicPartition(each.topic, each.partition): OffsetAndMetadata(each.offset + 1) for each in records
                }
                with producer.transaction() as transaction:
                    for each in records:
                        transaction.send(BILLS, each.value, key=each.key)
                    transaction.send_offsets(ends, consumer.group_metadata())


if __name__ == "__main__":
    run(main)
