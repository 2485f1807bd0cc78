"""Three of our brokers with SASL_SSL everywhere, and everybody's clients on them, as a user with ACLs of her own."""

from __future__ import annotations

import shutil
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import confluent_kafka
import pytest

from einmal.client import Admin, Consumer, KafkaError, NotAuthorized, Producer
from tests.interop.guarded_cluster import ADMIN, ALICE, HERS, GuardedCluster, running_guarded_cluster
from tests.interop.libraries import LIBRARIES, Library, Ours
from tests.suite.shared import unique

pytestmark = [pytest.mark.interop, pytest.mark.system, pytest.mark.slow]

COUNT: Final = 100
VALUES: Final = [f"value {number}" for number in range(COUNT)]
FORBIDDEN: Final = "payroll"
PARTITIONS: Final = 3
PATIENCE_S: Final = 180.0


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedCluster]:
    with running_guarded_cluster(tmp_path_factory.mktemp("guarded")) as cluster:
        cluster.create_topic(FORBIDDEN)
        yield cluster
        assert cluster.committed_values(FORBIDDEN) == [], "nobody but the admin may write here"


@pytest.fixture
def cluster(guarded: GuardedCluster) -> Iterator[GuardedCluster]:
    """Each of the brokers serves, before a test and after it."""
    yield guarded
    for node_id in list(guarded.dead):
        guarded.start_node(node_id)


@pytest.fixture
def topic(cluster: GuardedCluster) -> str:
    name = unique(HERS)
    cluster.create_topic(name, PARTITIONS)
    return name


@pytest.fixture(params=LIBRARIES)
def library(request: pytest.FixtureRequest, cluster: GuardedCluster, tmp_path: Path) -> Library:
    return LIBRARIES[request.param](cluster, tmp_path)


@pytest.mark.representatives(2)
@pytest.mark.parametrize("kind", [pytest.param("idempotent", marks=pytest.mark.long), "transactional"])
def test_what_a_library_writes_it_reads_once(cluster: GuardedCluster, library: Library, topic: str, kind: str) -> None:
    library.write(topic, VALUES, f"{topic}-id" if kind == "transactional" else None)
    assert sorted(library.read(topic, f"{topic}-readers", COUNT)) == sorted(VALUES)
    assert sorted(cluster.committed_values(topic)) == sorted(VALUES)
    with cluster.admin() as admin:
        committed = admin.list_group_offsets(f"{topic}-readers")
    assert {each.topic for each in committed} == {topic}


@pytest.mark.representatives(2)
def test_no_library_writes_to_a_topic_that_is_not_hers(library: Library) -> None:
    refusal = library.refusal(FORBIDDEN).replace("_", "").lower()
    assert refusal.startswith(("topicauthorizationfailed", "topicauthorizationexception"))


def test_groups_and_transactional_ids_of_others_are_refused(cluster: GuardedCluster, topic: str) -> None:
    alice = cluster.client()
    with (
        Consumer(alice, group_id="others") as consumer,
        pytest.raises(NotAuthorized, match="GROUP_AUTHORIZATION_FAILED"),
    ):
        consumer.subscribe([topic])
        consumer.poll(300_000)
    with (
        Producer(alice, transactional_id="others") as producer,
        pytest.raises(NotAuthorized, match="TRANSACTIONAL_ID_AUTHORIZATION_FAILED"),
    ):
        producer.init_transactions()
    theirs = confluent_kafka.Producer(dict(alice) | {"transactional.id": "others"})
    with pytest.raises(confluent_kafka.KafkaException) as caught:
        theirs.init_transactions(PATIENCE_S)
    assert caught.value.args[0].code() == confluent_kafka.KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


@pytest.mark.parametrize("listener", ["INTERNAL", "CONTROLLER"])
def test_a_user_is_nobody_on_the_listeners_of_the_nodes(cluster: GuardedCluster, listener: str) -> None:
    for user in (ADMIN, ALICE):
        at_listener = cluster.client(user) | {"bootstrap.servers": cluster.at(listener), "bootstrap.timeout.ms": "5000"}
        with pytest.raises(KafkaError, match="SASL"), Admin(at_listener) as admin:
            admin.list_topics()


def test_every_library_continues_when_a_leader_is_killed(cluster: GuardedCluster, tmp_path: Path) -> None:
    """All write at once, in a transaction where the library continues one; halfway one broker dies by kill -9."""
    topics = {name: f"{HERS}killed-{name}" for name in LIBRARIES}
    for topic in topics.values():
        cluster.create_topic(topic, PARTITIONS)
    victim = cluster.leader(topics["einmal"])
    everyone_is_halfway = threading.Barrier(len(LIBRARIES), lambda: cluster.kill(victim))

    def write(name: str) -> None:
        directory = tmp_path / name
        directory.mkdir()
        try:
            library = LIBRARIES[name](cluster, directory)
            own_id = f"{topics[name]}-id" if library.fails_over else None
            library.write(topics[name], VALUES, own_id, lambda: everyone_is_halfway.wait(PATIENCE_S))
        except BaseException:
            everyone_is_halfway.abort()
            raise

    with ThreadPoolExecutor(len(LIBRARIES)) as pool:
        outcomes = [pool.submit(write, name) for name in LIBRARIES]
    for each in outcomes:
        each.result()
    assert list(cluster.dead) == [victim]
    for topic in topics.values():
        assert sorted(cluster.committed_values(topic)) == sorted(VALUES)
    cluster.start_node(victim)
    for name, topic in topics.items():
        cluster.wait_until_in_sync(topic, range(PARTITIONS))
        assert len(Ours(cluster, tmp_path).read(topic, f"{HERS}after-{name}", COUNT)) == COUNT


@pytest.fixture
def kcat(cluster: GuardedCluster, tmp_path: Path) -> list[str]:
    program = shutil.which("kcat")
    if program is None:
        pytest.skip("kcat is not installed: apt-get install kcat")
    config = tmp_path / "kcat.conf"
    config.write_text("".join(f"{name}={value}\n" for name, value in cluster.client().items()))
    return [program, "-F", str(config)]


def test_kcat_writes_and_reads_and_is_refused(kcat: list[str], topic: str) -> None:
    def run(*arguments: str, reads: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run([*kcat, *arguments], input=reads, capture_output=True, text=True, timeout=PATIENCE_S)

    lines = "".join(f"{value}\n" for value in VALUES)
    for own in (["-X", "enable.idempotence=true"], ["-X", f"transactional.id={topic}-id"]):
        done = run("-P", "-t", topic, *own, reads=lines)
        assert done.returncode == 0, done.stderr
    done = run("-C", "-t", topic, "-o", "beginning", "-e", "-q", "-X", "isolation.level=read_committed")
    assert sorted(done.stdout.splitlines()) == sorted(VALUES * 2)
    done = run("-G", f"{topic}-kcat", "-q", "-c", str(COUNT), "-X", "auto.offset.reset=earliest", topic)
    assert set(done.stdout.splitlines()) <= set(VALUES) and len(done.stdout.splitlines()) == COUNT, done.stderr
    done = run("-P", "-t", FORBIDDEN, reads=lines)
    assert done.returncode != 0
    assert "authorization failed" in done.stderr.lower()
    assert topic in run("-L").stdout
    assert FORBIDDEN not in run("-L").stdout
