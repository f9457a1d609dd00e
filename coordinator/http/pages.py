"""Pages are the console's HTML: templates, filled in with values of which each is text (S7)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import partial
from http import HTTPStatus
from pathlib import Path
from urllib.parse import urlencode

import jinja2
from fastapi import Request
from fastapi.responses import HTMLResponse
from markupsafe import Markup

from coordinator.address.addresses import GROUP_SEPARATOR
from coordinator.answers import about, plain
from coordinator.printable import printable
from coordinator.timeline import as_utc

ROOT = "/console"
FOLDER = Path(__file__).parent / "templates"

#: No value is longer on a page; what messages say is.
_LONGEST = 2000
_AGES = ((86400, "d"), (3600, "h"), (60, "min"))


def link(page: str, **query: object) -> str:
    """Return the URL of a page. What names a thing is in the query: in a path a browser would read ``..`` otherwise."""
    given = {name: value for name, value in query.items() if value is not None}
    return f"{ROOT}/{page}".removesuffix("/") + (f"?{urlencode(given)}" if given else "")


def page(request: Request, template: str, status: HTTPStatus = HTTPStatus.OK, **values: object) -> HTMLResponse:
    """Fill in a template. It knows ``session``, that of the request or None; ``operator``, who may act, or
    None; and ``here``, the request's path.
    """
    known = {name: getattr(request.state, name, None) for name in ("session", "operator")}
    made = _ENVIRONMENT.get_template(f"{template}.html.j2")
    return HTMLResponse(made.render(**known, here=request.url.path, **values), status)


def fragment(template: str, macro: str, *values: object) -> str:
    """Return the HTML of a macro."""
    return str(getattr(_ENVIRONMENT.get_template(f"{template}.html.j2").module, macro)(*values))


def _shown(value: object) -> object:
    """Make a value fit for a page, before it is escaped: without control characters, and not too long."""
    if isinstance(value, Markup):
        return value
    if value is None or value == "":
        return "\N{EN DASH}"
    if isinstance(value, Mapping):
        value = json.dumps(value, default=plain, ensure_ascii=False)
    return printable(value, _LONGEST) if isinstance(value, str) else value


def moment(at: datetime | None) -> object:
    """Show a time in UTC; local-times.js puts the browser's own beside it."""
    if at is None:
        return None
    return Markup('<time datetime="{}">{}</time>').format(at.astimezone(UTC).isoformat(), as_utc(at))


def _age(seconds: float | None) -> str | None:
    if seconds is None:
        return None
    size, unit = next(((size, unit) for size, unit in _AGES if seconds >= 2 * size), (1, "s"))
    return f"{seconds / size:,.0f} {unit}"


def _count(number: float | None) -> str | None:
    return None if number is None else f"{number:,.0f}"


def _lines(text: str) -> Markup:
    """Show a text whole, line by line, without other control characters."""
    return Markup("\n").join(map(printable, text.replace("\r\n", "\n").split("\n")))


def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(FOLDER),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_shown,
    )
    environment.filters.update(about=partial(about, digits=","), age=_age, count=_count, lines=_lines, moment=moment)
    environment.globals.update(link=link, separator=GROUP_SEPARATOR)
    return environment


_ENVIRONMENT = _environment()
