"""The parts of the list, in the order of the page."""

from __future__ import annotations

from tests.standard import Sentence
from tests.standard.connections import CONNECTIONS
from tests.standard.extensions import ANONYMOUS, JMS, SOLE
from tests.standard.messages import MESSAGES
from tests.standard.sessions import SESSIONS
from tests.standard.transactions import TRANSACTIONS

PARTS: tuple[tuple[str, tuple[Sentence, ...]], ...] = (
    ("Part 4: transactions", TRANSACTIONS),
    ("Part 2: protocol headers, frames and connections", CONNECTIONS),
    ("Part 2: sessions, links and transfers", SESSIONS),
    ("Part 3: messaging", MESSAGES),
    ("Anonymous terminus 1.0", ANONYMOUS),
    ("Sole connection 1.0", SOLE),
    ("The mapping of JMS", JMS),
)
