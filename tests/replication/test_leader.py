"""High watermark and ISR as one leader sees them."""

from einmal.replication.leader import IsrProposal, Leader, Membership
from einmal.types import BrokerId, ErrorCode, LeaderEpoch, Offset

ONE, TWO, THREE = BrokerId(1), BrokerId(2), BrokerId(3)
ALL = (ONE, TWO, THREE)
EPOCHS = {ONE: 10, TWO: 20, THREE: 30}
LAG_MAX_MS = 1_000


class Led:
    """A leader, broker 1, and the end of its log."""

    def __init__(
        self,
        isr: tuple[BrokerId, ...] = ALL,
        *,
        end: int = 0,
        high_watermark: int = 0,
        min_insync_replicas: int = 1,
        replicas: tuple[BrokerId, ...] = ALL,
    ) -> None:
        self.end = Offset(end)
        self.now = 0
        self.leader = Leader(
            ONE,
            LeaderEpoch(5),
            Membership(replicas, isr, 7),
            epoch_start=self.end,
            high_watermark=Offset(high_watermark),
            min_insync_replicas=min_insync_replicas,
            lag_max_ms=LAG_MAX_MS,
            now_ms=0,
            eligible=EPOCHS,
        )
        self.leader.local_end_moved(self.end)

    @property
    def high_watermark(self) -> int:
        return self.leader.high_watermark

    def append(self, end: int) -> None:
        self.end = Offset(end)
        self.leader.local_end_moved(self.end)

    def fetch(self, broker_id: BrokerId, offset: int, broker_epoch: int | None = None) -> ErrorCode:
        epoch = EPOCHS[broker_id] if broker_epoch is None else broker_epoch
        return self.leader.fetched(broker_id, epoch, Offset(offset), self.end, self.now)

    def propose(self) -> tuple[BrokerId, ...] | None:
        self.leader.look(self.end, self.now)
        proposal = self.leader.propose(self.now)
        return None if proposal is None else tuple(broker_id for broker_id, _epoch in proposal.isr)

    def proposal(self) -> IsrProposal:
        proposal = self.leader.propose(self.now)
        assert proposal is not None
        return proposal


def test_the_only_replica_commits_what_it_has() -> None:
    led = Led((ONE,), replicas=(ONE,), end=4)
    assert led.high_watermark == 4
    led.append(9)
    assert led.high_watermark == 9


def test_the_high_watermark_is_the_smallest_end_in_the_isr() -> None:
    led = Led(end=10)
    assert led.high_watermark == 0
    led.fetch(TWO, 8)
    assert led.high_watermark == 0
    led.fetch(THREE, 6)
    assert led.high_watermark == 6
    led.fetch(THREE, 12)
    assert led.high_watermark == 8


def test_the_high_watermark_never_falls() -> None:
    led = Led(end=10)
    led.fetch(TWO, 10)
    led.fetch(THREE, 10)
    led.fetch(TWO, 3, EPOCHS[TWO] + 1)
    assert led.high_watermark == 10


def test_followers_outside_the_isr_do_not_count() -> None:
    led = Led((ONE, TWO), end=10)
    led.fetch(THREE, 2)
    led.fetch(TWO, 10)
    assert led.high_watermark == 10


def test_nothing_is_committed_with_too_few_in_sync() -> None:
    led = Led((ONE,), end=10, min_insync_replicas=2)
    assert not led.leader.has_enough_replicas
    assert led.high_watermark == 0
    led.leader.membership_changed(Membership(ALL, (ONE, TWO), 8), 0)
    assert led.leader.has_enough_replicas
    led.fetch(TWO, 10)
    assert led.high_watermark == 10


def test_more_in_sync_than_there_are_replicas_cannot_be_asked_for() -> None:
    led = Led((ONE,), end=10, min_insync_replicas=2, replicas=(ONE,))
    assert led.leader.has_enough_replicas
    assert led.high_watermark == 10


def test_a_setting_counts_from_when_it_is_known() -> None:
    led = Led((ONE,), end=10, min_insync_replicas=2)
    assert led.leader.settings_changed(1) == 10


