"""The admin client's calls about users that authenticate by SCRAM (KIP-554).

The password is salted and hashed here; it is not sent.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from typing import Final

from einmal.client.aio.network.cluster import Cluster
from einmal.client.aio.network.results import ask_for, check
from einmal.client.errors import ConfigError
from einmal.client.records import names_of
from einmal.security.sasl.scram import HASHES, ITERATIONS, salted_password
from einmal.security.sasl.scram_server import SALT_LENGTH, salt_of
from einmal.security.secret import Secret
from einmal.wire.api.alter_user_scram_credentials import API as ALTER_USER_SCRAM_CREDENTIALS
from einmal.wire.api.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from einmal.wire.api.describe_user_scram_credentials import API as DESCRIBE_USER_SCRAM_CREDENTIALS
from einmal.wire.api.describe_user_scram_credentials import DescribeUserScramCredentialsRequest, UserName

_NUMBERS: Final = {"SCRAM-SHA-256": 1, "SCRAM-SHA-512": 2}
_NAMES: Final = {number: name for name, number in _NUMBERS.items()}


class UserCalls:
    """Calls of ``Admin`` about users."""

    _cluster: Cluster

    async def describe_scram_users(self, users: Iterable[str] = ()) -> dict[str, dict[str, int]]:
        """For each user the mechanisms that it has a credential for, with their iterations; no names: all users.

        Raises RequestRefused for a user without a credential, NotAuthorized.
        """
        request = DescribeUserScramCredentialsRequest(tuple(map(UserName, names_of(users, "users"))) or None)
        response = await ask_for(
            self._cluster, DESCRIBE_USER_SCRAM_CREDENTIALS, request, lambda response: [response, *response.results]
        )
        check(response, "describing users")
        credentials = {}
        for result in response.results:
            check(result, f"user {result.user!r}")
            credentials[result.user] = {
                _NAMES.get(info.mechanism, str(info.mechanism)): info.iterations for info in result.credential_infos
            }
        return dict(sorted(credentials.items()))

    async def set_scram_password(
        self, user: str, password: str, *, mechanism: str = "SCRAM-SHA-512", iterations: int = ITERATIONS
    ) -> None:
        """Create the user's credential for a mechanism, or replace it. Raises RequestRefused, NotAuthorized."""
        if not password:
            raise ConfigError(meaning="the password is empty", what_to_do="choose another one")
        salt = salt_of(secrets.token_bytes(SALT_LENGTH))
        # More would occupy this thread for long, before the broker refuses them.
        counted = min(max(iterations, 1), ITERATIONS)
        upsertion = ScramCredentialUpsertion(
            user,
            _number(mechanism),
            iterations,
            salt,
            salted_password(HASHES[mechanism], Secret(password), salt, counted),
        )
        await self._alter(user, AlterUserScramCredentialsRequest(upsertions=(upsertion,)))

    async def delete_scram_credential(self, user: str, mechanism: str) -> None:
        """Raises RequestRefused for a user without it, NotAuthorized."""
        deletion = ScramCredentialDeletion(user, _number(mechanism))
        await self._alter(user, AlterUserScramCredentialsRequest((deletion,)))

    async def _alter(self, user: str, request: AlterUserScramCredentialsRequest) -> None:
        response = await ask_for(
            self._cluster, ALTER_USER_SCRAM_CREDENTIALS, request, lambda response: response.results
        )
        for result in response.results:
            check(result, f"user {user!r}")


def _number(mechanism: str) -> int:
    if mechanism not in _NUMBERS:
        raise ConfigError(
            meaning=f"{mechanism!r} is no SCRAM mechanism", what_to_do=f"use one of {', '.join(_NUMBERS)}"
        )
    return _NUMBERS[mechanism]
