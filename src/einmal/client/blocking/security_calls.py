"""The blocking admin client's calls about ACLs, quotas and users."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from einmal.client.aio import admin as aio
from einmal.client.aio.admin_calls.acls import EVERY_ACL
from einmal.client.blocking.loop_thread import LoopThread
from einmal.client.descriptions import ClientQuota
from einmal.security.acl import Acl, AclFilter
from einmal.security.sasl.scram import ITERATIONS


class SecurityCalls:
    """A part of ``Admin``."""

    _thread: LoopThread[aio.Admin]

    def create_acls(self, acls: Iterable[Acl]) -> None:
        """Those that hold already are accepted. Raises NotAuthorized, RequestRefused."""
        self._thread.run(lambda admin: admin.create_acls(acls))

    def describe_acls(self, wanted: AclFilter = EVERY_ACL) -> list[Acl]:
        """The ACLs that the filter matches, as one broker has them. Raises NotAuthorized, RequestRefused."""
        return self._thread.run(lambda admin: admin.describe_acls(wanted))

    def delete_acls(self, filters: Iterable[AclFilter]) -> list[Acl]:
        """Delete the ACLs that any of the filters matches, and return them. Raises NotAuthorized, RequestRefused."""
        return self._thread.run(lambda admin: admin.delete_acls(filters))

    def describe_scram_users(self, users: Iterable[str] = ()) -> dict[str, dict[str, int]]:
        """For each user the mechanisms that it has a credential for, with their iterations; no names: all users.

        Raises RequestRefused for a user without a credential, NotAuthorized.
        """
        return self._thread.run(lambda admin: admin.describe_scram_users(users))

    def set_scram_password(
        self, user: str, password: str, *, mechanism: str = "SCRAM-SHA-512", iterations: int = ITERATIONS
    ) -> None:
        """Create the user's credential for a mechanism, or replace it. Raises RequestRefused, NotAuthorized."""
        self._thread.run(
            lambda admin: admin.set_scram_password(user, password, mechanism=mechanism, iterations=iterations)
        )

    def delete_scram_credential(self, user: str, mechanism: str) -> None:
        """Raises RequestRefused for a user without it, NotAuthorized."""
        self._thread.run(lambda admin: admin.delete_scram_credential(user, mechanism))

    def describe_client_quotas(
        self, entity: Mapping[str, str | None] | None = None, *, types: Iterable[str] = (), strict: bool = False
    ) -> list[ClientQuota]:
        """The quotas of entities with these names, and with any name of these types. See the asyncio twin."""
        return self._thread.run(lambda admin: admin.describe_client_quotas(entity, types=types, strict=strict))

    def alter_client_quotas(
        self, entity: Mapping[str, str | None], values: Mapping[str, float | None], *, validate_only: bool = False
    ) -> None:
        """Set quotas of an entity; None removes one. Raises RequestRefused."""
        self._thread.run(lambda admin: admin.alter_client_quotas(entity, values, validate_only=validate_only))
