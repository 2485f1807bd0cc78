"""Claims about the key pair of a query."""

from __future__ import annotations

from cryptography import x509

from einmal.commit_protocol.claims import Task
from einmal.security.ephemeral_identity import ephemeral_identity
from einmal.sinks.kafka.claim_client import ClaimClient
from einmal.sinks.kafka.claim_service import ClaimService
from einmal.sinks.kafka.open_transaction import OpenTransaction, TopicTable


def test_every_query_has_a_key_of_its_own_that_its_claim_service_accepts() -> None:
    first, second = (ephemeral_identity() for _ in range(2))
    assert first.key != second.key
    service = ClaimService(first, "127.0.0.1", "127.0.0.1")
    try:
        transaction = OpenTransaction(TopicTable(lambda _: 2), add=print, reported=print)
        service.begin(transaction)
        with ClaimClient(service.address, transaction.token, Task(0, 0), 1) as task:
            assert task.topic("a") == (0, 2)
    finally:
        service.close()


def test_the_certificate_is_signed_by_its_own_key_and_does_not_expire() -> None:
    certificate = x509.load_pem_x509_certificate(ephemeral_identity().certificate.encode())
    certificate.verify_directly_issued_by(certificate)
    assert certificate.not_valid_before_utc.year == 1970
    assert certificate.not_valid_after_utc.year == 9999
    assert certificate.serial_number > 2**120
