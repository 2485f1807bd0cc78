"""Every API asks for the same access as Apache Kafka's: the same requests, under the same ACLs, get the same errors.

Each resource of the matrix has ACLs of its own, so that one set of ACLs serves thousands of requests. There is only one
cluster: for each of its operations the ACLs are replaced. The number of cases is in the summary of the run.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from einmal.security.acl import (
    CLUSTER_NAME,
    OPERATIONS,
    WILDCARD,
    Acl,
    AclOperation,
    PatternType,
    Permission,
    ResourceType,
)
from tests.broker.acl_requests import (
    CLUSTER_REQUESTS,
    CONTROLLER_REQUESTS,
    EVERYTHING,
    GROUP_REQUESTS,
    OPEN,
    TOPIC_CREATION,
    TOPIC_DELETIONS,
    TOPIC_REQUESTS,
    TRANSACTION_REQUESTS,
    Request,
)
from tests.broker.acl_side import Side, einmal_side, errors_of, prepare
from tests.interop.apache_kafka import KafkaUnavailable
from tests.interop.kafka_acl_side import kafka_side

pytestmark = [pytest.mark.interop, pytest.mark.long]

LITERAL, PREFIXED = PatternType.LITERAL, PatternType.PREFIXED
ALLOW, DENY = Permission.ALLOW, Permission.DENY
TOPIC, GROUP = ResourceType.TOPIC, ResourceType.GROUP
CLUSTER, TRANSACTIONAL_ID = ResourceType.CLUSTER, ResourceType.TRANSACTIONAL_ID
AUTHORIZATION_ERRORS: Final = {29, 30, 31, 53}
ELSEWHERE: Final = "10.1.2.3"
HERE: Final = "127.0.0.1"
KINDS: Final = (
    "none",
    "literal",
    "prefixed",
    "here",
    "elsewhere",
    "other-principal",
    "everybody",
    "denied",
    "denied-of-all",
    "denied-prefix",
    "denied-elsewhere",
    "undescribed",
)
"""Of ACLs about an operation."""


class Resource(NamedTuple):
    """``kind`` of the ACLs about ``operation``. Several resources of the matrix have the same ACLs."""

    resource_type: ResourceType
    kind: str
    operation: AclOperation

    @property
    def prefix(self) -> str:
        return f"{self.kind}.{self.operation.name.lower()}."

    def acls(self, names: Sequence[str]) -> Iterator[Acl]:
        """``names``: of the resources, which begin with the prefix."""
        one = Acl(self.resource_type, "", LITERAL, "", WILDCARD, self.operation, ALLOW)
        of_prefix = one._replace(resource_name=self.prefix, pattern_type=PREFIXED)
        match self.kind:
            case "none":
                return
            case "prefixed":
                yield of_prefix
                return
            case "denied-prefix":
                yield of_prefix._replace(permission=DENY)
        for name in names:
            yield from self._of_one(one._replace(resource_name=name))

    def _of_one(self, acl: Acl) -> Iterator[Acl]:
        match self.kind:
            case "here":
                yield acl._replace(host=HERE)
            case "elsewhere":
                yield acl._replace(host=ELSEWHERE)
            case "other-principal":
                yield acl._replace(principal="User:bob")
            case "everybody":
                yield acl._replace(principal="User:*")
            case "denied":
                yield from (acl, acl._replace(permission=DENY))
            case "denied-of-all":
                yield acl._replace(permission=DENY)
                if acl.operation is not AclOperation.ALL:
                    yield acl._replace(operation=AclOperation.ALL)
            case "denied-elsewhere":
                yield from (acl, acl._replace(permission=DENY, host=ELSEWHERE))
            case "undescribed":
                yield acl
                yield acl._replace(operation=AclOperation.DESCRIBE, permission=DENY)
            case _:
                yield acl


def resources(resource_type: ResourceType) -> list[Resource]:
    operations = [*OPERATIONS[resource_type], AclOperation.ALL]
    return [Resource(resource_type, kind, each) for kind, each in itertools.product(KINDS, operations)]


MADE: Final = ("made",)
"""Existing resources of each kind."""
DELETED: Final = tuple(f"deleted{number}" for number in range(len(TOPIC_DELETIONS)))
"""Topics that are deleted at the end, where this is allowed."""
GONE: Final = ("gone",)
"""Resources that do not exist."""
CREATED: Final = ("created",)
"""Topics that are created, where this is allowed."""


def names(resource: Resource, ends: Sequence[str]) -> list[str]:
    return [resource.prefix + end for end in ends]


class Case(NamedTuple):
    request: Request
    name: str
    where: str
    of_controllers: bool = False

    def __str__(self) -> str:
        key, version, _fields, about = self.request
        return f"API {key} version {version} {about} {self.where} {self.name!r}"


class Difference(NamedTuple):
    """Why ours answers differently. ``denies``: it denies in another form, or always; else both must allow it."""

    reason: str
    denies: bool = False


_GROUP_SETTINGS: Final = Difference("groups have no settings")
OF_NODES: Final = Difference("only a node that knows the cluster's secret acts as one", denies=True)
DIFFERENCES: Final = {
    (1, "of a replica"): OF_NODES,
    (3, "creating"): Difference("a missing topic is created at once, and is in the answer"),
    (24, "of a leader"): OF_NODES,
    (27, ""): Difference("a marker must end a transaction that is open: INVALID_TXN_STATE"),
    (32, "of a group"): _GROUP_SETTINGS,
    (32, "of a logger"): Difference("loggers have no settings"),
    (33, "of a group"): _GROUP_SETTINGS,
    (33, "of all brokers"): Difference("no settings are valid settings"),
    (44, "of a group"): _GROUP_SETTINGS,
    (46, ""): Difference("a denial does not repeat the topics", denies=True),
    (57, ""): Difference("a failed update has its error for each feature too"),
    (60, "of controllers"): Difference("a process that is a broker too describes the brokers"),
}
"""By API, and what the request is about."""


def difference_of(case: Case) -> Difference | None:
    found = DIFFERENCES.get((case.request.api_key, case.request.about))
    return OF_NODES if found is None and case.of_controllers else found


async def _compare(ours: Side, theirs: Side, cases: Sequence[Case], tally: Counter[str]) -> list[str]:
    """Ask both; a line for each difference."""
    wrong = []
    for case in cases:
        request, name, _where, of_controllers = case
        expected = await theirs.ask(request, name, of_controllers=of_controllers)
        answer = await ours.ask(request, name, of_controllers=of_controllers)
        is_denied = bool(AUTHORIZATION_ERRORS & errors_of(expected))
        tally["denied" if is_denied else "allowed"] += 1
        tally[f"API {request.api_key}"] += 1
        if answer == expected:
            continue
        difference = difference_of(case)
        is_ours_denied = bool(AUTHORIZATION_ERRORS & errors_of(answer))
        if difference is not None and (difference.denies and is_ours_denied or not (is_denied or is_ours_denied)):
            tally[difference.reason] += 1
            continue
        wrong.append(f"{case}:\n  Apache Kafka: {expected}\n  einmal:       {answer}")
    return wrong


def _named_cases() -> Iterator[Case]:
    for requests, resource_type in (
        (TOPIC_REQUESTS, TOPIC),
        (GROUP_REQUESTS, GROUP),
        (TRANSACTION_REQUESTS, TRANSACTIONAL_ID),
    ):
        for resource in resources(resource_type):
            for name, request in itertools.product(names(resource, (*MADE, *GONE)), requests):
                yield Case(request, name, resource_type.name)
    yield from (Case(request, OPEN, "everything") for request in EVERYTHING)
    for resource in resources(TOPIC):
        yield from (Case(TOPIC_CREATION, name, "TOPIC") for name in names(resource, CREATED))
    for resource in resources(TOPIC):
        for request, name in zip(TOPIC_DELETIONS, names(resource, DELETED), strict=True):
            yield Case(request, name, "TOPIC")


def _named_acls() -> Iterator[Acl]:
    for resource_type in (TOPIC, GROUP, TRANSACTIONAL_ID):
        yield Acl(resource_type, OPEN, LITERAL, "", WILDCARD, AclOperation.ALL, ALLOW)
        for resource in resources(resource_type):
            ends = (*MADE, *GONE, *CREATED, *DELETED) if resource_type is TOPIC else (*MADE, *GONE)
            yield from resource.acls(names(resource, ends))


def _cluster_acls() -> Iterator[tuple[str, list[Acl]]]:
    """Sets of ACLs about the cluster, and what each is."""
    every = Acl(CLUSTER, CLUSTER_NAME, LITERAL, "", WILDCARD, AclOperation.ALL, ALLOW)
    yield "nothing on the cluster", []
    yield "everything on the cluster", [every]
    for operation in OPERATIONS[CLUSTER]:
        yield f"{operation.name} on the cluster", [every._replace(operation=operation)]
        yield f"all but {operation.name} on the cluster", [every, every._replace(operation=operation, permission=DENY)]


def _wildcard_acls() -> Iterator[tuple[str, list[Acl]]]:
    """An operation on all topics, but for one."""
    for operation in [*OPERATIONS[TOPIC], AclOperation.ALL]:
        every = Acl(TOPIC, WILDCARD, LITERAL, "", WILDCARD, operation, ALLOW)
        denied = every._replace(resource_name=f"none.{operation.name.lower()}.made", permission=DENY)
        yield f"{operation.name} on all topics but one, of", [every, denied]


@pytest.fixture
async def sides(tmp_path: Path) -> AsyncIterator[tuple[Side, Side]]:
    """Ours and Apache Kafka."""
    try:
        async with kafka_side(tmp_path / "apache") as theirs, einmal_side(tmp_path / "einmal") as ours:
            yield ours, theirs
    except KafkaUnavailable as error:
        pytest.skip(str(error))


@pytest.mark.time_limit(900)
async def test_every_api_asks_for_the_access_that_apache_kafka_asks_for(
    sides: tuple[Side, Side], figure: Callable[[str], None]
) -> None:
    ours, theirs = sides
    topics = [name for each in resources(TOPIC) for name in names(each, (*MADE, *DELETED))]
    groups = [name for each in resources(GROUP) for name in names(each, MADE)]
    for side in sides:
        await prepare(side, [OPEN, *topics], groups, OPEN)
    tally: Counter[str] = Counter()
    wrong = []
    named = [*_named_acls()]
    opened = named[:1]
    for where, acls in [*_wildcard_acls()]:
        for side in sides:
            await side.set_acls([*acls, *_opened(GROUP, TRANSACTIONAL_ID)])
        name = acls[1].resource_name
        cases = [Case(request, each, where) for request in TOPIC_REQUESTS for each in (name, "literal.read.made")]
        wrong += await _compare(ours, theirs, [*cases, *(Case(each, OPEN, where) for each in EVERYTHING)], tally)
    for where, acls in _cluster_acls():
        for side in sides:
            await side.set_acls([*acls, *opened])
        cases = [Case(request, "", where) for request in CLUSTER_REQUESTS]
        cases += [Case(request, "", where, of_controllers=True) for request in CONTROLLER_REQUESTS]
        wrong += await _compare(ours, theirs, cases, tally)
    for side in sides:
        await side.set_acls(named)
    wrong += await _compare(ours, theirs, [*_named_cases()], tally)
    compared, apis = tally["denied"] + tally["allowed"], sum(name.startswith("API ") for name in tally)
    figure(
        f"{compared:,} cases of {apis} APIs compared, {tally['denied']:,} of them denied by Apache Kafka and "
        f"{tally['allowed']:,} allowed: {len(wrong)} differ, beside those in DIFFERENCES"
    )
    print(dict(sorted(tally.items())))
    assert not wrong, f"{len(wrong)} differences\n" + "\n".join(wrong[:40])
    assert min(tally["denied"], tally["allowed"]) >= 1_000
    stale = {each.reason for each in (OF_NODES, *DIFFERENCES.values())} - tally.keys()
    assert not stale


def _opened(*types: ResourceType) -> list[Acl]:
    return [Acl(each, OPEN, LITERAL, "", WILDCARD, AclOperation.ALL, ALLOW) for each in types]
