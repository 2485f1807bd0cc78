"""Whom a fault hits: found when its time comes, from who runs and who leads then, and from the fault's own randomness.

Every target function takes the world and the fault's source of randomness, and returns what the fault needs to know:
machines, links or a client. None: there is nothing to hit, and the fault does not happen. The order of draws from the
source belongs to what a seed means; a function that draws differently makes other schedules of the same seeds.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple

from einmal.broker.rpc.controller_channel import ControllerChannel
from einmal.metadata.image import CONSUMER_OFFSETS, TRANSACTION_STATE, ClusterImage
from einmal.simulation.loop import Host
from einmal.simulation.world import Client, Machine, World
from einmal.wire.api.alter_partition_reassignments import API as ALTER_PARTITION_REASSIGNMENTS
from einmal.wire.api.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from einmal.wire.api.elect_leaders import API as ELECT_LEADERS
from einmal.wire.api.elect_leaders import ElectLeadersRequest
from einmal.wire.messages import Api, Q, R, Values

_COORDINATED: Final = (TRANSACTION_STATE, CONSUMER_OFFSETS)
_ELECT_LEADERS_VERSION: Final = 2
_PREFERRED: Final = 0
OPERATOR_MS: Final = 5_000
"""How long an operator's request may take."""

Link = tuple[str, str]
"""From one host to another, by their names in the network."""


class SlowLinks(NamedTuple):
    """Links, and how many seconds later than usual everything arrives there."""

    links: list[Link]
    seconds: float


class OperatorRequest(NamedTuple):
    """A request to the controller, by way of one node."""

    host: Host
    channel: ControllerChannel
    api: Api[Any, Values]
    version: int
    request: Values


# --- machines --------------------------------------------------------------------------------------------------------


def running(world: World) -> list[Machine]:
    """Machines whose process runs and is not paused."""
    return [machine for machine in world.machines.values() if machine.is_running]


def any_machine(world: World, source: random.Random) -> Machine | None:
    """A running machine."""
    machines = running(world)
    return source.choice(machines) if machines else None


def data_leader(world: World, source: random.Random) -> Machine | None:
    """The leader of a partition of the workload's topics."""
    return _leader_of(world, lambda name: not name.startswith("__"), source)


def coordinator(world: World, source: random.Random) -> Machine | None:
    """The leader of a partition of the coordinators' topics."""
    return _leader_of(world, lambda name: name in _COORDINATED, source)


def controller(world: World, source: random.Random) -> Machine | None:
    """The active controller; while there is none, any machine."""
    for machine in running(world):
        if machine.has_started and machine.node is not None and machine.node.quorum.is_leader:
            return machine
    return any_machine(world, source)


def one(find: Callable[[World, random.Random], Machine | None]) -> Callable[[World, random.Random], list[Machine]]:
    """The machine that ``find`` finds, as a list; an empty list hits nobody, and still takes its time."""

    def machines(world: World, source: random.Random) -> list[Machine]:
        machine = find(world, source)
        return [] if machine is None else [machine]

    return machines


def several(world: World, source: random.Random) -> list[Machine]:
    """Any number of running machines, none and all included."""
    machines = running(world)
    return source.sample(machines, source.randint(0, len(machines)))


def every_machine(world: World, _source: random.Random) -> list[Machine]:
    return list(world.machines.values())


def wipeable(world: World, source: random.Random) -> Machine | None:
    """A broker without a vote, while the cluster is whole."""
    brokers = [machine for machine in running(world) if not machine.member.is_controller]
    brokers = [machine for machine in brokers if machine.damage is None]
    return source.choice(brokers) if brokers and is_whole(world) else None


def damageable(world: World, source: random.Random) -> Machine | None:
    """A machine that is up, in a boot that its node has noted, and nothing else is wrong with its disk."""
    machine = any_machine(world, source)
    if machine is None or machine.node is None or not machine.has_started:
        return None
    is_sound = machine.damage is None and not machine.downs and not machine.node.partitions.may_open_more
    return machine if is_sound and machine.disk.faults.is_reliable and world.profile.disk.is_reliable else None


def _leader_of(world: World, topics: Callable[[str], bool], source: random.Random) -> Machine | None:
    image = _image(world)
    leaders = [
        partition.leader for topic in image.topics.values() if topics(topic.name) for partition in topic.partitions
    ]
    leaders = [leader for leader in leaders if leader in world.machines]
    machine = world.machines[source.choice(leaders)] if leaders else None
    return machine if machine is not None and machine.is_running else any_machine(world, source)


def is_whole(world: World) -> bool:
    """Whether every machine runs, and every replica is in sync."""
    if not all(machine.is_running and machine.has_started for machine in world.machines.values()):
        return False
    return all(
        len(partition.isr) == len(partition.replicas)
        for topic in _image(world).topics.values()
        for partition in topic.partitions
    )


def _image(world: World) -> ClusterImage:
    """As the best informed of the running nodes has it."""
    images = [(node.metadata.next_offset, node.metadata.image) for node in world.nodes()]
    return max(images, key=lambda known: known[0])[1] if images else ClusterImage()


# --- links -----------------------------------------------------------------------------------------------------------


