"""``einmal acl``: access control lists, of any Kafka cluster with an authorizer."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import redirect_stdout
from enum import StrEnum
from itertools import product
from typing import TYPE_CHECKING, Annotated, Final, TypeAlias

import typer

from einmal.cli.aliases import WithAliases
from einmal.cli.clients import Brokers, CommandConfig, Settings, config_of, failures_reported, for_each
from einmal.cli.confirmation import confirm
from einmal.cli.printing.formats import Format, Output
from einmal.cli.printing.output import print_rows

if TYPE_CHECKING:
    from enum import IntEnum

    from einmal.client import Acl, AclFilter, AclOperation, PatternType, ResourceType

acl = typer.Typer(cls=WithAliases, help="Access control lists: list, add, remove.", no_args_is_help=True)

_CLUSTER: Final = ("cluster", "kafka-cluster")
_NEEDED: Final[Mapping[str, Mapping[str, tuple[str, ...]]]] = {
    "producer": {"topic": ("write", "describe", "create"), "transactional-id": ("write", "describe")},
    "consumer": {"topic": ("read", "describe"), "group": ("read",)},
}
"""The operations that clients need, by resource type; as kafka-acls has them."""

_Resource: TypeAlias = tuple[str, str]
"""Type and name."""


class AclVerb(StrEnum):
    """The operations that an ACL can name."""

    ALL = "all"
    READ = "read"
    WRITE = "write"
    CREATE = "create"
    DELETE = "delete"
    ALTER = "alter"
    DESCRIBE = "describe"
    CLUSTER_ACTION = "cluster-action"
    DESCRIBE_CONFIGS = "describe-configs"
    ALTER_CONFIGS = "alter-configs"
    IDEMPOTENT_WRITE = "idempotent-write"
    TWO_PHASE_COMMIT = "two-phase-commit"


class NamePattern(StrEnum):
    """How a resource's name is compared."""

    LITERAL = "literal"
    PREFIXED = "prefixed"


class NameSearch(StrEnum):
    """The same in a search."""

    ANY = "any"
    MATCH = "match"
    LITERAL = "literal"
    PREFIXED = "prefixed"


Topics = Annotated[list[str] | None, typer.Option("--topic", "-t", metavar="NAME", help="Topic; * for all.")]
Groups = Annotated[list[str] | None, typer.Option("--group", "-g", metavar="NAME", help="Consumer group; * for all.")]
TransactionalIds = Annotated[
    list[str] | None, typer.Option("--transactional-id", metavar="NAME", help="transactional.id; * for all.")
]
OfCluster = Annotated[bool, typer.Option("--cluster", help="The cluster itself.")]
Verbs = Annotated[list[AclVerb] | None, typer.Option("--operation", "-o", help="Operation.")]
Search = Annotated[
    NameSearch,
    typer.Option("--pattern", help="Pattern type of the ACLs; match: all that apply to a resource of the name."),
]
Principals = Annotated[list[str] | None, typer.Argument(metavar="[PRINCIPAL]...", show_default=False)]


@acl.command("list")
def list_acls(
    principals: Principals = None,
    topics: Topics = None,
    groups: Groups = None,
    transactional_ids: TransactionalIds = None,
    cluster: OfCluster = False,
    pattern: Search = NameSearch.ANY,
    brokers: Brokers = None,
    settings: Settings = None,
    command_config: CommandConfig = None,
    output: Output = Format.TEXT,
) -> None:
    """List ACLs: all, or those of principals (User:alice), or on resources."""
    from einmal.client import Admin

    filters = _filters(principals, _resources(topics, groups, transactional_ids, cluster), (), pattern)
    with failures_reported(), Admin(config_of(brokers, settings, command_config)) as admin:
        acls = dict.fromkeys(acl for wanted in filters for acl in admin.describe_acls(wanted))
    _print(acls, output)


@acl.command()
def add(
    principals: Annotated[list[str], typer.Argument(metavar="PRINCIPAL...")],
    topics: Topics = None,
    groups: Groups = None,
    transactional_ids: TransactionalIds = None,
    cluster: OfCluster = False,
    operations: Verbs = None,
    producer: Annotated[
        bool, typer.Option("--producer", help="What producers need on the named topics and transactional ids.")
    ] = False,
    consumer: Annotated[
        bool, typer.Option("--consumer", help="What consumers need on the named topics and groups.")
    ] = False,
    pattern: Annotated[NamePattern, typer.Option(help="Pattern type of the names.")] = NamePattern.LITERAL,
    hosts: Annotated[
        list[str] | None, typer.Option("--host", metavar="ADDRESS", help="Address of the client. Default: any.")
    ] = None,
    deny: Annotated[bool, typer.Option("--deny", help="Deny the operations instead of allowing them.")] = False,
    brokers: Brokers = None,
    settings: Settings = None,
    command_config: CommandConfig = None,
    output: Output = Format.TEXT,
) -> None:
    """Allow operations to principals (User:alice; User:* is everybody), and print the ACLs.

    One that is refused keeps no other from being added; then the status is 1.
    """
    from einmal.client import Acl, Admin, Permission

    _check_principals(principals)
    resources = _resources(topics, groups, transactional_ids, cluster)
    if not resources:
        raise typer.BadParameter("name a resource: --topic, --group, --transactional-id or --cluster")
    roles = [role for role, is_wanted in (("producer", producer), ("consumer", consumer)) if is_wanted]
    permission = Permission.DENY if deny else Permission.ALLOW
    wanted = [
        Acl(
            _type_of(resource),
            resource[1],
            _pattern_of(resource, pattern),
            principal,
            host,
            _operation(verb),
            permission,
        )
        for principal, host in product(principals, hosts or ["*"])
        for resource in resources
        for verb in _verbs(resource, roles, operations or ())
    ]
    with failures_reported(), Admin(config_of(brokers, settings, command_config)) as admin:

        def add_one(binding: Acl) -> str:
            admin.create_acls([binding])
            return "added"

        # In one request, a refusal would hide which of the others hold now.
        outcomes = for_each(wanted, add_one, is_alike=True)
    _print(outcomes.done, output)
    outcomes.exit()


