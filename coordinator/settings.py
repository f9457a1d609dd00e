"""The settings: flags, then the environment, then one TOML file, then the defaults below.

An environment variable is ``COORDINATOR_`` and the setting's path in capitals, its parts joined by two underscores:
``COORDINATOR_WORKERS``, ``COORDINATOR_TRANSACTION__TIMEOUT_SECONDS``. In TOML a dotted setting is a key of a table.
Sizes are bytes, or text with a unit: ``"64 MiB"``. One file because it is the list of all settings and how they are
read.
"""

from __future__ import annotations

import contextlib
import ipaddress
import itertools
import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ByteSize,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    NoDecode,
    SettingsConfigDict,
    SettingsError,
)

from coordinator.group.policies import IMMEDIATE, parse_retry
from coordinator.printable import printable
from coordinator.secret_file import FileInvalid, secret
from store.compiled import PURE_VARIABLE

PREFIX = "COORDINATOR_"
_NESTED = "__"
#: The variable that names the TOML file; not a setting.
CONFIG_VARIABLE = f"{PREFIX}CONFIG"
#: The variable with the token of an operator, for ``coordinator --url``; not a setting.
TOKEN_VARIABLE = f"{PREFIX}TOKEN"
#: Variables of the tests, ignored here.
_TESTS_PREFIX = f"{PREFIX}TEST_"

#: A hundred years.
MOST_HOURS = 876_000

KIB = 1024
MIB = 1024 * KIB


class SettingsInvalid(Exception):
    """Settings are unknown or wrong; one line for each, with its name, where it came from and what was expected."""


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)

    @field_validator("*", mode="before")
    @classmethod
    def _no_truth(cls, value: object) -> object:
        if isinstance(value, bool):
            raise ValueError("expected a number or a text, not true or false")
        return value


class Endpoint(_Section):
    """Where to listen."""

    host: str
    port: int
    scheme: str = "amqp"
    #: where WebSockets are taken; empty: the scheme has no path
    path: str = ""

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}{self.path}"

    @property
    def has_tls(self) -> bool:
        return self.scheme in ("amqps", "wss", "https")


#: The port where none is given, by scheme.
_PORTS = {"amqp": 5672, "amqps": 5671, "ws": 80, "wss": 443, "http": 9672, "https": 9672, "postgresql": 5432}
#: AMQP over WebSockets
WEBSOCKET = ("ws", "wss")
AMQP_OVER_TCP = ("amqp", "amqps")
AMQP = (*AMQP_OVER_TCP, *WEBSOCKET)
SQL = ("postgresql",)
HTTP = ("http", "https")


def endpoint(url: str, schemes: tuple[str, ...] = AMQP) -> Endpoint:
    """Parse ``amqp://host:port``, or the same of other schemes. The default port is the scheme's; 0: any free port.
    ``ws`` and ``wss`` have a path, ``/`` where none is given.

    :raises ValueError: saying what is wrong.
    """
    expected = "expected " + " or ".join(
        f"{scheme}://host:port{'/path' if scheme in WEBSOCKET else ''}" for scheme in schemes
    )
    if any(not character.isprintable() or character.isspace() for character in url):
        raise ValueError(f"spaces or control characters in it; {expected}")
    parts = urlsplit(url if "://" in url else f"//{url}")
    if parts.scheme not in schemes:
        raise ValueError(expected)
    try:
        port = parts.port
    except ValueError:
        raise ValueError(f"the port is not a number of 0 to 65535; {expected}") from None
    path = (parts.path or "/") if parts.scheme in WEBSOCKET else parts.path.removesuffix("/")
    wrong_path = not path.isascii() if parts.scheme in WEBSOCKET else path
    if not parts.hostname or wrong_path or parts.query or parts.fragment or "@" in parts.netloc:
        raise ValueError(expected)
    port = _PORTS[parts.scheme] if port is None else port
    return Endpoint(host=parts.hostname, port=port, scheme=parts.scheme, path=path)