def both_ways(ones: Iterable[str], others: Iterable[str]) -> list[Link]:
    """Every link between one group of hosts and another."""
    targets = list(others)
    return [link for one_host in ones for other in targets for link in ((one_host, other), (other, one_host))]


def of_a_lonely_node(world: World, source: random.Random) -> list[Link] | None:
    """All links of a node to the others, and at times to some clients."""
    if (machine := any_machine(world, source)) is None:
        return None
    return both_ways([machine.name], _others(world, machine) + _clients_apart(world, source))


def to_a_deaf_node(world: World, source: random.Random) -> list[Link] | None:
    """The node is heard, and hears nobody."""
    machine = any_machine(world, source)
    return None if machine is None else [(name, machine.name) for name in _others(world, machine)]


def from_a_mute_node(world: World, source: random.Random) -> list[Link] | None:
    """The node hears, and nobody hears it."""
    machine = any_machine(world, source)
    return None if machine is None else [(machine.name, name) for name in _others(world, machine)]


def between_halves(world: World, source: random.Random) -> list[Link]:
    """Two groups of nodes that do not hear each other; some clients may be with one of them."""
    names = _shuffled(world, source)
    middle = source.randint(1, len(names) - 1)
    return both_ways(names[:middle], names[middle:] + _clients_apart(world, source))


def outside_a_ring(world: World, source: random.Random) -> list[Link]:
    """Each node hears its two neighbours only."""
    names = _shuffled(world, source)
    count = len(names)
    apart = [
        (name, other)
        for index, name in enumerate(names)
        for distance, other in enumerate(names[index + 1 :], start=1)
        if distance not in (1, count - 1)
    ]
    if not apart:
        # Three in a ring are all neighbours: then one link is gone.
        apart = [(names[0], names[1])]
    return [link for name, other in apart for link in ((name, other), (other, name))]


def beside_a_bridge(world: World, source: random.Random) -> list[Link]:
    """Two halves that one node alone connects."""
    names = _shuffled(world, source)
    middle = (len(names) - 1) // 2
    return both_ways(names[1 : 1 + middle], names[1 + middle :])


def of_a_client(world: World, source: random.Random) -> list[Link] | None:
    """Links between a client and some of the nodes, all of them at times."""
    names = _names(world)
    if (client := any_client(world, source)) is None:
        return None
    return both_ways([client.host.name], source.sample(names, source.randint(1, len(names))))


def slow_links(world: World, source: random.Random) -> SlowLinks | None:
    """A node is slow to hear or slow to be heard: a follower that falls behind, or a leader that is late."""
    if (machine := any_machine(world, source)) is None:
        return None
    seconds = source.choice((0.05, 0.3, 1.0))
    links = [(name, machine.name) for name in _others(world, machine)]
    if source.random() < 0.5:
        links = [(target, name) for name, target in links]
    return SlowLinks(links, seconds)


def two_hosts(world: World, source: random.Random) -> Link:
    """Any two hosts, clients included."""
    first, second = source.sample(_names(world) + [client.host.name for client in world.clients], 2)
    return first, second


def _names(world: World) -> list[str]:
    return [machine.name for machine in world.machines.values()]


def _shuffled(world: World, source: random.Random) -> list[str]:
    names = _names(world)
    source.shuffle(names)
    return names


def _others(world: World, machine: Machine) -> list[str]:
    return [name for name in _names(world) if name != machine.name]


def _clients_apart(world: World, source: random.Random) -> list[str]:
    """Clients that a cut between nodes concerns as well."""
    clients = [client.host.name for client in world.clients]
    return source.sample(clients, source.randint(0, len(clients))) if source.random() < 0.5 else []


# --- clients and operators -------------------------------------------------------------------------------------------


def any_client(world: World, source: random.Random) -> Client | None:
    """A client that runs and is not paused."""
    clients = [client for client in world.clients if not client.host.is_paused and not client.task.done()]
    return source.choice(clients) if clients else None


def preferred_leaders(world: World, source: random.Random) -> OperatorRequest | None:
    """An operator moves leaders to the preferred replicas."""
    request = ElectLeadersRequest(_PREFERRED, None)
    return _request(world, ELECT_LEADERS, _ELECT_LEADERS_VERSION, request, source)


def another_assignment(world: World, source: random.Random) -> OperatorRequest | None:
    """An operator moves some partition to other replicas, or puts its replicas into another order."""
    topics = list(_image(world).topics.values())
    if not topics:
        return None
    topic = source.choice(topics)
    replicas = source.sample(world.profile.brokers, world.profile.replication_factor)
    partition = ReassignablePartition(source.randrange(len(topic.partitions)), tuple(replicas))
    request = AlterPartitionReassignmentsRequest(topics=(ReassignableTopic(topic.name, (partition,)),))
    return _request(world, ALTER_PARTITION_REASSIGNMENTS, 0, request, source)


def _request(world: World, api: Api[Q, R], version: int, request: Q, source: random.Random) -> OperatorRequest | None:
    machine = any_machine(world, source)
    if machine is None or not machine.has_started or machine.node is None or machine.host is None:
        return None
    return OperatorRequest(machine.host, machine.node.controller_channel, api, version, request)
