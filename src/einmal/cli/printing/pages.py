"""Pages of the documentation for errors whose hint alone does not help."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from einmal.types import ErrorCode

_ACLS: Final = "docs/security.md#authorize-with-acls"
_CONNECTING: Final = "docs/security.md#find-out-why-a-connection-fails"
_PRODUCER: Final = "docs/states.md#phases-of-a-transactional-producer"
_TRANSACTION: Final = "docs/states.md#states-of-a-transaction"

PAGES: Final[Mapping[ErrorCode, str]] = {
    ErrorCode.topic_authorization_failed: _ACLS,
    ErrorCode.group_authorization_failed: _ACLS,
    ErrorCode.cluster_authorization_failed: _ACLS,
    ErrorCode.transactional_id_authorization_failed: _ACLS,
    ErrorCode.sasl_authentication_failed: _CONNECTING,
    ErrorCode.unsupported_sasl_mechanism: _CONNECTING,
    ErrorCode.invalid_producer_epoch: _PRODUCER,
    ErrorCode.producer_fenced: _PRODUCER,
    ErrorCode.concurrent_transactions: _TRANSACTION,
    ErrorCode.invalid_txn_state: _TRANSACTION,
    ErrorCode.throttling_quota_exceeded: "docs/security.md#quotas-and-limits",
}