def _shown(value: str) -> str:
    """Return ``value`` in a line, without the user and the password of a URL that stands in the wrong place (S8)."""
    return printable(re.sub("://.*@", "://...@", value, flags=re.DOTALL), 80)


def _commas(value: object) -> object:
    """Return a list from text, as an environment variable gives it."""
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


def _named(value: object) -> object:
    """A folder that is empty text, as of a variable that another gives, would be the current one."""
    if value == "":
        raise ValueError("expected a folder, and it is empty")
    return value


class LogSettings(_Section):
    """What is logged, and how; logs go to the standard error."""

    level: Annotated[
        Literal["debug", "info", "warning", "error"], Field(description="the least level that is logged")
    ] = "info"
    format: Annotated[
        Literal["auto", "console", "json"],
        Field(description="`console` for people, `json` for programs; `auto`: console on a terminal"),
    ] = "auto"


class TransactionSettings(_Section):
    """Limits of one transaction. Past a limit it is rolled back with a reason (T12, T33)."""

    timeout_seconds: Annotated[
        float, Field(gt=0, le=86400, description="time from the first work of a transaction to its discharge")
    ] = 120
    longest_timeout_seconds: Annotated[
        float,
        Field(
            gt=0, le=86400, description="the most that a client may ask for (link property `coordinator:timeout-ms`)"
        ),
    ] = 3600
    max_messages: Annotated[
        int, Field(ge=1, description="messages posted in one; to several consumer groups, each counts once a group")
    ] = 100_000
    max_bytes: Annotated[ByteSize, Field(ge=1, description="bytes of messages posted in one")] = ByteSize(256 * MIB)


class CheckSettings(_Section):
    """When checkers are asked about an undecided transaction that its client has left, or kept for too long (H7)."""

    immunity_seconds: Annotated[
        float,
        Field(
            ge=0,
            le=3600,
            description="time from the declare before which it is not checked; a client may ask for another "
            "(`coordinator:check-immunity-ms`), at most an hour",
        ),
    ] = 6
    interval_seconds: Annotated[
        float,
        Field(ge=0.001, le=86400, description="time from one check to the next, and from the last to the rollback"),
    ] = 30
    most: Annotated[
        int, Field(ge=1, le=1000, description="checks; after the last it is rolled back, its messages kept aside (H10)")
    ] = 15


class LimitSettings(_Section):
    """Limits of connections, links and queues."""

    max_message_size_bytes: Annotated[ByteSize, Field(ge=1, description="the largest message (part 2, 2.7.3)")] = (
        ByteSize(100 * MIB)
    )
    # 512: MIN-MAX-FRAME-SIZE (part 2, 2.8.19).
    max_frame_size_bytes: Annotated[
        ByteSize, Field(ge=512, le=2**32 - 1, description="the largest frame we take (part 2, 2.7.1)")
    ] = ByteSize(64 * KIB)
    idle_timeout_seconds: Annotated[
        float, Field(gt=0, description="a connection silent for longer is closed (part 2, 2.4.5)")
    ] = 60
    connections: Annotated[
        int, Field(ge=1, description="connections of one worker; some 30 kB of memory each, besides what they do")
    ] = 10_000
    connections_per_user: Annotated[int, Field(ge=1, description="connections of one user to one worker")] = 5000
    connections_per_address: Annotated[
        int,
        Field(
            ge=1,
            description="connections of one host to one worker; of IPv6 those of a network of 64 bits. Those behind a "
            "proxy are all of one host",
        ),
    ] = 5000
    spool_bytes: Annotated[
        ByteSize,
        Field(ge=1 * MIB, description="bytes of large messages in files; a file counts for 1 MiB at least"),
    ] = ByteSize(4096 * MIB)
    memory_bytes: Annotated[
        ByteSize | None,
        Field(
            ge=4 * MIB,
            description="bytes that clients can make one worker hold; none: a quarter of the machine's memory (or of "
            "the cgroup's), divided by the workers",
        ),
    ] = None
    disk_free_bytes: Annotated[
        ByteSize,
        Field(
            ge=0,
            description="with less free disk space for the embedded server, posts are refused",
        ),
    ] = ByteSize(256 * MIB)


