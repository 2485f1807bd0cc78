import pytest
from hypothesis import given
from hypothesis import strategies as st

from einmal.log.leader_epochs import LeaderEpochs
from einmal.types import LeaderEpoch, Offset


def epochs_of(*pairs: tuple[int, int]) -> LeaderEpochs:
    epochs = LeaderEpochs()
    for epoch, start in pairs:
        epochs.assign(LeaderEpoch(epoch), Offset(start))
    return epochs


def end_for(epochs: LeaderEpochs, epoch: int) -> tuple[int, int]:
    return epochs.end_offset_for(LeaderEpoch(epoch), Offset(100))


def test_the_file_is_apache_kafkas_text() -> None:
    assert epochs_of((0, 0), (3, 17)).encode() == b"0\n2\n0 0\n3 17\n"


def test_an_epoch_ends_where_the_next_begins_and_the_latest_at_the_log_end() -> None:
    epochs = epochs_of((1, 10), (3, 20), (5, 40))
    assert end_for(epochs, 1) == (1, 20)
    assert end_for(epochs, 3) == (3, 40)
    assert end_for(epochs, 5) == (5, 100)


def test_an_unknown_epoch_between_two_is_answered_with_the_one_below() -> None:
    assert end_for(epochs_of((1, 10), (3, 20), (5, 40)), 4) == (3, 40)


def test_an_epoch_before_the_first_ends_where_the_first_begins() -> None:
    assert end_for(epochs_of((1, 10), (3, 20)), 0) == (0, 10)


@pytest.mark.parametrize("epoch", [-1, 6])
def test_no_epoch_and_a_newer_epoch_are_unknown(epoch: int) -> None:
    assert end_for(epochs_of((5, 0)), epoch) == (-1, -1)
    assert end_for(epochs_of(), epoch) == (-1, -1)


def test_an_epoch_without_records_is_replaced_by_the_one_that_writes_there() -> None:
    epochs = epochs_of((1, 0), (2, 10), (3, 10))
    assert epochs.encode() == b"0\n2\n1 0\n3 10\n"


def test_an_older_epoch_changes_nothing() -> None:
    assert epochs_of((4, 0), (2, 10), (4, 20)).encode() == b"0\n1\n4 0\n"


def test_the_epoch_of_an_offset_is_the_one_that_began_last() -> None:
    epochs = epochs_of((1, 10), (3, 20))
    assert [epochs.epoch_of(Offset(offset)) for offset in (9, 10, 19, 20, 99)] == [-1, 1, 1, 3, 3]


def test_truncation_forgets_epochs_that_begin_later() -> None:
    epochs = epochs_of((1, 0), (2, 10), (3, 20))
    epochs.truncate_to(Offset(10))
    assert epochs.latest == 1


def test_a_new_log_start_moves_the_beginning_of_its_epoch() -> None:
    epochs = epochs_of((1, 0), (2, 10), (3, 20))
    epochs.advance_start(Offset(15))
    assert epochs.encode() == b"0\n2\n2 15\n3 20\n"


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 50)), max_size=20))
def test_epochs_and_offsets_rise_whatever_is_assigned_and_survive_decoding(pairs: list[tuple[int, int]]) -> None:
    epochs = epochs_of(*pairs)
    lines = [tuple(map(int, line.split())) for line in epochs.encode().decode().splitlines()[2:]]
    assert lines == sorted(lines)
    assert len({epoch for epoch, _ in lines}) == len({start for _, start in lines}) == len(lines)
    assert LeaderEpochs.decode(epochs.encode()).encode() == epochs.encode()


@pytest.mark.parametrize(
    "text", [b"", b"0\n", b"1\n0\n", b"0\n2\n1 0\n", b"0\n1\n1\n", b"0\n2\n2 0\n1 5\n", b"0\nx\n", b"\xff\xff"]
)
def test_a_broken_file_is_refused(text: bytes) -> None:
    with pytest.raises(ValueError):
        LeaderEpochs.decode(text)
