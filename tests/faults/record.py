"""What clients on several machines note while faults strike, and what has to be true of it at the end (F1).

Beyond :class:`tests.acceptance.history.History`: a bank, whose money is messages; message groups, which have an order;
transactions that a checker decides; those of an application's own SQL; and what the store says of each.
"""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psycopg

from store.tables import SCHEMA
from tests.acceptance.engine_client import Answer
from tests.acceptance.history import History, Seen, Txn

#: An address of kind ``fifo``.
LINE = "line"
#: Each holds one message: its balance.
ACCOUNTS = [f"account-{number}" for number in range(6)]
#: of each account at the beginning
BALANCE = 1000
#: Of an application beside the store: a row with the key of each of its transactions that is committed.
SALES = "create table sale (key uuid primary key)"


@dataclass(slots=True)
class Checkable(Txn):
    """Its wish stands before its first message is posted: a checker says it, where its client does not."""


@dataclass(slots=True)
class Sale(Txn):
    """An application's SQL transaction; ``txn_id``: the key of its row."""


@dataclass
class Store:
    """What the store says at the end. ``posted``: by txn-id, of commits; ``rest``: rows of work that is not done."""

    decisions: dict[bytes, str] = field(default_factory=dict)
    posted: dict[bytes, int] = field(default_factory=dict)
    sales: set[bytes] = field(default_factory=set)
    rest: dict[str, int] = field(default_factory=dict)

    @classmethod
    def read(cls, url: str) -> Store:
        with psycopg.connect(url) as connection:
            ops = connection.execute(
                f"select id, decision, posted from {SCHEMA}.op where decision in ('commit', 'rollback')".encode()
            ).fetchall()
            sales = {row[0].bytes for row in connection.execute("select key from sale")}
            rest = {}
            for table in ("txn", "entry", "pending_half", "pending_retirement", "outbox", "enlistment"):
                row = connection.execute(f"select count(*) from {SCHEMA}.{table}".encode()).fetchone()
                rest[table] = 0 if row is None else int(row[0])
        return cls(
            {each[0].bytes: each[1] for each in ops},
            {each[0].bytes: each[2] for each in ops if each[1] == "commit"},
            sales,
            rest,
        )


def account_message(account: str, balance: int, name: str) -> str:
    """The body of the message that is an account's balance; ``name``: of no other message."""
    return f"{account}:{balance}:{name}"


class Record(History):
    """``again``: what was answered at the end to those whose answer was known: by txn-id."""

    def __init__(self) -> None:
        super().__init__()
        self.again: dict[bytes, Answer] = {}
        #: the transaction of a first message
        self.checkable: dict[str, Checkable] = {}
        self.checks: Counter[str] = Counter()
        #: how links were closed, by the condition
        self.detached: Counter[str] = Counter()

    # -- the check

    def violations_in(self, store: Store, left: list[str]) -> list[str]:
        """``left``: the bodies that were taken from all addresses at the end."""
        for txn in self.txns:
            if isinstance(txn, Sale) and txn.known is None:
                txn.resolved = Answer(txn.txn_id in store.sales)
        decisions = {**store.decisions, **dict.fromkeys(store.sales, "commit")}
        return [
            *self.violations(left, decisions),
            *self._money(left),
            *self._order(),
            *self._wishes(store),
            *self._answers(),
            *(f"{count} rows are left in {table}" for table, count in store.rest.items() if count),
        ]

    def _money(self, left: list[str]) -> Iterator[str]:
        balances = [body.split(":") for body in left if body.startswith("account-")]
        accounts = Counter(account for account, _, _ in balances)
        if accounts != Counter(ACCOUNTS):
            yield f"the accounts are not one message each: {dict(accounts)}"
        if (total := sum(int(balance) for _, balance, _ in balances)) != BALANCE * len(ACCOUNTS):
            yield f"the money was {BALANCE * len(ACCOUNTS)}, and is {total}"

    def _order(self) -> Iterator[str]:
        """In each message group, the first sight of each message comes after those of all that were posted before."""
        last: dict[str, int] = {}
        known: set[str] = set()
        for seen in self.seen:
            group, _, number = seen.body.partition("/")
            if group.startswith(LINE) and seen.body not in known:
                known.add(seen.body)
                if int(number) < last.get(group, 0):
                    yield f"{seen}: first seen after {group}/{last[group]}"
                last[group] = max(int(number), last.get(group, 0))

    def _wishes(self, store: Store) -> Iterator[str]:
        """What is decided is what its client wanted, and has all that it posted."""
        for txn in self.txns:
            sure = len(txn.posted) - len(txn.unsure)
            if isinstance(txn, Checkable) and txn.wish == "commit" and sure and not txn.answer and not txn.committed:
                yield f"{txn}: no one wanted it rolled back, and the store says {store.decisions.get(txn.txn_id)}"
            if txn.txn_id in store.posted and not sure <= store.posted[txn.txn_id] <= len(txn.posted):
                yield f"{txn}: its op says {store.posted[txn.txn_id]} messages"

    def _answers(self) -> Iterator[str]:
        """The first decision is answered to all later questions."""
        for txn in self.txns:
            again = self.again.get(txn.txn_id)
            if again is not None and txn.known is not None and again.accepted != txn.known.accepted:
                yield f"{txn}: asked again, it was answered {again}"

    # -- what it came to

    def figures(self) -> dict[str, int]:
        lost = [txn for txn in self.txns if txn.answer is None and txn.wish != "none"]
        figures = {
            "transactions": len(self.txns),
            "committed": sum(txn.committed for txn in self.txns),
            "rolled back": sum(txn.wish == "rollback" for txn in self.txns),
            "refused commits": sum(
                txn.wish == "commit" and txn.answer is not None and not txn.answer.accepted for txn in self.txns
            ),
            "never discharged": sum(txn.wish == "none" for txn in self.txns),
            "answers lost": len(lost),
            "of these committed": sum(txn.committed for txn in lost),
            "asked again": len(self.again),
            "messages posted": sum(len(txn.posted) for txn in self.txns),
            "deliveries": len(self.seen),
            "retirements": sum(len(txn.retired) for txn in self.txns),
            "in SQL": sum(isinstance(txn, Sale) for txn in self.txns),
            "checkable": sum(isinstance(txn, Checkable) for txn in self.txns),
            "transfers of money": sum(
                txn.committed and bool(txn.retired) and txn.retired[0].startswith("account-") for txn in self.txns
            ),
            "checks answered": sum(self.checks.values()),
        }
        counted = ("transactions", "messages posted", "deliveries", "retirements", "asked again", "checks answered")
        return {"operations": sum(figures[name] for name in counted), **figures}

    def save(self, path: Path, left: Sequence[str]) -> None:
        """One line of JSON for each transaction and sight, and one for what was left."""
        with path.open("w") as file:
            rows: list[Txn | Seen] = [*self.txns, *self.seen]
            for each in rows:
                row = {"is": type(each).__name__, **dataclasses.asdict(each)}
                print(json.dumps(row, default=lambda octets: octets.hex()), file=file)
            print(json.dumps({"left": list(left)}), file=file)
