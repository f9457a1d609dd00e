"""The filters of a source (part 3, section 3.5.8) that are known: JMS selectors and no-local (rule P16).

Both are described values under a key of the client's choice, by the descriptors of the registry "AMQP Capabilities,
filters": ``apache.org:selector-filter:string`` and ``apache.org:no-local-filter:list``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from proton import Described, symbol

from coordinator.errors import Condition, Refusal
from coordinator.selectors import Selector

_SELECTOR = ("apache.org:selector-filter:string", 0x0000_468C_0000_0004)
_NO_LOCAL = ("apache.org:no-local-filter:list", 0x0000_468C_0000_0003)


@dataclass(frozen=True, slots=True)
class Filters:
    """What a client asked for, of what is known; ``selector``: None where there is none, or an empty one."""

    selector: Selector | None = None
    no_local: bool = False
    _selectors: tuple[tuple[symbol, Described], ...] = ()
    _no_locals: tuple[tuple[symbol, Described], ...] = ()

    @property
    def text(self) -> str:
        """Of the selector; empty where everything matches."""
        return "" if self.selector is None else self.selector.text

    def without_no_local(self) -> Filters:
        """Where it cannot be honoured: the answer leaves it out, so that the client knows (section 3.5.3)."""
        return replace(self, no_local=False, _no_locals=())

    def answer(self) -> dict[symbol, Described] | None:
        """The filter set of the answer: as it was asked."""
        return dict(self._selectors + self._no_locals) or None


def asked(found: object) -> Filters:
    """The known ones of a filter set. Refusal where one cannot be read, or there are two selectors."""
    if not isinstance(found, dict):
        return Filters()
    selectors: list[tuple[symbol, Described]] = []
    no_locals: list[tuple[symbol, Described]] = []
    for key, value in found.items():
        if isinstance(value, Described):
            pair = (symbol(key), value)
            if value.descriptor in _SELECTOR:
                selectors.append(pair)
            elif value.descriptor in _NO_LOCAL:
                no_locals.append(pair)
    if len(selectors) > 1:
        raise Refusal(Condition.INVALID_FIELD, f"the source has {len(selectors)} selectors, one was expected")
    selector = None
    if selectors:
        text = selectors[0][1].value
        if not isinstance(text, str) or isinstance(text, symbol):
            raise Refusal(
                Condition.INVALID_FIELD, f"the selector is of type {type(text).__name__}, a string was expected"
            )
        if text.strip():
            selector = Selector(text)
    return Filters(selector, bool(no_locals), tuple(selectors), tuple(no_locals))