def _retry(value: str) -> str:
    return parse_retry(value).text  # RetryInvalid says what was wrong


#: what an address takes (H1)
Kind = Literal["normal", "transaction", "fifo", "delay", "mixed"]


class AddressPattern(_Section):
    """Policies of the addresses whose names match."""

    match: Annotated[str, Field(min_length=1, description="a pattern of names: `*`, `?`, `[a-z]`; case counts")]
    routing: Annotated[
        Literal["queue", "topic"], Field(description="`queue`: consumers share; `topic`: each gets all")
    ] = "queue"
    kind: Annotated[
        Kind,
        Field(
            description="`transaction`: takes posts in transactions alone, which become checkable; `delay`: posts with "
            "a delivery time or delay alone; `fifo`: messages of one `group-id` go out in order, to one consumer at a "
            "time; `normal` and `mixed`: takes all"
        ),
    ] = "normal"
    on_expiry: Annotated[
        Literal["drop", "dead-letter"], Field(description="what becomes of a message whose ttl runs out")
    ] = "drop"
    max_attempts: Annotated[
        int, Field(ge=1, le=32767, description="failed deliveries, then a message moves to the dead letters")
    ] = 16
    retry: Annotated[
        str,
        AfterValidator(_retry),
        Field(
            description="how long a failed delivery waits before the next: `immediate`, `ladder` (RocketMQ's levels, "
            "from the third), `ladder 1s 10s 5m` (from its first), `exponential 1s 2 10m` (first, factor, longest)"
        ),
    ] = IMMEDIATE.text
    retention_hours: Annotated[
        int | None,
        Field(ge=1, le=MOST_HOURS, description="how long messages are kept once consumed; none: `retention.hours`"),
    ] = None


def _reachable(value: str) -> str:
    place = endpoint(value, AMQP_OVER_TCP)
    if not place.port:
        raise ValueError("the port is 0; expected the one where the service listens")
    return value


class AddressElsewhere(_Section):
    """Addresses that another service has, with a store of its own."""

    match: Annotated[str, Field(min_length=1, description="a pattern of names: `*`, `?`, `[a-z]`; case counts")]
    url: Annotated[
        str,
        AfterValidator(_reachable),
        Field(description="where clients reach that service: `amqp://host:port`, or `amqps://host:port`"),
    ]


class AddressSettings(_Section):
    """Which addresses are made when a client names them, and which another service has."""

    create: Annotated[
        Literal["on-use", "matching", "never"],
        Field(description="`on-use`: any; `matching`: those that match a pattern; `never`: by administration only"),
    ] = "on-use"
    patterns: Annotated[
        tuple[AddressPattern, ...], Field(description="the first that matches gives the address its policies")
    ] = ()
    here: Annotated[
        Annotated[str, AfterValidator(_reachable)] | None,
        Field(
            description="where clients reach this one of several services with one store: then a consumer of a group "
            "of which another of them has consumers is sent there (`amqp:link:redirect`). None: all serve it together"
        ),
    ] = None
    elsewhere: Annotated[
        tuple[AddressElsewhere, ...],
        Field(
            description="addresses of other services, each with a store of its own: the first that matches says where "
            "clients are sent (`amqp:link:redirect`)"
        ),
    ] = ()

    @field_validator("elsewhere")
    @classmethod
    def _once(cls, value: tuple[AddressElsewhere, ...]) -> tuple[AddressElsewhere, ...]:
        for number, each in enumerate(value):
            if each.match in (before.match for before in value[:number]):
                raise ValueError(f"{_shown(each.match)} is there twice, and the first counts; leave one out")
        return value


