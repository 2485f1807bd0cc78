from __future__ import annotations

import pytest

from einmal.ingest.postgresql.options import SnapshotMode, capture_options
from einmal.options.values import OptionError

NEEDED = {
    "url": "postgresql://reader@db.example.com/shop",
    "slot.name": "einmal_shop",
    "publication.name": "einmal",
    "topic.prefix": "shop",
}


def test_four_options_are_needed_and_the_rest_has_defaults() -> None:
    for name in NEEDED:
        with pytest.raises(OptionError, match=f'option "{name}" is missing'):
            capture_options({key: value for key, value in NEEDED.items() if key != name})
    options = capture_options(NEEDED)
    assert (options.slot, options.publication, options.routing.prefix) == ("einmal_shop", "einmal", "shop")
    assert (options.snapshot, options.changes_max, options.routing.tombstones) == (SnapshotMode.INITIAL, 10_000, True)
    assert options.routing.outbox_topic == "outbox.event.{aggregatetype}"


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("slot.nam", "x", 'did you mean "slot.name"'),
        ("slot.name", "Shop-1", "lower-case letters"),
        ("topic.prefix", "__consumer", "cannot"),
        ("topic.prefix", "a/b", "cannot"),
        ("snapshot.mode", "never", "one of initial, no_data"),
        ("tombstones.on.delete", "maybe", "true or false"),
        ("max.batch.size", "0", "at least 1"),
        ("outbox.tables", "outbox", "such as public.outbox"),
        ("route.topic.replacement", "{aggregatetype}", "prefix of its own"),
    ],
)
def test_an_option_with_another_value_is_refused(name: str, value: str, text: str) -> None:
    with pytest.raises(OptionError, match=text):
        capture_options({**NEEDED, name: value})


def test_options_print_without_the_password() -> None:
    assert "s3cret" not in repr(capture_options({**NEEDED, "password": "s3cret"}))
