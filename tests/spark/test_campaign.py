"""The campaign in short, and what its verdict is worth: it must see each thing that could be wrong.

``make pipeline-kills`` and ``make format-kills`` are the whole of it.
"""

from __future__ import annotations

import json
import random
import uuid
from collections import Counter
from pathlib import Path
from typing import Any, Final

import pytest

from tests.interop.cluster import einmal_cluster
from tests.spark.campaign import verdict
from tests.spark.campaign.cluster import Theatre
from tests.spark.campaign.conductor import PipelinesCampaign
from tests.spark.campaign.pipelines import NAMES, SOURCES, STATEFUL, closing_number, expected, key_of
from tests.spark.campaign.plan import AFTER, DRIVER, MENDING, MOMENTS, lives
from tests.spark.format_campaign.conductor import FormatCampaign

COUNT: Final = 60
KILLS: Final = 8
SEED: Final = 16


# --- the verdict, on outputs that are made up -----------------------------------------------------------------------


def outputs_of(name: str) -> list[tuple[str, str]]:
    """What an undisturbed run writes."""
    if name == "state":
        return chain([[each] for each in (*range(COUNT), closing_number(COUNT))])
    if name == "copy":
        return [(key_of(each), f"{each}:{uuid.UUID(int=each)}") for each in (*range(COUNT), closing_number(COUNT))]
    return [("key", value) for value in expected(name, COUNT).elements()]


def chain(batches: list[list[int]]) -> list[tuple[str, str]]:
    """Outputs of the pipeline "state", one per batch of numbers with one key."""
    last: dict[str, list[Any]] = {}
    found = []
    for numbers in batches:
        key = key_of(numbers[0])
        before = last.get(key, [0, 0, 0.0])
        last[key] = [before[0] + len(numbers), before[1] + 7, before[2] + 1.0]
        found.append((key, json.dumps({"before": before, "after": last[key], "numbers": numbers})))
    return found


@pytest.mark.parametrize("name", NAMES)
def test_an_undisturbed_output_is_right(name: str) -> None:
    assert verdict.wrong_with_output(name, outputs_of(name), COUNT) == []