class RetentionSettings(_Section):
    """How long messages and decisions are kept; whole days (UTC) are dropped (H16). Undelivered messages stay. How long
    the inbox of applications and the audit are.
    """

    hours: Annotated[
        float,
        Field(gt=0, le=MOST_HOURS, description="messages, after they were consumed; an address may have its own time"),
    ] = 72
    decisions_hours: Annotated[
        float, Field(gt=0, le=MOST_HOURS, description="decisions; clients can ask for an outcome as long (T11)")
    ] = 720
    messages_bytes: Annotated[
        ByteSize,
        Field(
            ge=0,
            description="what messages may take in the store, consumed or not; beyond it the oldest days of consumed "
            "ones are dropped before their time, but never today's. 0: no limit",
        ),
    ] = ByteSize(0)
    inbox_hours: Annotated[
        float,
        Field(
            gt=0,
            le=MOST_HOURS,
            description="what applications have told to `coordinator.first_time` (X4), and the delivery-tags of "
            "producers (P22); a message that comes again later is taken for a new one",
        ),
    ] = 720
    audit_hours: Annotated[
        float,
        Field(ge=720, le=MOST_HOURS, description="rows of the audit, 30 days at least (S10); `coordinator audit`"),
    ] = 8760

    @model_validator(mode="after")
    def _decisions_last(self) -> RetentionSettings:
        if self.decisions_hours < self.hours:
            raise ValueError("decisions_hours: expected no less than hours; decisions outlive their messages")
        return self


class LoginSettings(_Section):
    """Who may come in (S1)."""

    anonymous: Annotated[
        Literal["loopback", "always", "never"],
        Field(
            description="where clients may come in without a login: `loopback`: at addresses that only this machine "
            "can connect to; `always`: everywhere; `never`"
        ),
    ] = "loopback"
    plain: Annotated[
        Literal["tls", "always"],
        Field(
            description="where clients may send their password itself (SASL `PLAIN`), or a token: `tls`: behind TLS; "
            "`always`: in plain text, too"
        ),
    ] = "tls"


class TokenSettings(_Section):
    """By whose tokens clients may log in, and operators use the API (S13): JSON Web Tokens of one issuer."""

    issuer: Annotated[
        str | None,
        Field(
            min_length=1,
            description="who issues the tokens by which clients may log in (SASL `OAUTHBEARER`, `XOAUTH2`), as their "
            "claim `iss` has it; an `https://` URL, where its keys are found by OpenID Connect; none: no tokens",
        ),
    ] = None
    audience: Annotated[
        str | None,
        Field(min_length=1, description="whom the tokens have to be for: this service, as their claim `aud` has it"),
    ] = None
    keys: Annotated[
        Path | None,
        Field(description="file with the issuer's public keys (JWKS), in place of those that it publishes"),
    ] = None
    user_claim: Annotated[str, Field(min_length=1, description="the claim with the name of the user")] = "sub"
    roles_claim: Annotated[
        str,
        Field(
            min_length=1,
            description="the claim with the roles, a list or one text with spaces; inside another claim it is named "
            "with a dot: `realm_access.roles`",
        ),
    ] = "roles"
    operator_role: Annotated[
        str | None,
        Field(min_length=1, description="role by which a token is one of an operator at `/api/v1`; none: none is"),
    ] = None
    reader_role: Annotated[
        str | None,
        Field(min_length=1, description="role by which a token may read there, and at `/console`; none: none may"),
    ] = None

    @property
    def configuration_url(self) -> str:
        """Where the issuer says what it has (OpenID Connect Discovery, section 4)."""
        return f"{(self.issuer or '').rstrip('/')}/.well-known/openid-configuration"

    @model_validator(mode="after")
    def _whole(self) -> TokenSettings:
        if self.issuer is None:
            if self != TokenSettings.model_construct():
                raise ValueError("expected issuer as well; without it no token counts")
            return self
        if self.audience is None:
            raise ValueError("audience: expected with issuer; else tokens for other services would count here")
        if self.keys is None and not is_safe_url(self.issuer):
            raise ValueError("issuer: expected https://..., or keys: anybody on the way could change keys by http://")
        return self


