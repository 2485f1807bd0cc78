"""Claims about the ids that a data folder has."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from einmal.broker.config import ConfigError, broker_config
from einmal.broker.identity import Identity
from einmal.log.disk import OsDisk


def loaded(folder: Path, **settings: str) -> str:
    folder.mkdir(exist_ok=True)
    values = {name.replace("_", "."): value for name, value in settings.items()}
    config, _unknown = broker_config({"log.dirs": str(folder), **values})
    identity = Identity(1)
    identity.load(config, OsDisk(), random.Random(1), lambda: False)
    return identity.cluster_id


def test_a_cluster_has_the_id_that_its_settings_name_and_keeps_it(tmp_path: Path) -> None:
    voters = {"controller_quorum_voters": "1@kafka:9093"}
    derived = loaded(tmp_path / "a", **voters)
    assert loaded(tmp_path / "b", **voters) == derived, "nodes agree before their first request"
    assert loaded(tmp_path / "c", **voters, einmal_cluster_id="another") == "another"
    assert loaded(tmp_path / "c", **voters) == "another"
    with pytest.raises(ConfigError, match="is of cluster another, this broker is of einmal.cluster.id=third"):
        loaded(tmp_path / "c", **voters, einmal_cluster_id="third")


@pytest.mark.parametrize("name", ["two words", "x" * 65, "\u00e4"])
def test_an_id_that_others_could_not_write_down_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="einmal.cluster.id"):
        broker_config({"einmal.cluster.id": name})
