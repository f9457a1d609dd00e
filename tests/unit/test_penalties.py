"""Wrong passwords wait, and others do not wait for them (rule S1)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from coordinator.login.logins import origin_of
from coordinator.login.password import LONGEST_WAIT_SECONDS, REFUSED, Challenge, Code, Comparison, Outcome, Reply
from coordinator.login.penalties import (
    FIRST_SECONDS,
    FORGOTTEN_SECONDS,
    LONGEST_SECONDS,
    MOST_REMEMBERED,
    OF_AN_ADDRESS,
    Penalties,
)
from store.users import Verifier


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def penalties(clock: Clock) -> Penalties:
    return Penalties(clock)


@pytest.mark.rule("S1")
def test_each_failure_of_a_user_waits_twice_as_long_up_to_a_limit(penalties: Penalties) -> None:
    waits = [penalties.failed(f"10.0.0.{number}", "alice") for number in range(8)]
    assert waits[:5] == [FIRST_SECONDS * 2**n for n in range(5)]
    assert waits[-1] == LONGEST_SECONDS
    assert penalties.failed("10.0.0.99", "bob") == FIRST_SECONDS


@pytest.mark.rule("S1")
def test_an_address_that_tries_one_name_after_the_other_waits_longer(penalties: Penalties) -> None:
    waits = [penalties.failed("10.0.0.1", f"user{number}") for number in range(10 * OF_AN_ADDRESS)]
    assert waits[0] == FIRST_SECONDS
    assert waits[OF_AN_ADDRESS] == 2 * FIRST_SECONDS
    assert waits[-1] == LONGEST_SECONDS
    assert penalties.failed("10.0.0.2", "another") == FIRST_SECONDS


@pytest.mark.rule("S1", "S4")
@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        ("2001:db8::1", "2001:db8::ffff:0:0:2", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("fe80::1%eth0", "fe80::2%eth0", True),
        ("::ffff:10.0.0.1", "10.0.0.1", True),
        ("::ffff:10.0.0.1", "::ffff:10.0.0.2", False),
        ("10.0.0.1", "10.0.0.2", False),
        ("gone", "gone", True),
    ],
)
def test_a_host_has_all_addresses_of_a_network_of_ipv6(
    penalties: Penalties, first: str, second: str, same: bool
) -> None:
    """Guesses at once from each would wait for none of the others."""
    assert (origin_of(first) == origin_of(second)) is same
    penalties.failed(first, "alice")
    assert (penalties.wait(second, "alice") > 0) is same
    penalties.failed(first, "bob")
    for number in range(OF_AN_ADDRESS):
        penalties.failed(first, f"user{number}")
    assert (penalties.failed(second, "another") > FIRST_SECONDS) is same


@pytest.mark.rule("S1")
def test_a_right_password_waits_where_its_own_address_was_wrong_alone(penalties: Penalties, clock: Clock) -> None:
    seconds = penalties.failed("10.0.0.1", "alice")
    assert penalties.wait("10.0.0.1", "alice") == seconds
    assert penalties.wait("10.0.0.1", "bob") == penalties.wait("10.0.0.2", "alice") == 0
    clock.now += seconds
    assert penalties.wait("10.0.0.1", "alice") == 0


@pytest.mark.rule("S1", "S5")
def test_failures_are_forgotten(penalties: Penalties, clock: Clock) -> None:
    """After a time, and where there are too many: the memory is bounded."""
    penalties.failed("10.0.0.1", "alice")
    penalties.failed("10.0.0.2", "bob")
    clock.now += FORGOTTEN_SECONDS + 1
    assert penalties.failed("10.0.0.1", "alice") == FIRST_SECONDS
    for number in range(MOST_REMEMBERED):
        penalties.failed(f"address {number}", f"user {number}")
    assert penalties.failed("10.0.0.3", "alice") == FIRST_SECONDS
    for remembered in (penalties._by_address, penalties._by_user, penalties._next):
        assert len(remembered._known) == MOST_REMEMBERED


# -- a comparison


class Users:
    """In place of those of an instance: a user ``alice``, and timers that a test runs."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.penalties = Penalties(clock)
        self.timers: list[tuple[float, Callable[[], None]]] = []
        self.entered: dict[str, Callable[[None], None]] = {}
        #: what the audit is told: hosts and users
        self.failed: list[tuple[str, str | None]] = []
        self.failures = self

    def count(self, host: str, user: str | None) -> None:
        self.failed.append((host, user))

    def decoy(self, mechanism: str, name: str) -> Verifier:
        return _VERIFIER

    def look_up(self, name: str, mechanism: str, found: Callable[[Verifier | None], None], say: Reply) -> None:
        found(_VERIFIER if name == "alice" else None)

    def call_later(self, seconds: float, callback: Callable[[], None]) -> None:
        self.timers.append((self.clock.now + seconds, callback))

    def enter(self, user: str, disabled: Callable[[None], None]) -> None:
        self.entered[user] = disabled

    def leave(self, user: str, disabled: Callable[[None], None]) -> None:
        self.entered.pop(user, None)

    def run(self, seconds: float) -> None:
        self.clock.now += seconds
        due = [callback for at, callback in self.timers if at <= self.clock.now]
        self.timers = [timer for timer in self.timers if timer[0] > self.clock.now]
        for callback in due:
            callback()