def is_safe_url(url: str) -> bool:
    """Whether what is read there is from the host that the URL names: by HTTPS, or from this machine."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
        here = host == "localhost" or _is_loopback(host)
        return (parts.scheme == "https" and bool(host)) or (parts.scheme == "http" and here)
    except ValueError:
        return False


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class TlsSettings(_Section):
    """TLS of `amqps://` and `wss://` (S2); SIGHUP has the files read again, for connections from then on."""

    certificate: Annotated[
        Path | None,
        Field(description="file with the service's certificate, and those up to its authority, PEM"),
    ] = None
    key: Annotated[Path | None, Field(description="file with its key, PEM, which not all users may read")] = None
    client_ca: Annotated[
        Path | None,
        Field(
            description="file with the authorities whose clients may log in by certificate (SASL `EXTERNAL`), PEM; "
            "none: no client is asked for one"
        ),
    ] = None
    client_certificates: Annotated[
        Literal["asked", "required"],
        Field(description="with `tls.client_ca`, whether TLS ends where a client shows no certificate"),
    ] = "asked"


_ORIGIN = re.compile(r"(https?)://(?:[a-z0-9._-]+|\[[0-9a-f:.]+\])(?::([0-9]{1,5}))?", re.IGNORECASE)
#: which browsers leave out
_USUAL_PORTS = {"http": "80", "https": "443"}


def _origin(value: str) -> str:
    """:raises ValueError: it is no origin of web pages."""
    found = _ORIGIN.fullmatch(value)
    if found is None:
        raise ValueError("expected http://host or https://host:port, as browsers send it in Origin")
    if found[2] == _USUAL_PORTS[found[1].lower()]:
        raise ValueError(f"expected it without its usual port {found[2]}, as browsers send it in Origin")
    return value.lower()


class WebSocketSettings(_Section):
    """Web pages that connect at `ws://` and `wss://` (S14)."""

    origins: Annotated[
        tuple[Annotated[str, AfterValidator(_origin)], ...],
        NoDecode,
        BeforeValidator(_commas),
        Field(
            description="where web pages may come from that connect, such as `https://shop.example`; none: no page "
            "may, as one of any site could reach the ports that its reader's browser can"
        ),
    ] = ()


class MetricsSettings(_Section):
    """Metrics for Prometheus, and whether the service is healthy and ready, by HTTP."""

    listen: Annotated[
        str | None,
        Field(
            description="where `/metrics`, `/healthz`, `/readyz`, `/api/v1` and `/console` are answered: "
            "`http://127.0.0.1:9672`, or `https://host:port` by the certificate of `tls`; none: nowhere. In plain text "
            "`/api/v1` and `/console` are answered at addresses alone that only this machine can connect to"
        ),
    ] = None
    token: Annotated[
        Path | None,
        Field(
            description="file with what those who ask for `/metrics`, `/api/v1` (`Authorization: Bearer ...`) and "
            "`/console` must show, which not all users may read; none: nothing"
        ),
    ] = None
    operators: Annotated[
        Path | None,
        Field(
            description="file with who may act by `/api/v1` and `/console`, and use them from other machines where "
            "`listen` is `https://`: a line `NAME TOKEN` each, which not all users may read; the audit has the name; "
            "none: nobody"
        ),
    ] = None
    anonymous: Annotated[
        Literal["loopback", "always"],
        Field(
            description="where `/metrics` may be answered without `metrics.token`, and in plain text: `loopback`: at "
            "addresses that only this machine can connect to; `always`: everywhere"
        ),
    ] = "loopback"

    @property
    def has_tls(self) -> bool:
        return self.listen is not None and endpoint(self.listen, HTTP).has_tls

    @field_validator("listen")
    @classmethod
    def _endpoint(cls, value: str | None) -> str | None:
        if value is not None:
            endpoint(value, HTTP)
        return value


class TraceSettings(_Section):
    """Traces of OpenTelemetry: spans of what clients ask for, sent to a collector by OTLP over HTTP."""

    endpoint: Annotated[
        str | None,
        Field(
            description="where a collector takes spans: `http://127.0.0.1:4318`, or `https://host`; without a path "
            "`/v1/traces`. None: there are no spans"
        ),
    ] = None
    sample: Annotated[
        float,
        Field(
            ge=0,
            le=1,
            description="the part of transactions, and of posts outside, that are traced where no message says whether "
            "they are; a `traceparent` says so by its flag `sampled`",
        ),
    ] = 0.01
    headers: Annotated[
        Path | None,
        Field(
            description="file with headers for the collector, such as a key: a line `Name: value` each, which not all "
            "users may read"
        ),
    ] = None

    @property
    def url(self) -> str:
        """Where spans are sent; empty: nowhere."""
        parts = urlsplit(self.endpoint or "")
        return parts._replace(path=parts.path if parts.path not in ("", "/") else "/v1/traces").geturl()

    @field_validator("endpoint")
    @classmethod
    def _endpoint(cls, value: str | None) -> str | None:
        if value is None:
            return None
        with contextlib.suppress(ValueError):
            parts = urlsplit(value)
            plain = value.isascii() and value.isprintable() and " " not in value
            more = parts.query or parts.fragment or "@" in parts.netloc
            if parts.scheme in HTTP and parts.hostname and parts.port != 0 and plain and not more:
                return value
        raise ValueError("expected http://host:port or https://host:port/path, without a user (traces.headers)")

    @model_validator(mode="after")
    def _safe(self) -> TraceSettings:
        if self.headers is not None and self.endpoint is None:
            raise ValueError("headers: expected endpoint as well; without it there are no spans")
        if self.headers is not None and not is_safe_url(self.url):
            raise ValueError("endpoint: expected https://... with headers: anybody on the way could read them")
        return self


_URL = "postgresql://user:password@host:port/database"
_URL_BEGINS = ("postgresql://", "postgres://")


class Settings(_Section):
    """All settings, checked."""

    listen: Annotated[
        tuple[str, ...],
        NoDecode,
        BeforeValidator(_commas),
        Field(
            min_length=1,
            description="where clients connect: `amqp://`, `amqps://`, and `ws://host:port/path`, `wss://` for AMQP "
            "over WebSockets; port 0: any free one. `postgresql://127.0.0.1:5433`: where applications reach the "
            "embedded server in SQL",
        ),
    ] = ("amqp://127.0.0.1:5672",)
    database_url: Annotated[
        SecretStr | None,
        Field(
            description="a PostgreSQL server, `postgresql://user:password@host:port/database`; none: the embedded one"
        ),
    ] = None
    database_url_file: Annotated[
        Path | None,
        Field(
            description="file with the `database_url`, which not all users may read: a secret of a container, a "
            "credential of systemd"
        ),
    ] = None
    data_dir: Annotated[
        Path | None,
        BeforeValidator(_named),
        Field(
            description="folder of the embedded server; none: `/var/lib/coordinator` or `$XDG_STATE_HOME/coordinator`"
        ),
    ] = None
    copy_before_migrating: Annotated[
        Literal["always", "never"],
        Field(
            description="whether the service copies the store of the embedded server, as `copies/VERSION` in its "
            "folder, before it migrates it to this version; the last copy is kept: it is the way back"
        ),
    ] = "always"
    workers: Annotated[int, Field(ge=1, le=256, description="processes that share the port; each takes a core")] = 1
    run_as: Annotated[
        str | None,
        Field(
            min_length=1,
            description="user of the operating system that the service becomes where root starts it, before it opens "
            "anything; none: it stays root, and says so",
        ),
    ] = None
    log: LogSettings = LogSettings()
    transaction: TransactionSettings = TransactionSettings()
    check: CheckSettings = CheckSettings()
    login: LoginSettings = LoginSettings()
    tokens: TokenSettings = TokenSettings()
    tls: TlsSettings = TlsSettings()
    websocket: WebSocketSettings = WebSocketSettings()
    limits: LimitSettings = LimitSettings()
    addresses: AddressSettings = AddressSettings()
    retention: RetentionSettings = RetentionSettings()
    metrics: MetricsSettings = MetricsSettings()
    traces: TraceSettings = TraceSettings()

    @field_validator("listen")
    @classmethod
    def _endpoints(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        schemes = []
        for url in value:
            try:
                place = endpoint(url, AMQP + SQL)
                if place.scheme in SQL:
                    _check_applications(place)
            except ValueError as error:
                raise ValueError(f"{_shown(url)}: {error}") from None
            schemes.append(place.scheme)
        if not set(schemes) & set(AMQP):
            raise ValueError("expected amqp://host:port or amqps://host:port as well, for clients")
        if schemes.count("postgresql") > 1:
            raise ValueError("expected postgresql://host:port once")
        return value

    @field_validator("addresses")
    @classmethod
    def _others(cls, value: AddressSettings, info: ValidationInfo) -> AddressSettings:
        here = [endpoint(url, AMQP + SQL) for url in info.data.get("listen", ())]
        for number, each in enumerate(value.elsewhere):
            name, other = f"elsewhere.{number}.url: {_shown(each.url)}", endpoint(each.url)
            if value.here is not None and other == endpoint(value.here):
                raise ValueError(f"{name} is this service itself, by addresses.here; expected the URL of another")
            if any(_is_same(other, place) for place in here):
                raise ValueError(f"{name} is this service itself, by listen; expected the URL of another")
            if here and other.scheme not in {place.scheme for place in here}:
                raise ValueError(
                    f"{name}: this service does not listen at {other.scheme}://, and clients that it sends there come "
                    "as they have come here; expected a URL such as those of listen"
                )
        return value

    @property
    def clients(self) -> tuple[str, ...]:
        """Return where clients connect."""
        return tuple(url for url in self.listen if endpoint(url, AMQP + SQL).scheme in AMQP)

    @property
    def applications(self) -> Endpoint | None:
        """Return where applications reach the embedded server; None: nowhere."""
        places = (endpoint(url, AMQP + SQL) for url in self.listen)
        return next((place for place in places if place.scheme in SQL), None)

    @property
    def has_tls(self) -> bool:
        return any(endpoint(url).has_tls for url in self.clients) or self.metrics.has_tls

    @field_validator("database_url")
    @classmethod
    def _database_url(cls, value: SecretStr | None, info: ValidationInfo) -> SecretStr | None:
        if value is None:
            return None
        if not value.get_secret_value().startswith(_URL_BEGINS):
            raise ValueError(f"expected {_URL}")
        if any(url.startswith("postgresql:") for url in info.data.get("listen", ())):
            raise ValueError("listen has postgresql://, which is for the embedded server; leave one out")
        return value


def _check_applications(place: Endpoint) -> None:
    """:raises ValueError: other machines could connect there, or the port is not said."""
    with contextlib.suppress(ValueError):
        if place.port and (place.host == "localhost" or ipaddress.ip_address(place.host).is_loopback):
            return
    raise ValueError(
        "the embedded server listens on this machine alone, expected postgresql://127.0.0.1:port; for others take a"
        " PostgreSQL of yours (database_url)"
    )


#: where a service listens that takes connections at all addresses of its machine
_EVERYWHERE = ("0.0.0.0", "::")  # noqa: S104 - nothing is bound here


def _is_same(other: Endpoint, listens: Endpoint) -> bool:
    """Whether ``other`` is where the service ``listens``, as far as its host says."""
    host, here = (place.host.replace("localhost", "127.0.0.1") for place in (other, listens))
    return other.port == listens.port and (host == here or (here in _EVERYWHERE and _is_loopback(host)))


class _Variables(Settings, BaseSettings):
    """Says to pydantic-settings which variables there are; only they are read with it."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, env_nested_delimiter=_NESTED)


