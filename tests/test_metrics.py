"""Metrics of a process over HTTP."""

from __future__ import annotations

from urllib.request import urlopen

import pytest
from prometheus_client import CollectorRegistry, Counter

from einmal.metrics import Naming, serve
from einmal.options.values import OptionError
from einmal.pipeline.errors import PipelineRefused


def test_a_name_has_the_kind_and_the_labels_begin_with_what_distinguishes_its_metrics() -> None:
    naming = Naming("mirror", "flow")
    assert naming.full("notices") == "einmal_mirror_notices"
    assert (naming.labels(), naming.labels("kind")) == (("flow",), ("flow", "kind"))


def test_a_registry_is_served_at_a_port_and_a_second_one_there_is_refused() -> None:
    registry = CollectorRegistry()
    Counter("einmal_mirror_records", "Records copied.", registry=registry).inc(7)
    address = serve("--metrics", "0", registry)
    with urlopen(f"http://{address}/metrics", timeout=60.0) as answer:
        assert "einmal_mirror_records_total 7.0" in answer.read().decode()
    with pytest.raises(PipelineRefused, match="Address already in use\nhint: name another port"):
        serve("--metrics", address, registry)


@pytest.mark.parametrize("address", ["localhost:http", "", "127.0.0.1:65536"])
def test_an_address_without_a_port_is_refused_under_the_name_of_its_setting(address: str) -> None:
    with pytest.raises(OptionError, match="--metrics is HOST:PORT or a port, not"):
        serve("--metrics", address, CollectorRegistry())
