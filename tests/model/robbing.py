"""Another instance takes an entry from under a consumer, and gives it back when the consumer's outcome was refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from store import channels
from store.tables import SCHEMA
from tests.model import truth
from tests.model.state import POLICIES, Receiver
from tests.model.steps import Retire, Rob

if TYPE_CHECKING:
    import psycopg

    from tests.model.driver import Driver

_TAKEN = f"""
    select e.group_id, e.id, h.message from {SCHEMA}.address a
      join {SCHEMA}.consumer_group g on g.address_id = a.id
      join {SCHEMA}.entry e on e.group_id = g.id join {SCHEMA}.half h on h.id = e.half_id
     where a.name = %s and g.name = %s"""
#: no instance has this number
_OTHER = 1_000_000


def rob(driver: Driver, step: Rob) -> None:
    """The link has ended when this returns (D10)."""
    receiver = driver.model.links[step.receiver]
    assert isinstance(receiver, Receiver)
    number = receiver.deliveries[step.place].message.number
    group_id, entry_id = _entry_of(driver.truth, driver.history, receiver.queue, number)
    _lease(driver.truth, group_id, entry_id, _OTHER)
    retire = Retire(step.receiver, step.place, step.place, settled=False)
    driver.perform(retire, ("answer", driver.model.step), [step.place])

    def ended() -> bool:
        driver.wait()
        return step.receiver in driver.detached

    driver.until(ended, "the end of a link")
    _lease(driver.truth, group_id, entry_id, 0)
    driver.truth.execute(b"select pg_notify(%s, %s)", [channels.READY, f"{group_id}>{entry_id:x}"])
    driver.hear_notices()


def _entry_of(connection: psycopg.Connection[Any], history: str, queue: int, number: int) -> tuple[int, int]:
    rows = connection.execute(
        _TAKEN.encode(), [truth.address(history, POLICIES[queue].address), truth.group(history, queue)]
    ).fetchall()
    (found,) = [(group_id, entry_id) for group_id, entry_id, message in rows if truth.number_of(message) == number]
    return found


def _lease(connection: psycopg.Connection[Any], group_id: int, entry_id: int, instance: int) -> None:
    done = connection.execute(
        f"update {SCHEMA}.entry set lease = %s where group_id = %s and id = %s".encode(), [instance, group_id, entry_id]
    )
    assert done.rowcount == 1