def test_an_older_membership_changes_nothing() -> None:
    led = Led((ONE,), end=10)
    led.leader.membership_changed(Membership(ALL, ALL, 7), 0)
    led.leader.membership_changed(Membership(ALL, ALL, 6), 0)
    assert led.leader.isr == (ONE,)


def test_a_fetch_from_a_broker_that_is_no_replica_is_ignored() -> None:
    led = Led((ONE, TWO), replicas=(ONE, TWO), end=10)
    assert led.fetch(THREE, 10) is ErrorCode.not_leader_or_follower


def test_an_earlier_life_of_a_follower_is_not_listened_to() -> None:
    led = Led((ONE, TWO), end=10)
    led.fetch(TWO, 5)
    assert led.fetch(TWO, 10, EPOCHS[TWO] - 1) is ErrorCode.stale_broker_epoch
    assert led.high_watermark == 5


def test_a_follower_that_has_caught_up_is_proposed_and_waited_for() -> None:
    led = Led((ONE,), end=10)
    led.fetch(TWO, 3)
    assert led.propose() is None
    led.fetch(TWO, 10)
    assert led.leader.wants_change
    led.append(12)
    assert led.high_watermark == 10
    assert led.proposal().isr == ((ONE, -1), (TWO, EPOCHS[TWO]))
    led.leader.membership_changed(Membership(ALL, (ONE, TWO), 8), 0)
    assert led.high_watermark == 10
    led.fetch(TWO, 12)
    assert led.high_watermark == 12


def test_a_follower_always_one_fetch_behind_is_near_enough() -> None:
    led = Led((ONE,), end=10)
    led.fetch(TWO, 5)
    led.append(20)
    led.fetch(TWO, 10)
    assert led.propose() is None, "the high watermark has run away from it"
    led.append(30)
    assert led.high_watermark == 20
    led.fetch(TWO, 20)
    assert led.propose() == (ONE, TWO)


def test_a_follower_below_the_start_of_the_leaders_epoch_is_not_proposed() -> None:
    led = Led((ONE, TWO), end=10)
    led.fetch(THREE, 10)
    led.fetch(THREE, 4)
    assert led.high_watermark == 0
    assert led.propose() is None


def test_a_fenced_follower_or_one_of_an_unknown_epoch_is_not_proposed() -> None:
    led = Led((ONE,), end=10)
    led.fetch(TWO, 10, EPOCHS[TWO] + 1)
    assert led.propose() is None
    led.leader.brokers_changed({ONE: 10, TWO: 21})
    led.fetch(TWO, 10, EPOCHS[TWO] + 1)
    assert led.propose() == (ONE, TWO)


def test_the_high_watermark_does_not_wait_for_one_that_is_fenced_while_joining() -> None:
    led = Led((ONE,), end=10)
    led.fetch(TWO, 10)
    led.append(20)
    assert led.high_watermark == 10
    led.leader.brokers_changed({ONE: 10})
    assert led.high_watermark == 20


def test_a_follower_without_a_fetch_for_too_long_is_proposed_to_leave_but_counts_until_it_has() -> None:
    led = Led((ONE, TWO), end=10)
    led.fetch(TWO, 10)
    led.append(20)
    led.now = LAG_MAX_MS
    assert led.propose() is None
    led.now += 1
    assert led.propose() == (ONE,)
    assert led.high_watermark == 10
    led.leader.membership_changed(Membership(ALL, (ONE,), 8), 0)
    assert led.high_watermark == 20


def test_a_follower_that_has_everything_may_be_silent() -> None:
    led = Led((ONE, TWO), end=10)
    led.fetch(TWO, 10)
    led.now = 100 * LAG_MAX_MS
    assert led.propose() is None
    led.append(20)
    led.now += LAG_MAX_MS
    assert led.propose() is None


def test_a_follower_that_fetches_but_does_not_get_nearer_leaves() -> None:
    led = Led((ONE, TWO), end=1_000)
    for offset in range(100):
        led.now += LAG_MAX_MS // 50
        led.append(1_000 + 10 * offset)
        led.fetch(TWO, offset)
    assert led.propose() == (ONE,)