def load(flags: Mapping[str, Any] | None = None, config: Path | None = None) -> Settings:
    """Return the settings of this process.

    ``flags``: what the command line gave, by setting; ``config``: the TOML file, else the one of
    ``COORDINATOR_CONFIG``.

    :raises SettingsInvalid: naming each setting that is wrong and where it came from.
    """
    given = {name: value for name, value in (flags or {}).items() if value is not None}
    if config is None and os.environ.get(CONFIG_VARIABLE):
        config = Path(os.environ[CONFIG_VARIABLE])
    file = {} if config is None else _with_its_url(_read(config), f"settings file {config}")
    environment = _with_its_url(_environment(), "environment")
    try:
        return Settings.model_validate(_merged(file, environment, given))
    except ValidationError as error:
        raise SettingsInvalid(
            "\n".join(_explain(item, given, environment, config) for item in error.errors())
        ) from None


def _read(config: Path) -> dict[str, Any]:
    try:
        with config.open("rb") as stream:
            return tomllib.load(stream)
    except OSError as error:
        raise SettingsInvalid(f"settings file {config}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsInvalid(f"settings file {config} is not TOML: {error}") from None


def _with_its_url(layer: dict[str, Any], source: str) -> dict[str, Any]:
    """Return the layer with the database's URL from the file that it names; a later layer's wins."""
    path = layer.get("database_url_file")
    if not isinstance(path, str):
        return layer
    if "database_url" in layer:
        raise SettingsInvalid(f"{source}: database_url, database_url_file: expected one of the two")
    try:
        url = secret("database_url_file", Path(path)).decode("utf-8", "replace").strip()
    except FileInvalid as error:
        raise SettingsInvalid(f"{source}: {error}") from None
    if not url.startswith(_URL_BEGINS):
        raise SettingsInvalid(f"{source}: database_url_file: {path}: expected {_URL} in it")
    return {**layer, "database_url": url}


def _environment() -> dict[str, Any]:
    unknown = sorted(name for name in os.environ if name.startswith(PREFIX) and not _known_variable(name))
    if unknown:
        raise SettingsInvalid("\n".join(f"environment variable {name}: there is no such setting" for name in unknown))
    if os.environ.get(PURE_VARIABLE, "0") not in ("0", "1"):
        raise SettingsInvalid(f"environment variable {PURE_VARIABLE}: 1 or 0 was expected")
    try:
        return EnvSettingsSource(_Variables)()
    except SettingsError as error:
        # It names the top field only, and its text may hold the value.
        field = str(error).partition('"')[2].partition('"')[0]
        raise SettingsInvalid(
            f"environment variable {PREFIX}{field.upper()} (or a part of it): it cannot be read; expected JSON"
        ) from None


def _known_variable(name: str) -> bool:
    if name in (CONFIG_VARIABLE, TOKEN_VARIABLE, PURE_VARIABLE) or name.startswith(_TESTS_PREFIX):
        return True
    field = Settings.model_fields.get(name.removeprefix(PREFIX).split(_NESTED)[0].lower())
    return field is not None


def _merged(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Merge layers: later ones win; tables are merged, everything else is replaced."""
    result: dict[str, Any] = {}
    for layer in layers:
        for name, value in layer.items():
            below = result.get(name)
            both = isinstance(below, Mapping) and isinstance(value, Mapping)
            result[name] = _merged(below, value) if both else value  # type: ignore[arg-type]
    return result


def _explain(
    item: Mapping[str, Any], flags: Mapping[str, Any], environment: Mapping[str, Any], config: Path | None
) -> str:
    path: tuple[int | str, ...] = item["loc"]
    name = ".".join(_shown(str(part)) for part in path)
    # A list is given as a whole.
    parts = [str(part) for part in itertools.takewhile(lambda part: isinstance(part, str), path)]
    if _has(flags, path[:1]):
        source = "flag --" + "-".join(parts).replace("_", "-")
    elif _has(environment, path):
        source = "environment variable " + PREFIX + _NESTED.join(parts).upper()
    else:
        source = f"settings file {config}"
    if item["type"] == "extra_forbidden":
        return f"{source}: {name}: there is no such setting"
    if item["type"] == "model_type":
        return f"{source}: {name}: expected a table of settings"
    message = str(item["msg"]).removeprefix("Value error, ")
    secret = path[0] == "database_url"
    value = "" if secret or item["type"] in ("missing", "value_error") else f", not {_shown(repr(item['input']))}"
    return f"{source}: {name}: {message}{value}"


def _has(layer: Any, path: tuple[int | str, ...]) -> bool:
    for part in path:
        try:
            layer = layer[part]
        except (KeyError, IndexError, TypeError):
            return False
    return True
