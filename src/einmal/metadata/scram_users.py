"""Users that authenticate by SCRAM: changes of their credentials (KIP-554), and the first ones of a new cluster.

A password never comes here: a change carries what is stored of it. One request may change each user once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from einmal.metadata.plan import Deciding, MetadataDecision
from einmal.metadata.records import RemoveUserScramCredentialRecord, UserScramCredentialRecord
from einmal.security.sasl.scram import ITERATIONS_MIN
from einmal.security.sasl.scram_server import ScramCredential
from einmal.types import ErrorCode

MECHANISM_NUMBERS: Final = {"SCRAM-SHA-256": 1, "SCRAM-SHA-512": 2}
"""As in Kafka's protocol and records."""
MECHANISM_NAMES: Final = {number: name for name, number in MECHANISM_NUMBERS.items()}
ITERATIONS_MAX: Final = 16_384
_NAME_MAX: Final = 1_024
_SALT_MAX: Final = 1_024
"""Longer ones do not fit into the messages of an exchange."""
_HASH_BYTES: Final = {1: 32, 2: 64}


@dataclass(frozen=True, slots=True)
class ScramChange:
    """``credential`` None: the user's is deleted. ``error``: why the change cannot be made, with its message."""

    user: str
    mechanism: int
    credential: ScramCredential | None = None
    error: ErrorCode = ErrorCode.none
    message: str | None = None


@dataclass(frozen=True, slots=True)
class ScramResult:
    user: str
    error: ErrorCode = ErrorCode.none
    message: str | None = None


def problem_of_user(user: str, mechanism: int) -> tuple[ErrorCode, str] | None:
    """Return what is wrong with a change in itself."""
    if not user:
        return ErrorCode.unacceptable_credential, "The user name is empty."
    if len(user.encode()) > _NAME_MAX:
        return ErrorCode.unacceptable_credential, f"The user name has more than {_NAME_MAX} bytes."
    if mechanism not in MECHANISM_NAMES:
        return ErrorCode.unsupported_sasl_mechanism, f"Unknown SCRAM mechanism {mechanism}."
    return None


def problem_of_credential(mechanism: int, iterations: int, salt: bytes, salted: bytes) -> tuple[ErrorCode, str] | None:
    """Return what is wrong with a new credential. ``salted``: the salted and hashed password."""
    reason = None
    if not ITERATIONS_MIN <= iterations <= ITERATIONS_MAX:
        reason = f"{iterations} iterations are not between {ITERATIONS_MIN} and {ITERATIONS_MAX}."
    elif not 0 < len(salt) <= _SALT_MAX:
        reason = f"The salt has {len(salt)} bytes, not 1 to {_SALT_MAX}."
    elif len(salted) != _HASH_BYTES[mechanism]:
        reason = f"The salted password has {len(salted)} bytes, not {_HASH_BYTES[mechanism]}."
    return None if reason is None else (ErrorCode.unacceptable_credential, reason)


class ScramDecisions(Deciding):
    def alter_scram_credentials(self, changes: Sequence[ScramChange]) -> MetadataDecision[list[ScramResult]]:
        """Each change that can be made; no user may be named twice."""
        plan = self._plan()
        results = []
        for change in changes:
            error, message = change.error, change.message
            if error is ErrorCode.none and change.credential is None:
                if change.user not in self.image.scram_credentials.get(change.mechanism, {}):
                    error, message = ErrorCode.resource_not_found, "The user has no credential of this mechanism."
                else:
                    plan.records.append(RemoveUserScramCredentialRecord(change.user, change.mechanism))
            elif error is ErrorCode.none and change.credential is not None:
                plan.records.append(UserScramCredentialRecord(change.user, change.mechanism, *change.credential))
            results.append(ScramResult(change.user, error, message))
        return plan.decision(results)
