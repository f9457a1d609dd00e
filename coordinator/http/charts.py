"""Charts are small pictures of recent figures, made here as SVG, each with a sentence that says the same."""

from __future__ import annotations

from itertools import groupby
from typing import NamedTuple

from coordinator.process.recent import Recent, Series

#: of a picture, in its own units
WIDTH, HEIGHT = 240, 48
#: what a picture covers at least
_SHORTEST_SECONDS = 60.0


class Chart(NamedTuple):
    """``now``: the last value; ``text``: what the picture shows; ``lines``: the points of each, as SVG has them; where
    a value is missing, another one begins.
    """

    title: str
    now: str
    text: str
    lines: list[str]


def charts(recent: Recent) -> list[Chart]:
    """Return the pictures of the overview."""
    return [
        _chart("Commits a second", recent.rates(lambda seen: seen.commits, lambda seen: seen.at)),
        _chart("Rollbacks a second", recent.rates(lambda seen: seen.rollbacks, lambda seen: seen.at)),
        _chart(
            "Milliseconds that a batch takes to commit",
            recent.rates(lambda seen: 1000 * seen.seconds, lambda seen: seen.batches),
        ),
        _chart("Messages that wait", recent.values(lambda seen: seen.waiting)),
        _chart("Undecided transactions", recent.values(lambda seen: seen.undecided)),
        _chart("Dead letters", recent.values(lambda seen: seen.letters)),
    ]


def _chart(title: str, series: Series) -> Chart:
    known = [value for _, value in series if value is not None]
    now = _shown(series[-1][1]) if series else _shown(None)
    if not known:
        return Chart(title, now, f"{title}: not known yet", [])
    span = max(series[0][0], _SHORTEST_SECONDS)
    text = f"{title}: {now}; in the last {span / 60:.0f} min {_shown(min(known))} to {_shown(max(known))}"
    top = max(known) or 1.0
    runs = (list(run) for there, run in groupby(series, lambda each: each[1] is not None) if there)
    return Chart(title, now, text, [_line(run, top, span) for run in runs])


def _line(run: Series, top: float, span: float) -> str:
    points = [
        f"{WIDTH * (1 - age / span):.1f},{HEIGHT - 2 - (HEIGHT - 4) * (value or 0.0) / top:.1f}" for age, value in run
    ]
    return " ".join(points if len(points) > 1 else 2 * points)  # of one point alone a line shows nothing


def _shown(value: float | None) -> str:
    if value is None:
        return "not known"
    return f"{value:,.0f}" if value >= 10 or value == round(value) else f"{value:.1f}"
