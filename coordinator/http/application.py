"""The application has the paths that are answered by HTTP (H19)."""

from __future__ import annotations

import hmac

from fastapi import Depends, FastAPI, Request, Response
from fastapi.responses import PlainTextResponse
from prometheus_client.exposition import choose_encoder
from starlette.exceptions import HTTPException

from coordinator.process.measuring import Measuring
from coordinator.process.metrics import registry

_METHODS = ["GET", "HEAD"]
_EXPECTED = {404: "/metrics, /healthz or /readyz", 405: "GET or HEAD", 505: "HTTP/1.0 or HTTP/1.1"}


def application(measuring: Measuring) -> FastAPI:
    """Return what answers requests with the last poll of ``measuring``."""
    app = FastAPI(openapi_url=None, redirect_slashes=False, dependencies=[Depends(_speaks_http_1)])
    app.add_exception_handler(HTTPException, _refused)

    @app.api_route("/metrics", methods=_METHODS)
    def metrics(request: Request) -> Response:
        if not _shows(request, measuring.token):
            told = {"WWW-Authenticate": 'Bearer realm="metrics"'}
            return PlainTextResponse("expected the token of metrics.token\n", 401, told)
        seen = measuring.figures()
        if seen is None:
            return PlainTextResponse("the store is not looked at yet\n", 503)
        encode, kind = choose_encoder(request.headers.get("Accept", ""))
        figures = registry(seen, measuring.workers, disk_low=measuring.disk_low)
        return Response(encode(figures), media_type=kind)

    @app.api_route("/healthz", methods=_METHODS)
    async def healthz() -> Response:
        return PlainTextResponse("ok\n")

    @app.api_route("/readyz", methods=_METHODS)
    async def readyz() -> Response:
        lines = measuring.wanting()
        return PlainTextResponse("".join(f"{line}\n" for line in lines or ["ok"]), 503 if lines else 200)

    return app


async def _speaks_http_1(request: Request) -> None:
    if request.scope["http_version"] not in ("1.0", "1.1"):
        raise HTTPException(505)


def _shows(request: Request, token: bytes | None) -> bool:
    """Return whether the request has the token; None: it needs none."""
    if token is None:
        return True
    kind, _, shown = request.headers.get("Authorization", "").partition(" ")
    return kind.lower() == "bearer" and hmac.compare_digest(shown.strip().encode(), token)


async def _refused(_request: Request, error: Exception) -> Response:
    """Answer another path or method, without quoting it."""
    assert isinstance(error, HTTPException)
    expected = _EXPECTED[error.status_code]
    return PlainTextResponse(f"expected {expected}\n", error.status_code, error.headers)
