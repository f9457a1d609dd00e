"""What the check of a history under faults has to find (F1): each violation is planted in one that has none."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.acceptance.engine_client import Answer
from tests.acceptance.history import Seen, Txn
from tests.faults.record import ACCOUNTS, BALANCE, LINE, Checkable, Record, Sale, Store, account_message

pytestmark = pytest.mark.rule("F1")

YES, NO = Answer(True), Answer(False, "amqp:transaction:rollback")


class Told:
    """A history without a violation; ``left``: what is at the addresses at its end."""

    def __init__(self) -> None:
        self.record = Record()
        self.store = Store(rest={"entry": 0})
        self.left = [account_message(account, BALANCE, "bank/0") for account in ACCOUNTS]
        self.bank = self.done(Txn(b"bank", "bank", "commit", list(self.left), answer=YES))
        self.posted = self.done(Txn(b"post", "p", "commit", ["p/1", "p/2"], answer=YES))
        self.moved = self.done(Txn(b"move", "m", "commit", ["m/1"], ["p/1"], answer=YES, acknowledged_at=2))
        self.back = self.done(Txn(b"back", "p", "rollback", ["p/3"], answer=YES))
        self.asked = self.done(Txn(b"asked", "p", "commit", ["p/4"], resolved=NO))
        self.open = self.done(Txn(b"open", "p", "none", ["p/5"]))
        self.sale = self.done(Sale(b"sale", "s", "commit", ["s/1"]))
        self.checked = self.done(Checkable(b"check", "c", "commit", ["c/1", "c/2"], resolved=YES, unsure=("c/2",)))
        self.line = self.done(Txn(b"line", f"{LINE}-1", "commit", [f"{LINE}-1/1", f"{LINE}-1/2"], answer=YES))
        self.record.seen = [Seen("p/1", "m", 0, 1), *(Seen(body, "l", 0, 1) for body in self.line.posted)]
        self.record.again = {b"post": YES, b"asked": NO}
        self.left += ["m/1", "p/2", "s/1", "c/1", *self.line.posted]

    def done(self, txn: Txn) -> Txn:
        self.record.txns.append(txn)
        wishes = txn.wish == "commit" and txn.txn_id != b"asked"
        if isinstance(txn, Sale):
            self.store.sales.add(txn.txn_id)
        elif txn.wish != "none":
            self.store.decisions[txn.txn_id] = "commit" if wishes else "rollback"
        if wishes and not isinstance(txn, Sale):
            self.store.posted[txn.txn_id] = len(txn.posted) - len(txn.unsure)
        return txn

    def violations(self) -> list[str]:
        return self.record.violations_in(self.store, self.left)


def _shown(told: Told, txn: Txn) -> None:
    told.record.seen.append(Seen(txn.posted[0], "x", 0, 9))


def _turned(told: Told) -> None:
    told.record.seen[1:] = reversed(told.record.seen[1:])


def _paid(told: Told) -> None:
    told.left[0] = account_message(ACCOUNTS[0], BALANCE + 1, "bank/0")
    told.bank.posted[0] = told.left[0]


def _unsold(told: Told) -> None:
    told.sale.answer = YES
    told.store.sales.clear()


def _undone(told: Told) -> None:
    told.checked.resolved = NO
    told.store.decisions[b"check"] = "rollback"


PLANTED: dict[str, tuple[Callable[[Told], object], str]] = {
    "lost": (lambda told: told.left.remove("p/2"), "p/2 of .*left 0 times"),
    "lost of a transaction whose answer was lost": (lambda told: told.left.remove("c/1"), "c/1 of .*left 0 times"),
    "lost of an SQL transaction": (lambda told: told.left.remove("s/1"), "s/1 of .*left 0 times"),
    "doubled": (lambda told: told.left.append("m/1"), "m/1 of .*left 2 times"),
    "there though it was retired": (lambda told: told.left.append("p/1"), "p/1 of .*retired 1 times, left 1"),
    "retired twice": (lambda told: told.sale.retired.append("p/1"), "p/1 of .*retired 2 times"),
    "of no client": (lambda told: told.left.append("?"), r"\?: left, and no client posted it"),
    "of no client, and seen": (
        lambda told: told.record.seen.append(Seen("?", "x", 0, 9)), "seen, and no client posted it",
    ),
    "rolled back and seen": (lambda told: _shown(told, told.back), "p/3.*seen, and not committed"),
    "never discharged and seen": (lambda told: _shown(told, told.open), "p/5.*seen, and not committed"),
    "rolled back and left": (lambda told: told.left.append("p/3"), "p/3: left, and not committed"),
    "back after its retirement": (lambda told: _shown(told, told.posted), "p/1.*came back after its retirement"),
    "an answered commit is not in the store": (
        lambda told: told.store.decisions.pop(b"post"), "post.*answered .*the store says None",
    ),
    "an answered rollback is committed": (
        lambda told: told.store.decisions.update({b"back": "commit"}), "back.*the store says commit",
    ),
    "committed unasked": (
        lambda told: told.store.decisions.update({b"open": "commit"}), "open.*no client asked for it",
    ),
    "an answered SQL commit has no row": (
        _unsold, "sale.*the store says None",
    ),
    "never resolved": (lambda told: setattr(told.asked, "resolved", None), "asked.*never resolved"),
    "another answer later": (lambda told: told.record.again.update({b"post": NO}), "post.*asked again"),
    "rolled back though a checker said commit": (
        _undone, "check.*no one wanted it rolled back",
    ),
    "an op that says less": (lambda told: told.store.posted.update({b"post": 1}), "post.*its op says 1"),
    "the money": (_paid, "the money was 6000, and is 6001"),
    "an account": (lambda told: told.left.pop(0), "the accounts are not one message each"),
    "out of order": (_turned, f"{LINE}-1/1.*first seen after {LINE}-1/2"),
    "an entry that no one gets": (lambda told: told.store.rest.update(entry=1), "1 rows are left in entry"),
    "a client that failed": (lambda told: told.record.errors.append("no answer"), "no answer"),
}  # fmt: skip


def test_a_history_without_a_violation() -> None:
    assert Told().violations() == []


@pytest.mark.parametrize("planted", PLANTED)
def test_what_is_planted_is_found(planted: str) -> None:
    told = Told()
    plant, found = PLANTED[planted]
    plant(told)
    assert [each for each in told.violations() if re.search(found, each)]


def test_a_history_is_kept_line_by_line(tmp_path: Path) -> None:
    told = Told()
    told.record.save(tmp_path / "history", told.left)
    rows = [json.loads(line) for line in (tmp_path / "history").read_text().splitlines()]
    assert [row["is"] for row in rows if row.get("posted") == ["s/1"]] == ["Sale"]
    assert rows[-1] == {"left": told.left}