@pytest.mark.parametrize("name", NAMES)
def test_a_lost_output_is_seen(name: str) -> None:
    for index in range(COUNT // 5):
        outputs = outputs_of(name)
        del outputs[index]
        assert verdict.wrong_with_output(name, outputs, COUNT)


@pytest.mark.parametrize("name", NAMES)
def test_an_output_that_is_there_twice_is_seen(name: str) -> None:
    for index in range(COUNT // 5):
        outputs = outputs_of(name)
        outputs.insert(index + 1, outputs[index])
        assert verdict.wrong_with_output(name, outputs, COUNT)


def test_outputs_of_one_key_in_another_order_are_seen() -> None:
    outputs = outputs_of("copy")
    outputs[0], outputs[5] = outputs[5], outputs[0]
    assert verdict.wrong_with_output("copy", outputs, COUNT)


@pytest.mark.parametrize(
    "torn",
    [("k3", "3:"), ("k3", "3"), ("k3", "3:0000"), ("", f"3:{uuid.UUID(int=3)}"), ("k3", f"3:{uuid.UUID(int=4)}")],
    ids=["no draw", "number alone", "part of a draw", "no key", "draw of another one"],
)
def test_an_output_that_is_not_whole_is_seen(torn: tuple[str, str]) -> None:
    outputs = outputs_of("copy")
    assert outputs[3] == (key_of(3), f"3:{uuid.UUID(int=3)}")
    outputs[3] = torn
    assert verdict.wrong_with_output("copy", outputs, COUNT)


def test_state_that_was_computed_again_with_other_draws_is_seen() -> None:
    outputs = outputs_of("state")
    key, value = outputs[7]
    row = json.loads(value)
    row["after"][1] += 1
    outputs[7] = (key, json.dumps(row))
    assert verdict.wrong_with_output("state", outputs, COUNT)


def test_a_store_that_is_ahead_of_the_output_is_seen() -> None:
    outputs = outputs_of("state")
    state = {key: json.loads(value)["after"] for key, value in outputs}
    assert verdict.wrong_with_state(state, outputs) == []
    state["k3"] = [each + 1 for each in state["k3"]]
    assert len(verdict.wrong_with_state(state, outputs)) == 1
    del state["k3"]
    assert len(verdict.wrong_with_state(state, outputs)) == 1


def test_positions_that_are_not_those_of_the_output_are_seen() -> None:
    ends = {topic: {0: 40, 1: 21} for topics in SOURCES.values() for topic in topics}
    here = {name: {topic: dict(ends[topic]) for topic in SOURCES[name]} for name in NAMES}
    told: dict[str, dict[str, verdict.Offsets]] = {name: {"group": here[name]} for name in NAMES}
    assert verdict.wrong_with_positions(told, ends) == []
    here["join"]["join-late"][1] = 20
    assert len(verdict.wrong_with_positions(told, ends)) == 1


def test_a_moment_that_was_waited_for_in_vain_is_seen() -> None:
    missed = Counter({"granted": 8, "claim": 20, "reported": 3})
    assert verdict.moments_that_never_came(missed, ["claim", "any time"]) == [
        "the moment 'granted' was waited for 8 times, and never came"
    ]


# --- the plan -------------------------------------------------------------------------------------------------------


def test_positions_with_the_identity_of_cluster_and_topic_have_the_same_offsets() -> None:
    ours = {"copy-in": {"0": 3, "1": 4}, "@cluster=abc": {}, "@topic=copy-in=def": {}}
    assert (
        verdict.offsets_in([ours]) == verdict.offsets_in([{"copy-in": {"0": 3, "1": 4}}]) == {"copy-in": {0: 3, 1: 4}}
    )


def test_a_seed_determines_the_plan_and_300_kills_cover_every_victim_and_moment() -> None:
    plans = [list(lives(random.Random(SEED), 300, on_cluster=True)) for _ in range(2)]
    assert plans[0] == plans[1]
    kills = [kill for life in plans[0] for kill in life.kills]
    assert len(kills) == 300
    assert {kill.moment for kill in kills} == set(MOMENTS)
    assert {kill.pipeline for kill in kills} == set(NAMES)
    assert Counter(kill.victim for kill in kills)[DRIVER] > 50


def test_a_start_is_held_during_repair_only_if_there_is_something_to_repair() -> None:
    last = None
    for life in lives(random.Random(SEED), 1000, on_cluster=True):
        first = life.kills[0]
        if first.moment == MENDING:
            assert last is not None and (last.moment, last.pipeline) == (AFTER, first.pipeline)
            assert first.pipeline in STATEFUL
        last = life.kills[-1]


# --- the campaign ---------------------------------------------------------------------------------------------------


@pytest.mark.spark
@pytest.mark.long
def test_a_few_kills_of_drivers_python_workers_and_brokers_leave_nothing_wrong(tmp_path: Path) -> None:
    brokers = einmal_cluster(tmp_path / "brokers")
    try:
        brokers.start()
        theatre = Theatre(tmp_path, brokers, None)
        theatre.prepare()
        report = PipelinesCampaign(theatre, tmp_path, seed=SEED).run(KILLS)
    finally:
        brokers.stop()
    print(report)
    assert report.wrong == []
    assert len(report.killed) == KILLS
    assert any(kill.victim == DRIVER for kill in report.killed)


@pytest.mark.spark
@pytest.mark.long
@pytest.mark.parametrize("guarantee", ["exactly_once_v2", "at_least_once"])
def test_a_few_kills_under_queries_of_the_format_leave_nothing_wrong_but_without_transactions(
    tmp_path: Path, guarantee: str
) -> None:
    brokers = einmal_cluster(tmp_path / "brokers")
    try:
        brokers.start()
        theatre = Theatre(tmp_path, brokers, None)
        theatre.prepare()
        report = FormatCampaign(theatre, tmp_path, seed=SEED, guarantee=guarantee).run(2 * KILLS)
    finally:
        brokers.stop()
    print(report)
    if guarantee == "exactly_once_v2":
        assert report.wrong == []
    else:
        assert any("too many" in each for each in report.wrong), report.wrong
