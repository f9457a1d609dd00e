"""The filters of a source (part 3, section 3.5.8) that this service knows: JMS selectors and no-local (rule P16).

Both are described values under a key of the client's choice, by the descriptors of the registry "AMQP Capabilities,
filters": ``apache.org:selector-filter:string`` and ``apache.org:no-local-filter:list``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from coordinator.codec.selectors import Selector
from coordinator.errors import Condition, Refusal
from links import engine
from store.codec.encoding import DecodeError, decode, encode_map, pairs
from store.codec.values import Described, Symbol

_SELECTOR = ("apache.org:selector-filter:string", 0x0000_468C_0000_0004)
_NO_LOCAL = ("apache.org:no-local-filter:list", 0x0000_468C_0000_0003)


@dataclass(frozen=True, slots=True)
class Filters:
    """The known filters that a client asked for. ``selector``: None if it is missing or empty."""

    selector: Selector | None = None
    no_local: bool = False
    #: encoded keys and values, as the client sent them
    _selectors: tuple[bytes, ...] = ()
    _no_locals: tuple[bytes, ...] = ()

    @property
    def text(self) -> str:
        """The selector's text; empty if every message matches."""
        return "" if self.selector is None else self.selector.text

    def without_no_local(self) -> Filters:
        """For a source that cannot honour no-local: the answer leaves it out, so the client knows (section 3.5.3)."""
        return replace(self, no_local=False, _no_locals=())

    def answer(self) -> bytes:
        """The encoded filter set of the answer: the honoured filters, unchanged; empty if there are none."""
        honoured = [*self._selectors, *self._no_locals]
        return encode_map(honoured) if honoured else b""


def any_asked(source: engine.Pointer) -> bool:
    """Whether the source has filters, which take time to read."""
    return bool(engine.data_encoded_size(engine.terminus_filter(source)))


def asked(source: engine.Pointer, selector: Callable[[str], Selector]) -> Filters:
    """The known filters of a source. Refusal if one cannot be read, or if there are two selectors. ``selector``
    compiles the text of one.
    """
    try:
        return known(engine.encoded(engine.terminus_filter(source)), selector)
    except DecodeError as error:
        raise Refusal(Condition.DECODE_ERROR, f"the filter of the source: {error}") from None


def known(octets: bytes, selector: Callable[[str], Selector] = Selector) -> Filters:
    """The known filters of an encoded filter set. DecodeError if it is malformed."""
    if octets[:1] not in (b"\xc1", b"\xd1"):
        return Filters()
    texts: list[object] = []
    selectors: list[bytes] = []
    no_locals: list[bytes] = []
    for _, pair in pairs(octets, 0):
        _, at = decode(pair)
        value, _ = decode(pair, at)
        if isinstance(value, Described):
            if value.descriptor in _SELECTOR:
                texts.append(value.value)
                selectors.append(pair)
            elif value.descriptor in _NO_LOCAL:
                no_locals.append(pair)
    if len(texts) > 1:
        raise Refusal(Condition.INVALID_FIELD, f"the source has {len(texts)} selectors, one was expected")
    found = None
    if texts:
        text = texts[0]
        if not isinstance(text, str) or isinstance(text, Symbol):
            raise Refusal(
                Condition.INVALID_FIELD, f"the selector is of type {type(text).__name__}, a string was expected"
            )
        if text.strip():
            found = selector(text)
    return Filters(found, bool(no_locals), tuple(selectors), tuple(no_locals))
