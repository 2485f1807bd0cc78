"""Claims about users in the metadata: changes of credentials, and the first ones of a new cluster."""

from __future__ import annotations

from dataclasses import replace

from einmal.metadata.records import UserScramCredentialRecord
from einmal.metadata.scram_users import ScramChange, ScramResult
from einmal.security.sasl.scram_server import ScramCredential
from einmal.types import ErrorCode
from tests.metadata.cluster import DEFAULTS, Cluster

CREDENTIAL = ScramCredential(b"salt", b"stored", b"server", 4_096)
FIRST = UserScramCredentialRecord("admin", 2, *CREDENTIAL)


def test_a_credential_is_set_and_deleted() -> None:
    cluster = Cluster()
    assert cluster.done(cluster.controller.alter_scram_credentials([ScramChange("a", 1, CREDENTIAL)])) == [
        ScramResult("a")
    ]
    assert cluster.image.scram_credentials == {1: {"a": CREDENTIAL}}
    cluster.done(cluster.controller.alter_scram_credentials([ScramChange("a", 1)]))
    assert cluster.image.scram_credentials == {}


def test_a_change_that_cannot_be_made_leaves_the_others_alone() -> None:
    cluster = Cluster()
    changes = [
        ScramChange("gone", 1),
        ScramChange("bad", 1, None, ErrorCode.unacceptable_credential, "why"),
        ScramChange("good", 1, CREDENTIAL),
    ]
    results = cluster.done(cluster.controller.alter_scram_credentials(changes))
    assert [(each.user, each.error) for each in results] == [
        ("gone", ErrorCode.resource_not_found),
        ("bad", ErrorCode.unacceptable_credential),
        ("good", ErrorCode.none),
    ]
    assert cluster.image.scram_credentials == {1: {"good": CREDENTIAL}}


def test_first_users_are_recorded_with_a_new_cluster_and_never_again() -> None:
    cluster = Cluster(defaults=replace(DEFAULTS, scram_credentials=(FIRST,)))
    assert cluster.image.scram_credentials == {2: {"admin": CREDENTIAL}}
    cluster.done(cluster.controller.alter_scram_credentials([ScramChange("admin", 2)]))
    cluster.take_over()
    assert cluster.image.scram_credentials == {}
