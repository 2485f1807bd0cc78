"""How the leader of a consumer group divides partitions among the members. Pure, and the same on every machine.

``range`` and ``roundrobin`` are eager: members give up everything before each rebalance. ``cooperative-sticky``
(KIP-429) leaves partitions where they are as far as balance allows; one that is to move is first given to nobody, and
to its new owner in the rebalance that follows, so that it never has two.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from einmal.client.cores.consumer_protocol import Subscription
from einmal.types import TopicPartition

Assignment = dict[str, list[TopicPartition]]
Assign = Callable[[Mapping[str, Subscription], Mapping[str, int]], Assignment]


class Assignor(NamedTuple):
    """``assign(subscriptions by member, partition counts by topic)`` gives every member a list, maybe empty."""

    assign: Assign
    is_cooperative: bool


def assign_range(subscriptions: Mapping[str, Subscription], counts: Mapping[str, int]) -> Assignment:
    """Each topic by itself in runs: the first members, in order of their ids, get one more where it does not divide."""
    assigned: Assignment = {member: [] for member in sorted(subscriptions)}
    for topic in _topics(subscriptions, counts):
        members = [member for member in assigned if topic in subscriptions[member].topics]
        share, more = divmod(counts[topic], len(members))
        first = 0
        for rank, member in enumerate(members):
            last = first + share + (rank < more)
            assigned[member] += [TopicPartition(topic, index) for index in range(first, last)]
            first = last
    return assigned


def assign_roundrobin(subscriptions: Mapping[str, Subscription], counts: Mapping[str, int]) -> Assignment:
    """All partitions of all topics dealt one by one to the members that subscribe to their topic."""
    assigned: Assignment = {member: [] for member in sorted(subscriptions)}
    members = list(assigned)
    turn = 0
    for topic in _topics(subscriptions, counts):
        for index in range(counts[topic]):
            while topic not in subscriptions[members[turn % len(members)]].topics:
                turn += 1
            assigned[members[turn % len(members)]].append(TopicPartition(topic, index))
            turn += 1
    return assigned


def assign_cooperative_sticky(subscriptions: Mapping[str, Subscription], counts: Mapping[str, int]) -> Assignment:
    """Balanced, and as it was where that is balanced; what changes its owner is left out this time."""
    owners = _owners(subscriptions)
    assigned: Assignment = {member: [] for member in sorted(subscriptions)}
    for topic_partition, owner in owners.items():
        topic, index = topic_partition
        if topic in subscriptions[owner].topics and index < counts.get(topic, 0):
            assigned[owner].append(topic_partition)
    kept = dict.fromkeys(partition for partitions in assigned.values() for partition in partitions)
    for topic in _topics(subscriptions, counts):
        for index in range(counts[topic]):
            topic_partition = TopicPartition(topic, index)
            if topic_partition not in kept:
                _least(assigned, subscriptions, topic).append(topic_partition)
    # Partitions without an owner are free to move: only what they cannot balance costs an owner its partition.
    for may_move in (lambda partition: partition not in kept, lambda _: True):
        while _balance(assigned, subscriptions, may_move):
            pass
    return {
        member: [partition for partition in partitions if owners.get(partition, member) == member]
        for member, partitions in assigned.items()
    }


def _topics(subscriptions: Mapping[str, Subscription], counts: Mapping[str, int]) -> list[str]:
    """Topics that exist and that somebody subscribes to."""
    wanted = {topic: None for subscription in subscriptions.values() for topic in subscription.topics}
    return sorted(topic for topic in wanted if counts.get(topic, 0) > 0)


def _owners(subscriptions: Mapping[str, Subscription]) -> dict[TopicPartition, str]:
    """Who owns what now. What two members claim is nobody's: at least one of them has missed a rebalance."""
    claims: dict[TopicPartition, list[str]] = {}
    for member in sorted(subscriptions):
        for partition in subscriptions[member].owned:
            claims.setdefault(partition, []).append(member)
    return {partition: members[0] for partition, members in sorted(claims.items()) if len(members) == 1}


def _least(assigned: Assignment, subscriptions: Mapping[str, Subscription], topic: str) -> list[TopicPartition]:
    eligible = [member for member in assigned if topic in subscriptions[member].topics]
    return assigned[min(eligible, key=lambda member: (len(assigned[member]), member))]


def _balance(
    assigned: Assignment, subscriptions: Mapping[str, Subscription], may_move: Callable[[TopicPartition], bool]
) -> bool:
    """Give a member one partition more, at the cost of one that has at least two more; whether there was such a pair.

    The partition may go by way of members that pass on another one. Without that, members with different topics could
    be balanced only by taking a partition from an owner that the rebalance before has left it to.
    """
    least = min(map(len, assigned.values()), default=0)
    for giver in sorted(assigned, key=lambda member: (-len(assigned[member]), member)):
        if len(assigned[giver]) - least < 2:
            break
        given_by: dict[str, tuple[str, TopicPartition]] = {}
        reached = [giver]
        for member in reached:
            offered = {partition.topic: partition for partition in assigned[member] if may_move(partition)}
            for taker in assigned:
                topic = next((topic for topic in subscriptions[taker].topics if topic in offered), None)
                if topic is not None and taker not in given_by and taker != giver:
                    given_by[taker] = (member, offered[topic])
                    reached.append(taker)
        taker = min(reached, key=lambda member: (len(assigned[member]), member))
        if len(assigned[giver]) - len(assigned[taker]) >= 2:
            while taker != giver:
                member, partition = given_by[taker]
                assigned[member].remove(partition)
                assigned[taker].append(partition)
                taker = member
            return True
    return False


ASSIGNORS: Final[Mapping[str, Assignor]] = {
    "range": Assignor(assign_range, is_cooperative=False),
    "roundrobin": Assignor(assign_roundrobin, is_cooperative=False),
    "cooperative-sticky": Assignor(assign_cooperative_sticky, is_cooperative=True),
}
