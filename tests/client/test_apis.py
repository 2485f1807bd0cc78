"""Claims about versions: the newest that both sides speak, or an error that names both."""

from __future__ import annotations

import pytest

from einmal.client.apis import SPOKEN, ApiKey, choose_version
from einmal.client.errors import RequestRefused
from einmal.wire import messages
from tests.suite.cases import each_case


@each_case("api_key", ApiKey)
def test_every_supported_version_has_a_schema(api_key: ApiKey) -> None:
    lowest, highest = SPOKEN[api_key]
    for version in range(lowest, highest + 1):
        messages.request_type(api_key, version)


def test_the_newest_common_version_is_chosen() -> None:
    assert choose_version({26: (0, 9)}, ApiKey.END_TXN) == 5
    assert choose_version({26: (0, 3)}, ApiKey.END_TXN) == 3
    assert choose_version({26: (0, 9)}, ApiKey.END_TXN, at_most=4) == 4


@pytest.mark.parametrize("offered", [{}, {26: (6, 9)}, {26: (0, 4)}])
def test_no_common_version_is_an_error_that_names_both_sides(offered: dict[int, tuple[int, int]]) -> None:
    with pytest.raises(RequestRefused, match="END_TXN: this client speaks versions 5-5, the broker"):
        choose_version(offered, ApiKey.END_TXN, at_least=5)
