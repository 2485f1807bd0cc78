"""Claims about the list of the command line's verbs."""

from __future__ import annotations

import pytest

from einmal.cli.aliases import IN_GROUPS
from tests.cli.running import Cli
from tests.interop.secured_verbs import CONNECTING, SHOWN, verbs


def test_every_verb_that_connects_is_shown_on_a_secured_cluster() -> None:
    """Those that are missing: add their steps to tests/interop/secured_verbs.py, under @shows."""
    assert set(CONNECTING) - SHOWN.keys() == set()


def test_every_verb_can_be_quiet_or_verbose_and_if_it_connects_use_a_profile() -> None:
    options = {
        verb: {option for parameter in command.params for option in parameter.opts} for verb, command in verbs().items()
    }
    assert {verb for verb, found in options.items() if not {"-q", "--quiet", "-v", "--verbose"} <= found} == set()
    assert {verb for verb, found in options.items() if "--profile" in found} == set(CONNECTING)


def test_every_verb_that_connects_takes_a_file_of_settings() -> None:
    options = {verb: {option for parameter in verbs()[verb].params for option in parameter.opts} for verb in CONNECTING}
    assert {verb for verb, found in options.items() if not {"--command-config", "-X", "-b"} <= found} == set()


@pytest.mark.parametrize(("group", "name"), IN_GROUPS)
def test_a_command_is_in_the_groups_where_other_tools_have_it(group: str, name: str) -> None:
    """With its options, which depend on its name."""
    own, in_group = (Cli("")(*path, "--help").lines for path in ((IN_GROUPS[group, name],), (group, name)))
    assert in_group[0].startswith(f"Usage: einmal {group} {name} ")
    assert in_group[1:] == own[1:]


def test_what_no_tool_has_in_a_group_is_refused_there() -> None:
    assert "No such command 'topic'" in Cli("")("cluster", "topic", status=2).errors[-1]