_VERIFIER = Verifier(salt=b"s" * 16, iterations=4096, stored_key=b"k" * 32, server_key=b"k" * 32)
_IN = Outcome(Code.OK, user="alice")


class Attempt:
    def __init__(self, users: Users, name: str, *, right: bool, address: str = "10.0.0.1") -> None:
        self.said: list[Challenge | Outcome] = []
        self.out = False
        self.comparison = Comparison(users, address, self._lock_out)  # type: ignore[arg-type]
        self.comparison.look_up(name, "SCRAM-SHA-256", lambda _: None, self.said.append)
        self.comparison.compare(lambda _: _IN if right else None, self.said.append)

    def _lock_out(self) -> None:
        self.out = True


@pytest.fixture
def users(clock: Clock) -> Users:
    return Users(clock)


@pytest.mark.rule("S1")
@pytest.mark.parametrize("name", ["alice", "not there"])
def test_a_wrong_password_is_answered_after_its_time(users: Users, name: str) -> None:
    attempt = Attempt(users, name, right=False)
    users.run(FIRST_SECONDS * 0.9)
    assert attempt.said == []
    users.run(FIRST_SECONDS * 0.2)
    assert attempt.said == [REFUSED]


@pytest.mark.rule("S10", "S8")
def test_wrong_passwords_are_told_to_the_audit_without_names_that_may_be_passwords(users: Users) -> None:
    """Also where the client has gone before its answer."""
    for name, right in (("alice", False), ("not there", False), ("alice", True)):
        Attempt(users, name, right=right).comparison.end()
    users.run(LONGEST_SECONDS)
    assert users.failed == [("10.0.0.1", "alice"), ("10.0.0.1", None)]


@pytest.mark.rule("S1")
def test_what_would_fit_a_user_that_is_not_there_is_refused(users: Users) -> None:
    attempt = Attempt(users, "not there", right=True)
    users.run(LONGEST_SECONDS)
    assert attempt.said == [REFUSED]


@pytest.mark.rule("S1", "S5")
def test_guesses_at_once_are_looked_at_one_after_the_other(users: Users) -> None:
    """And all others are in at once meanwhile."""
    guesses = [Attempt(users, "alice", right=False) for _ in range(3)]
    last = Attempt(users, "alice", right=True)
    elsewhere = Attempt(users, "alice", right=True, address="10.0.0.2")
    assert elsewhere.said == [_IN]
    assert last.said == []
    for number, seconds in enumerate((FIRST_SECONDS, 2 * FIRST_SECONDS, 4 * FIRST_SECONDS), start=1):
        users.run(seconds)
        assert [len(each.said) for each in guesses] == [1] * number + [0] * (3 - number)
    users.run(LONGEST_SECONDS)
    assert last.said == [_IN]


@pytest.mark.rule("S1", "S5")
def test_guesses_without_end_hold_neither_themselves_nor_the_right_password_for_long(users: Users) -> None:
    """Each is answered within a time of its own; what was not looked at may come again."""
    guesses = [Attempt(users, "alice", right=False) for _ in range(100)]
    last = Attempt(users, "alice", right=True)
    for _ in range(int((LONGEST_WAIT_SECONDS + LONGEST_SECONDS) / FIRST_SECONDS) + 1):
        users.run(FIRST_SECONDS)
    assert {len(each.said) for each in guesses} == {1}
    assert guesses[0].said == [REFUSED]
    assert last.said == [Outcome(Code.SYS_TEMP)]
    assert users.timers == []


@pytest.mark.rule("S1")
def test_a_login_whose_connection_has_ended_says_nothing(users: Users) -> None:
    wrong, waiting = Attempt(users, "alice", right=False), Attempt(users, "alice", right=True)
    wrong.comparison.end()
    waiting.comparison.end()
    users.run(LONGEST_SECONDS)
    assert wrong.said == waiting.said == []
    assert users.entered == {}
    assert users.timers == []


@pytest.mark.rule("S1")
def test_a_user_that_is_disabled(users: Users) -> None:
    """Its connection ends where it is in; a login under way is refused as if the password were wrong."""
    inside = Attempt(users, "alice", right=True)
    users.entered["alice"](None)
    assert inside.out
    Attempt(users, "alice", right=False)
    under_way = Attempt(users, "alice", right=True)  # waits for the wrong one
    users.entered["alice"](None)
    users.run(FIRST_SECONDS)
    users.run(LONGEST_SECONDS)
    assert under_way.said == [REFUSED]
    assert not under_way.out
