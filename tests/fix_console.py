"""An operator at the console: logs in, reads pages, and follows all their links; and a store that has some of all that
they show.
"""

from __future__ import annotations

import gzip
import json
import re
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from html import unescape
from html.parser import HTMLParser
from http.client import HTTPMessage
from http.cookiejar import CookieJar
from ssl import SSLContext
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest

from coordinator.printable import printable
from store import runs
from store.database import connected
from store.embedded.running import running_url
from tests.acceptance import api
from tests.fix_service import PATIENCE, Service
from tests.wire.frames import Accepted, Error, Rejected
from tests.wire.messages import Properties, data
from tests.wire.peer import Peer
from tests.wire.queues import dead_letters, later
from tests.wire.types import Symbol

#: what a run has for its report
REPORT = b"<!doctype html><title>Reconciliation</title><script>document.title += ' ran'</script>"
#: of an operator
TOKEN = api.OPERATOR
#: connections are listed at once
BRIEF: dict[str, object] = {"coordinator.connection_list.SCAN_SECONDS": 0.1}

#: What has no end tag.
_VOID = ("meta", "link", "input")


@pytest.fixture(scope="session")
def token_settings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Of a service with the console, on a port of its own."""
    return api.settings(tmp_path_factory.mktemp("console"))


class Page(HTMLParser):
    """An answer, and what its HTML is made of."""

    def __init__(self, path: str, status: int, headers: HTTPMessage, html: str) -> None:
        super().__init__()
        self.path, self.status, self.headers, self.html = path, status, headers, html
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        #: each with the element that it is in
        self.texts: list[tuple[str, str]] = []
        self._open: list[str] = []
        self.feed(html)
        self.close()
        assert self._open == [], f"{path}: not closed"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in _VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag, f"{self.path}: {tag}"

    def handle_data(self, data: str) -> None:
        self.texts.append((self._open[-1] if self._open else "", data))

    def all_of(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]

    def text(self, tag: str | None = None) -> str:
        """Of all elements, or of these."""
        return " ".join(text for name, text in self.texts if tag in (None, name))

    @property
    def hidden(self) -> dict[str, str]:
        """What its forms send that no one writes; ``form`` is the word of the session."""
        return {
            each["name"] or "": each["value"] or "" for each in self.all_of("input") if each.get("type") == "hidden"
        }

    @property
    def links(self) -> list[str]:
        """Paths of other pages, with their queries."""
        return [
            path
            for each in self.all_of("a")
            if not each.keys() & {"download", "target"} and not (path := each["href"] or "").startswith("#")
        ]

    @property
    def following(self) -> str | None:
        """The path of the next page of a list."""
        return next((each["href"] for each in self.all_of("a") if each.get("rel") == "next"), None)


class Operator:
    """With a browser of their own: ``ask`` follows redirects, and keeps cookies."""

    def __init__(self, service: Service, tls: SSLContext | None = None) -> None:
        *_, line = (line for line in service.log_lines() if line.get("event") == "metrics")
        self.place: str = line["listen"][0]
        self.cookies = CookieJar()
        handlers: list[urllib.request.BaseHandler] = [urllib.request.HTTPCookieProcessor(self.cookies)]
        if tls is not None:
            handlers.append(urllib.request.HTTPSHandler(context=tls))
        self._opener = urllib.request.build_opener(*handlers)

    def ask(self, path: str, form: dict[str, str] | None = None, **headers: str) -> Page:
        body = None if form is None else urlencode(form).encode()
        request = urllib.request.Request(f"{self.place}{path}", body, headers)
        try:
            answer = self._opener.open(request, timeout=PATIENCE)
        except urllib.error.HTTPError as error:
            answer = error
        with answer:
            place = urlsplit(answer.url)
            asked = place.path + (f"?{place.query}" if place.query else "")
            read = answer.read()
            html = gzip.decompress(read) if answer.headers["Content-Encoding"] == "gzip" else read
            return Page(asked, answer.status, answer.headers, html.decode())

    def raw(self, path: str) -> str:
        """What is no page."""
        with self._opener.open(f"{self.place}{path}", timeout=PATIENCE) as answer:
            text: str = answer.read().decode()
            return text

    @contextmanager
    def events(self) -> Iterator[Iterator[dict[str, str]]]:
        """What an open page is told: HTML by the names of elements, event by event."""
        with self._told() as answer:
            assert answer.headers["Content-Type"].startswith("text/event-stream")
            yield (json.loads(line[6:]) for line in answer if line.startswith(b"data: "))

    def _told(self) -> Any:
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                return self._opener.open(f"{self.place}/console/events", timeout=PATIENCE)
            except urllib.error.HTTPError as error:  # a page that was closed just now may still count
                if error.code != 503 or time.monotonic() > deadline:
                    raise
                error.close()

    def log_in(self, to: str = "/console", token: str = TOKEN) -> Page:
        return self.ask("/console/login", {"token": token, "to": to})

    def sent(self, path: str, **fields: str) -> Page:
        """What the form of a page answers, filled in; what a person sees there stays as it is."""
        return self.answer(self.ask(path), **fields)

    def answer(self, page: Page, **fields: str) -> Page:
        """As :meth:`sent`, for a page that is there already."""
        (form,) = (each for each in page.all_of("form") if each.get("class") == "act")
        return self.ask(form["action"] or "", {**page.hidden, **fields})

    def crawl(self) -> dict[str, Page]:
        """Follow all links; each page by its path. All must be there."""
        first = self.log_in()
        found, left = {first.path: first}, list(first.links)
        while left:
            path = left.pop()
            if path not in found:
                page = found[path] = self.ask(path)
                assert page.status == 200, (path, page.html)
                left += page.links
        return found


def kinds(pages: dict[str, Page]) -> set[str]:
    """The paths, without what the query says of which."""
    return {urlsplit(path).path.removeprefix("/console").removeprefix("/") for path in pages}


def of_query(path: str, name: str) -> str:
    return parse_qs(urlsplit(path).query)[name][0]


def fill(service: Service, *values: str) -> ExitStack:
    """Have a client for each value, which uses it as the name of all that it names; they stay until the stack is
    closed. Of each there are a connection, an undecided transaction, a dead letter; and rows of the audit.
    """
    stack = ExitStack()
    for value in values:
        peer = Peer(service.port)
        stack.callback(peer.close_socket)
        name = value.replace("\0", "")
        peer.open(container_id=name, properties={Symbol("product"): value})
        session = peer.begin()
        message = Properties(message_id=value, subject=value, group_id=value).encoded() + data(b"x")
        sender, of_its_name = session.sender("orders"), session.sender(value, name=name)
        if of_its_name.answer.target is not None:
            assert of_its_name.outcome(message) == Accepted()
            assert of_its_name.outcome(later(b"x", delay=3_600_000)) == Accepted()
        assert sender.outcome(message) == Accepted()
        error = Error(condition=Symbol("test:refused"), description=value)
        session.receiver("orders", credit=1).take().disposition(Rejected(error=error))
        dead_letters(session, "orders").detach()
        control = session.control(properties={Symbol("coordinator:producer-group"): printable(name)[:200]})
        session.sender("orders").outcome(message, txn=control.declare())
        service.cli("address", "set", "orders", "--max-attempts", "3")
        _store_run(service, name)
    return stack


def _store_run(service: Service, value: str) -> None:
    """Of a reconciliation, with a finding."""
    found = {"kind": "lost-message", "severity": "error", "address": "orders", "consumer_group": value}
    found |= {"detail": value, "suggested_repair": value}
    row = {**dict.fromkeys(runs.COLUMNS), **found}
    now = datetime.now(UTC)
    of = runs.Run(since=None, until=None, books=(printable(value),), seen_at=now, version="1.2.3")
    with connected(running_url(service.data_dir)) as connection:
        runs.store(connection, of, [row], report=gzip.compress(REPORT))


def until_listed(operator: Operator, count: int) -> None:
    """Wait until so many connections are in the list."""
    deadline = time.monotonic() + PATIENCE
    while operator.ask("/console/connections").html.count("/console/connection?id=") < count:
        assert time.monotonic() < deadline, "the connections are not listed"


def rows(operator: Operator, path: str) -> Iterator[list[str]]:
    """The first link of each row, page by page."""
    following: str | None = path
    while following is not None:
        page = operator.ask(following)
        assert page.status == 200, page.html
        yield [unescape(each) for each in re.findall(r'<tr>\s*<td><a href="([^"]*)"', page.html)]
        following = page.following


@pytest.fixture(scope="module")
def anna(service: Service) -> Operator:
    """An operator who has logged in to the module's service."""
    operator = Operator(service)
    operator.log_in()
    return operator