@acl.command()
def remove(
    principals: Principals = None,
    topics: Topics = None,
    groups: Groups = None,
    transactional_ids: TransactionalIds = None,
    cluster: OfCluster = False,
    operations: Verbs = None,
    pattern: Search = NameSearch.ANY,
    yes: Annotated[bool, typer.Option("-y", "--yes", help="Do not ask for confirmation.")] = False,
    brokers: Brokers = None,
    settings: Settings = None,
    command_config: CommandConfig = None,
    output: Output = Format.TEXT,
) -> None:
    """Remove the ACLs of principals, on resources, or both, and print them."""
    from einmal.client import AclFilter, Admin

    resources = _resources(topics, groups, transactional_ids, cluster)
    if not resources and not principals:
        raise typer.BadParameter("name a PRINCIPAL, or a resource: --topic, --group, --transactional-id or --cluster")
    filters = _filters(principals, resources, operations or (), pattern)
    with failures_reported(), Admin(config_of(brokers, settings, command_config)) as admin:
        acls = dict.fromkeys(acl for wanted in filters for acl in admin.describe_acls(wanted))
        if acls and not yes:
            with redirect_stdout(sys.stderr):
                _print(acls, Format.TEXT)
            confirm(f"Remove {len(acls)} ACL(s)?", yes)
        # These and no others, which may have been added since.
        removed = admin.delete_acls(AclFilter(*binding) for binding in acls) if acls else []
    _print(removed, output)


def _resources(
    topics: Sequence[str] | None, groups: Sequence[str] | None, ids: Sequence[str] | None, cluster: bool
) -> list[_Resource]:
    """All resources that the options name."""
    named = (("topic", topics), ("group", groups), ("transactional-id", ids))
    return [(kind, name) for kind, names in named for name in names or ()] + ([_CLUSTER] if cluster else [])


def _verbs(resource: _Resource, roles: Sequence[str], operations: Sequence[AclVerb]) -> dict[str, None]:
    """The operations for a resource, each once. Raises typer.BadParameter if there are none, or the type of resource
    does not have one: brokers accept such an ACL, and it allows or denies nothing."""
    from einmal.security.acl import OPERATIONS

    kind, name = resource
    verbs = [verb for role in roles for verb in _NEEDED[role].get(kind, ())]
    verbs += [operation.value for operation in operations]
    if not verbs:
        raise typer.BadParameter(f"name an --operation for {kind} {name!r}")
    supported = [AclVerb.ALL, *sorted(map(_word, OPERATIONS[_type_of(resource)]))]
    if unsupported := [verb for verb in dict.fromkeys(verbs) if verb not in supported]:
        raise typer.BadParameter(
            f"{kind} {name!r} has no operation {', '.join(unsupported)}; supported by ResourceType {kind}: "
            f"{', '.join(supported)}"
        )
    return dict.fromkeys(verbs)


def _filters(
    principals: Sequence[str] | None,
    resources: Sequence[_Resource],
    operations: Sequence[AclVerb],
    pattern: NameSearch,
) -> list[AclFilter]:
    from einmal.client import AclFilter, AclOperation, PatternType, ResourceType

    _check_principals(principals or ())
    of_principals: Sequence[str | None] = principals or (None,)
    on_resources: Sequence[_Resource | None] = resources or (None,)
    verbs: Sequence[AclVerb | None] = operations or (None,)
    return [
        AclFilter(
            ResourceType.ANY if resource is None else _type_of(resource),
            None if resource is None else resource[1],
            PatternType[pattern.name],
            principal,
            operation=AclOperation.ANY if verb is None else AclOperation[verb.name],
        )
        for principal, resource, verb in product(of_principals, on_resources, verbs)
    ]


def _check_principals(principals: Sequence[str]) -> None:
    """Raises typer.BadParameter: no ACL has another form of principal, and a search for one finds nothing."""
    for principal in principals:
        kind, _, name = principal.partition(":")
        if not kind or not name:
            raise typer.BadParameter(f"{principal!r} is no principal: it has a type and a name, as User:alice")


def _type_of(resource: _Resource) -> ResourceType:
    from einmal.client import ResourceType

    return ResourceType[resource[0].upper().replace("-", "_")]


def _pattern_of(resource: _Resource, pattern: NamePattern) -> PatternType:
    """The cluster has one name, which is no prefix."""
    from einmal.client import PatternType

    return PatternType.LITERAL if resource == _CLUSTER else PatternType[pattern.name]


def _operation(verb: str) -> AclOperation:
    from einmal.client import AclOperation

    return AclOperation[AclVerb(verb).name]


def _print(acls: Iterable[Acl], output: Format) -> None:
    rows = [
        {
            "principal": binding.principal,
            "permission": _word(binding.permission),
            "operation": _word(binding.operation),
            "resource_type": _word(binding.resource_type),
            "resource_name": binding.resource_name,
            "pattern": _word(binding.pattern_type),
            "host": binding.host,
        }
        for binding in acls
    ]
    columns = ("principal", "permission", "operation", "resource_type", "resource_name", "pattern", "host")
    print_rows(rows, columns, output)


def _word(number: IntEnum) -> str:
    return number.name.lower().replace("_", "-")
