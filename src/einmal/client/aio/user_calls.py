"""The admin client's calls about users that authenticate by SCRAM (KIP-554).

The password is salted and hashed here; it is not sent.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from typing import Any, Final

from einmal.client.aio.cluster import Cluster
from einmal.client.apis import ApiKey
from einmal.client.errors import ConfigError, error_for
from einmal.security.scram import HASHES, salted_password
from einmal.security.scram_server import SALT_LENGTH, salt_of
from einmal.security.secret import Secret
from einmal.types import ErrorCode

ITERATIONS: Final = 16_384
"""The most that Apache Kafka accepts; a client needs some ten milliseconds for them."""
_NUMBERS: Final = {"SCRAM-SHA-256": 1, "SCRAM-SHA-512": 2}
_NAMES: Final = {number: name for name, number in _NUMBERS.items()}


class UserCalls:
    """Calls of ``Admin`` about users."""

    _cluster: Cluster

    async def describe_scram_users(self, users: Iterable[str] = ()) -> dict[str, dict[str, int]]:
        """For each user the mechanisms that it has a credential for, with their iterations; no names: all users.

        Raises RequestRefused for a user without a credential, NotAuthorized.
        """
        wanted = [{"name": user} for user in users]
        response = await self._call_about_users(
            ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, {"users": wanted or None}, lambda told: [told, *told.results]
        )
        _check(response, "describing users")
        found = {}
        for told in response.results:
            _check(told, f"user {told.user!r}")
            found[told.user] = {
                _NAMES.get(each.mechanism, str(each.mechanism)): each.iterations for each in told.credential_infos
            }
        return dict(sorted(found.items()))

    async def set_scram_password(
        self, user: str, password: str, *, mechanism: str = "SCRAM-SHA-512", iterations: int = ITERATIONS
    ) -> None:
        """Create the user's credential for a mechanism, or replace it. Raises RequestRefused, NotAuthorized."""
        if not password:
            raise ConfigError(meaning="the password is empty", what_to_do="choose another one")
        salt = salt_of(secrets.token_bytes(SALT_LENGTH))
        # More would occupy this thread for long, before the broker refuses them.
        counted = min(max(iterations, 1), ITERATIONS)
        upsertion = {
            "name": user,
            "mechanism": _number(mechanism),
            "iterations": iterations,
            "salt": salt,
            "salted_password": salted_password(HASHES[mechanism], Secret(password), salt, counted),
        }
        await self._alter(user, {"deletions": [], "upsertions": [upsertion]})

    async def delete_scram_credential(self, user: str, mechanism: str) -> None:
        """Raises RequestRefused for a user without it, NotAuthorized."""
        deletion = {"name": user, "mechanism": _number(mechanism)}
        await self._alter(user, {"deletions": [deletion], "upsertions": []})

    async def _alter(self, user: str, fields: dict[str, Any]) -> None:
        response = await self._call_about_users(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, fields, lambda told: told.results)
        for told in response.results:
            _check(told, f"user {user!r}")

    async def _call_about_users(self, api_key: ApiKey, fields: dict[str, Any], results: Any) -> Any:
        def error_of(told: Any) -> ErrorCode:
            codes = (each.error_code for each in results(told))
            return next((code for code in codes if code.retriable), ErrorCode.none)

        return await self._cluster.call_any(api_key, fields, deadline=self._cluster.deadline(), error_of=error_of)


def _number(mechanism: str) -> int:
    if mechanism not in _NUMBERS:
        raise ConfigError(
            meaning=f"{mechanism!r} is no SCRAM mechanism", what_to_do=f"use one of {', '.join(_NUMBERS)}"
        )
    return _NUMBERS[mechanism]


def _check(told: Any, what: str) -> None:
    if told.error_code is not ErrorCode.none:
        message = told.error_message
        raise error_for(told.error_code, f"{what}: {message.rstrip('.')}" if message else what)