def test_a_proposal_stays_the_same_until_it_is_decided() -> None:
    led = Led((ONE,), end=10)
    led.fetch(TWO, 10)
    first = led.proposal()
    led.fetch(THREE, 10)
    assert led.proposal() is first
    led.leader.membership_changed(Membership(ALL, (ONE, TWO), 8), 0)
    assert led.propose() == (ONE, TWO, THREE)


def test_a_refused_replica_counts_until_the_isr_is_recorded_again() -> None:
    """An earlier copy of the proposal may still be on its way; a newer partition epoch fences it."""
    led = Led((ONE,), end=10)
    led.fetch(TWO, 10)
    led.append(20)
    led.leader.refused(led.proposal(), led.now)
    assert led.high_watermark == 10
    assert led.propose() == (ONE,)
    assert led.leader.membership_changed(Membership(ALL, (ONE,), 8), led.now) == 20
    assert led.propose() is None


def test_a_refused_replica_is_not_proposed_again_at_once() -> None:
    led = Led((ONE,), end=10)
    led.fetch(TWO, 10)
    led.leader.refused(led.proposal(), led.now)
    led.leader.membership_changed(Membership(ALL, (ONE,), 8), led.now)
    led.fetch(TWO, 10)
    assert led.propose() is None
    led.now += 500
    led.fetch(TWO, 10)
    assert led.propose() == (ONE, TWO)


def test_a_new_replica_is_a_follower_and_a_removed_one_is_none() -> None:
    led = Led((ONE, TWO), replicas=(ONE, TWO), end=10)
    led.leader.membership_changed(Membership((ONE, THREE), (ONE,), 8), 0)
    assert led.fetch(TWO, 10) is ErrorCode.not_leader_or_follower
    assert led.fetch(THREE, 10) is ErrorCode.none
    assert led.propose() == (ONE, THREE)


# --- whether anybody else leads --------------------------------------------------------------------------------------


def test_a_leader_is_confirmed_by_all_possible_successors() -> None:
    led = Led()
    assert not led.leader.is_confirmed(1)
    led.leader.heard(TWO, 1)
    assert not led.leader.is_confirmed(1)
    led.leader.heard(THREE, 2)
    assert led.leader.is_confirmed(1)
    assert not led.leader.is_confirmed(2)


def test_a_replica_outside_the_isr_need_not_confirm_a_leader() -> None:
    led = Led((ONE, TWO))
    led.leader.heard(TWO, 1)
    assert led.leader.is_confirmed(1)
    assert not led.leader.awaits(THREE, 1)


def test_a_replica_that_may_be_in_the_isr_must_confirm_a_leader() -> None:
    led = Led((ONE, TWO))
    led.fetch(TWO, 0)
    led.fetch(THREE, 0)
    assert led.propose() == ALL
    led.leader.heard(TWO, 1)
    assert not led.leader.is_confirmed(1)
    led.leader.heard(THREE, 1)
    assert led.leader.is_confirmed(1)


def test_a_lone_leader_with_enough_replicas_is_confirmed_at_once() -> None:
    assert Led((ONE,)).leader.is_confirmed(1)
    assert Led((ONE,), replicas=(ONE,), min_insync_replicas=2).leader.is_confirmed(1)


def test_with_too_few_in_sync_an_earlier_member_may_succeed_a_leader() -> None:
    led = Led((ONE, TWO), min_insync_replicas=3)
    led.leader.heard(TWO, 1)
    assert not led.leader.is_confirmed(1)
    led.leader.heard(THREE, 1)
    assert led.leader.is_confirmed(1)


def test_a_leader_that_resigns_proposes_the_others_and_counts_them_until_it_is_decided() -> None:
    led = Led(end=10)
    for follower in (TWO, THREE):
        led.fetch(follower, 10)
    led.leader.resign()
    assert led.propose() == (TWO, THREE)
    led.append(20)
    led.fetch(TWO, 20)
    assert led.high_watermark == 10
    led.leader.refused(led.proposal(), led.now)
    assert led.propose() == ALL, "the ISR as it is, under a newer epoch"


def test_the_only_one_in_sync_does_not_resign() -> None:
    led = Led((ONE,), end=10)
    led.leader.resign()
    assert led.propose() is None
    led.leader.membership_changed(Membership(ALL, (ONE, THREE), 8), 0)
    assert led.propose() == (THREE,)
