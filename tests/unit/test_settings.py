"""Settings: layers, and an error that names the setting and where it came from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_type_hints

import pytest

from coordinator.commands.serve import serve
from coordinator.settings import Settings, SettingsInvalid, endpoint, load
from tests.tables import all_cases


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    for name in list(os.environ):
        if name.startswith("COORDINATOR_"):
            monkeypatch.delenv(name)


def test_defaults() -> None:
    settings = load()
    assert settings.listen == ("amqp://127.0.0.1:5672",)
    assert settings.database_url is None
    assert settings.workers == 1
    assert settings.transaction.timeout_seconds == 120
    assert settings.transaction.max_bytes == 256 * 1024 * 1024
    assert settings.limits.max_frame_size_bytes == 65536
    assert settings.addresses.create == "on-use"


def test_flags_win_over_environment_over_file_over_defaults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "c.toml"
    file.write_text("workers = 2\n[check]\nimmunity_seconds = 2\ninterval_seconds = 2\nmost = 2\n")
    monkeypatch.setenv("COORDINATOR_CHECK__INTERVAL_SECONDS", "3")
    monkeypatch.setenv("COORDINATOR_CHECK__MOST", "3")
    settings = load({"workers": None, "check": {"most": 4}}, file)
    assert settings.workers == 2
    assert settings.check.immunity_seconds == 2
    assert settings.check.interval_seconds == 3
    assert settings.check.most == 4
    assert settings.limits.connections == 10_000


def test_the_file_may_be_named_by_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "c.toml"
    file.write_text("workers = 7")
    monkeypatch.setenv("COORDINATOR_CONFIG", str(file))
    assert load().workers == 7


URL = "postgresql://coordinator:secret@db/coordinator"


def _with_url(folder: Path, text: str = URL + "\n", mode: int = 0o440) -> Path:
    file = folder / "database-url"
    file.write_text(text)
    file.chmod(mode)
    return file


def _url(settings: Settings) -> str:
    assert settings.database_url is not None
    return settings.database_url.get_secret_value()


def test_the_url_of_the_database_may_be_in_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tmp_path / "c.toml"
    config.write_text(f'database_url_file = "{_with_url(tmp_path)}"')
    assert _url(load(config=config)) == URL
    # As any other value: what comes later wins, and may itself be in a file.
    monkeypatch.setenv("COORDINATOR_DATABASE_URL", "postgresql://elsewhere/coordinator")
    assert _url(load(config=config)) == "postgresql://elsewhere/coordinator"
    monkeypatch.delenv("COORDINATOR_DATABASE_URL")
    config.write_text('database_url = "postgresql://elsewhere/coordinator"')
    monkeypatch.setenv("COORDINATOR_DATABASE_URL_FILE", str(_with_url(tmp_path)))
    assert _url(load(config=config)) == URL
    assert _url(load({"database_url": "postgresql://flag/coordinator"}, config)) == "postgresql://flag/coordinator"


@pytest.mark.rule("S8")
def test_a_file_that_cannot_have_the_url_is_named_and_not_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    variable = "COORDINATOR_DATABASE_URL_FILE"

    def said(text: str = URL, mode: int = 0o440) -> str:
        monkeypatch.setenv(variable, str(_with_url(tmp_path, text, mode)))
        with pytest.raises(SettingsInvalid) as refused:
            load()
        assert "secret" not in str(refused.value)
        return str(refused.value)

    assert "database_url_file: " in said(mode=0o444)
    assert "all users may read it (mode 444); expected 600" in said(mode=0o444)
    assert "expected postgresql://user:password@host:port/database in it" in said("mysql://coordinator:secret@db")
    monkeypatch.setenv("COORDINATOR_DATABASE_URL", URL)
    assert "environment: database_url, database_url_file: expected one of the two" in said()
    monkeypatch.delenv("COORDINATOR_DATABASE_URL")
    monkeypatch.setenv(variable, str(tmp_path / "absent"))
    with pytest.raises(SettingsInvalid, match=r"database_url_file: .*absent: No such file or directory"):
        load()


def test_sizes_may_have_units(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text('[transaction]\nmax_bytes = "1 MiB"')
    assert load(config=file).transaction.max_bytes == 1024 * 1024


def test_lists_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COORDINATOR_LISTEN", "amqp://a:1, amqp://[::1]:2")
    monkeypatch.setenv("COORDINATOR_ADDRESSES__PATTERNS", '[{"match": "t.*", "routing": "topic"}]')
    settings = load()
    assert settings.listen == ("amqp://a:1", "amqp://[::1]:2")
    assert settings.addresses.patterns[0].routing == "topic"


def test_where_applications_connect_is_apart_from_where_clients_do() -> None:
    settings = load({"listen": ["postgresql://[::1]:5433", "amqp://a:1"]})
    assert settings.clients == ("amqp://a:1",)
    assert str(settings.applications) == "postgresql://[::1]:5433"
    assert load({"listen": ["amqp://a:1"]}).applications is None
    with pytest.raises(SettingsInvalid, match="database_url: listen has postgresql://, which is for the embedded"):
        load({"listen": ["postgresql://[::1]:5433", "amqp://a:1"], "database_url": "postgresql://db/secret"})


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("COORDINATOR_WORKER", "1", "environment variable COORDINATOR_WORKER: there is no such setting"),
        ("COORDINATOR_WORKERS", "many", "environment variable COORDINATOR_WORKERS: workers: .*integer.*not 'many'"),
        ("COORDINATOR_WORKERS", "0", "COORDINATOR_WORKERS: workers: .*greater than or equal to 1, not '0'"),
        ("COORDINATOR_CHECK__MOST", "1001", "check.most: .*less than or equal to 1000, not '1001'"),
        (
            "COORDINATOR_TRANSACTION__TIMEOUT",
            "1",
            "environment variable COORDINATOR_TRANSACTION__TIMEOUT: transaction.timeout: there is no such setting",
        ),
        ("COORDINATOR_LISTEN", "https://a:1", "https://a:1: expected amqp://host:port or amqps://host:port"),
        ("COORDINATOR_LISTEN", "amqp://a:b", "COORDINATOR_LISTEN: listen: amqp://a:b: the port is not a number"),
        ("COORDINATOR_LISTEN", "", "COORDINATOR_LISTEN: listen: .*at least 1 item"),
        ("COORDINATOR_LISTEN", "amqp://a,postgresql://0.0.0.0:5433", "this machine alone, expected postgresql://127.0"),
        (
            "COORDINATOR_LISTEN",
            "amqp://a,postgresql://db.example:5433",
            "listen: postgresql://db.example:5433: the emb",
        ),
        (
            "COORDINATOR_LISTEN",
            "amqp://a,postgresql://127.0.0.1:0",
            "this machine alone, expected postgresql://127.0.0",
        ),
        ("COORDINATOR_LISTEN", "postgresql://127.0.0.1:5433", "listen: expected amqp://host:port or amqps://host:port"),
        (
            "COORDINATOR_LISTEN",
            "amqp://a,postgresql://[::1],postgresql://localhost",
            "expected postgresql://host:port once",
        ),
        ("COORDINATOR_ADDRESSES__PATTERNS", "[", "COORDINATOR_ADDRESSES .*expected JSON"),
        (
            "COORDINATOR_ADDRESSES__CREATE",
            "always",
            "addresses.create: .*'on-use', 'matching' or 'never', not 'always'",
        ),
        (
            "COORDINATOR_ADDRESSES__PATTERNS",
            '[{"match": "a", "kind": "batch"}]',
            "COORDINATOR_ADDRESSES__PATTERNS: addresses.patterns.0.kind: .*'delay' or 'mixed', not 'batch'",
        ),
    ],
)
def test_a_wrong_variable_is_named(monkeypatch: pytest.MonkeyPatch, name: str, value: str, said: str) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(SettingsInvalid, match=said):
        load()


def _elsewhere(*entries: dict[str, str], listen: str = "amqp://0.0.0.0:5672") -> str:
    with pytest.raises(SettingsInvalid) as refused:
        load({"listen": [listen], "addresses": {"elsewhere": list(entries)}})
    assert "secret" not in str(refused.value)
    return str(refused.value)


@pytest.mark.rule("P23")
@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("b.example:5672", "addresses.elsewhere.0.url: expected amqp://host:port or amqps://host:port"),
        ("amqp://", "addresses.elsewhere.0.url: expected amqp://host:port"),
        ("amqp://:5672", "addresses.elsewhere.0.url: expected amqp://host:port"),
        ("amqp://b.example:0", "addresses.elsewhere.0.url: the port is 0; expected the one where the service"),
        ("ws://b.example/amqp", "addresses.elsewhere.0.url: expected amqp://host:port"),
        ("amqp://user:secret@b.example", "addresses.elsewhere.0.url: expected amqp://host:port"),
        (
            "amqp://127.0.0.1:5672",
            "addresses: elsewhere.0.url: amqp://127.0.0.1:5672 is this service itself, by listen",
        ),
        (
            "amqp://localhost",
            "addresses: elsewhere.0.url: amqp://localhost is this service itself, by listen; expected",
        ),
        ("amqps://b.example", "amqps://b.example: this service does not listen at amqps://, and clients that it sends"),
    ],
)
def test_another_service_has_a_url_that_its_clients_can_follow(url: str, said: str) -> None:
    assert said in _elsewhere({"match": "orders.*", "url": url})


@pytest.mark.rule("P23", "P24")
def test_a_place_is_not_that_of_another_service_too() -> None:
    place = "amqp://b.example:5672"
    with pytest.raises(
        SettingsInvalid, match=r"elsewhere.0.url: amqp://b.example is this service itself, by addresses.h"
    ):
        load({"addresses": {"here": place, "elsewhere": [{"match": "a", "url": "amqp://b.example"}]}})
    with pytest.raises(SettingsInvalid, match=r"addresses.here: the port is 0"):
        load({"addresses": {"here": "amqp://b.example:0"}})


@pytest.mark.rule("P23")
def test_a_pattern_of_another_service_is_there_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    both = [{"match": "orders.*", "url": "amqp://b.example"}, {"match": "orders.*", "url": "amqp://c.example"}]
    assert "flag --addresses-elsewhere" in _elsewhere(*both)
    assert "addresses.elsewhere: orders.* is there twice, and the first counts; leave one out" in _elsewhere(*both)
    monkeypatch.setenv("COORDINATOR_ADDRESSES__ELSEWHERE", json.dumps(both[:1]))
    assert load().addresses.elsewhere[0].url == "amqp://b.example"
    monkeypatch.delenv("COORDINATOR_ADDRESSES__ELSEWHERE")
    file = tmp_path / "c.toml"
    file.write_text('listen = ["amqps://[::]"]\n[[addresses.elsewhere]]\nmatch = "a"\nurl = "amqps://[::1]:5600"')
    assert load(config=file).addresses.elsewhere[0].match == "a"
    file.write_text('listen = ["amqps://[::]"]\n[[addresses.elsewhere]]\nmatch = "a"\nurl = "amqps://[::1]"')
    with pytest.raises(SettingsInvalid, match=r"settings file .*c.toml: addresses: elsewhere.0.url: .* service itself"):
        load(config=file)


@pytest.mark.rule("S14")
@pytest.mark.parametrize(
    "origin",
    ["*", "shop.example", "ws://shop.example", "https://", "https://shop.example/", "https://shop.example/basket",
     "https://shop.example?a=1", "https://shop example", "https://shop.example:many", "https://shop.example:",
     "https://:443", "https://alice:secret@shop.example"],
)  # fmt: skip
def test_an_origin_that_no_browser_sends_is_refused(monkeypatch: pytest.MonkeyPatch, origin: str) -> None:
    monkeypatch.setenv("COORDINATOR_WEBSOCKET__ORIGINS", f"https://good.example, {origin}")
    with pytest.raises(SettingsInvalid) as refused:
        load()
    said = str(refused.value)
    assert "environment variable COORDINATOR_WEBSOCKET__ORIGINS: websocket.origins.1: " in said
    assert "expected http://host or https://host:port, as browsers send it in Origin" in said
    assert "secret" not in said


@pytest.mark.rule("S14")
@pytest.mark.parametrize("origin", ["http://shop.example:80", "https://shop.example:443"])
def test_an_origin_has_no_port_that_browsers_leave_out(origin: str) -> None:
    with pytest.raises(SettingsInvalid, match=r"websocket\.origins\.0: .*without its usual port (80|443), as browsers"):
        load({"websocket": {"origins": [origin]}})


@pytest.mark.rule("S14")
def test_origins_are_compared_in_small_letters() -> None:
    origins = ["http://127.0.0.1:8080", "https://Shop.Example", "https://[::1]:8443", "http://shop.example:443"]
    assert load({"websocket": {"origins": origins}}).websocket.origins == tuple(each.lower() for each in origins)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("wrokers = 1", "settings file .*c.toml: wrokers: there is no such setting"),
        ("workers = 'x'", "settings file .*c.toml: workers: .*not 'x'"),
        ("[limits]\nbar = 1", "settings file .*c.toml: limits.bar: there is no such setting"),
        ("limits = 1", "settings file .*c.toml: limits: expected a table"),
        ("workers = ", "settings file .*c.toml is not TOML: "),
        ("[[addresses.patterns]]\nrouting = 'queue'", "addresses.patterns.0.match: Field required"),
        ("[tokens]\naudience = 'a'", "settings file .*c.toml: tokens: expected issuer as well"),
        ("[tokens]\noperator_role = 'a'", "tokens: expected issuer as well"),
        ("[tokens]\nissuer = 'https://a.example'", "tokens: audience: expected with issuer"),
        ("[tokens]\nissuer = 'http://a.example'\naudience = 'a'", "tokens: issuer: expected https://..., or keys"),
        ("[tokens]\nissuer = 'https://'\naudience = 'a'", "tokens: issuer: expected https://..., or keys"),
        ("[tokens]\nissuer = 'a'\naudience = ''", "tokens.audience: .*at least 1 character"),
        ("[tokens]\nissuers = 'a'", "tokens.issuers: there is no such setting"),
        ("[traces]\nheaders = 'a'", "settings file .*c.toml: traces: headers: expected endpoint as well"),
        (
            "[traces]\nendpoint = 'http://a.example'\nheaders = 'a'",
            "traces: endpoint: expected https://... with headers",
        ),
        ("[traces]\nendpoint = 'localhost:4318'", "traces.endpoint: expected http://host:port or https://"),
        ("[traces]\nendpoint = 'grpc://a:4317'", "traces.endpoint: expected http://host:port or https://"),
        ("[traces]\nendpoint = 'http://a:99999'", "traces.endpoint: expected http://host:port or https://"),
        ("[traces]\nendpoint = 'https://u:word@a'", "traces.endpoint: expected [^@]*, without a user[^@]*$"),
        ("[traces]\nendpoint = 'https://a?key=1'", "traces.endpoint: expected http://host:port or https://"),
        ('[traces]\nendpoint = "https://a\\nb"', "traces.endpoint: expected http://host:port or https://"),
        ("[traces]\nendpoint = ''", "traces.endpoint: expected http://host:port or https://"),
        ("[traces]\nsample = 1.5", "traces.sample: Input should be less than or equal to 1, not 1.5"),
        ("[traces]\nsample = nan", "traces.sample: .*, not nan"),
    ],
)
def test_a_wrong_file_is_named(tmp_path: Path, content: str, said: str) -> None:
    file = tmp_path / "c.toml"
    file.write_text(content)
    with pytest.raises(SettingsInvalid, match=said):
        load(config=file)


@pytest.mark.rule("S13")
@pytest.mark.parametrize(
    "content",
    [
        "issuer = 'https://a.example/realms/shop'",
        "issuer = 'http://localhost:8080'",
        "issuer = 'http://[::1]:8080'",
        "issuer = 'anything'\nkeys = 'keys.json'",
    ],
)
def test_issuers(tmp_path: Path, content: str) -> None:
    file = tmp_path / "c.toml"
    file.write_text(f"[tokens]\naudience = 'a'\n{content}")
    assert load(config=file).tokens.audience == "a"


@pytest.mark.parametrize(
    ("endpoint", "url"),
    [
        ("http://127.0.0.1:4318", "http://127.0.0.1:4318/v1/traces"),
        ("https://collector.example/", "https://collector.example/v1/traces"),
        ("https://[::1]:4318/api/otlp/v1/traces", "https://[::1]:4318/api/otlp/v1/traces"),
    ],
)
def test_where_spans_are_sent(tmp_path: Path, endpoint: str, url: str) -> None:
    file = tmp_path / "c.toml"
    file.write_text(f"[traces]\nendpoint = '{endpoint}'")
    assert load(config=file).traces.url == url


def test_an_empty_data_folder_is_not_the_current_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "settings.toml"
    path.write_text('data_dir = ""', encoding="utf-8")
    with pytest.raises(SettingsInvalid, match=r"toml: data_dir: expected a folder, and it is empty$"):
        load(config=path)
    monkeypatch.setenv("COORDINATOR_DATA_DIR", "")
    with pytest.raises(SettingsInvalid, match=r"COORDINATOR_DATA_DIR: data_dir: expected a folder, and it is empty$"):
        load()


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsInvalid, match=r"settings file .*none.toml: No such file"):
        load(config=tmp_path / "none.toml")


def test_all_wrong_settings_are_named_at_once(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text("a = 1\nb = 2\nworkers = 0")
    with pytest.raises(SettingsInvalid) as caught:
        load({"listen": ["x"]}, file)
    assert len(str(caught.value).splitlines()) == 4
    assert "flag --listen: listen: x: expected amqp://host:port" in str(caught.value)


@pytest.mark.rule("S7", "S8")
@pytest.mark.parametrize("value", ["mysql://u:secret@h/d", ["secret"], {"secret": "secret"}])
def test_a_wrong_database_url_is_not_repeated(value: Any) -> None:
    with pytest.raises(SettingsInvalid) as caught:
        load({"database_url": value})
    assert "flag --database-url" in str(caught.value)
    assert "secret" not in str(caught.value)


@pytest.mark.rule("S7")
def test_a_wrong_value_makes_no_line_of_its_own() -> None:
    with pytest.raises(SettingsInvalid) as caught:
        load({"listen": ["amqp://h\nerror: forged:1"], "workers": "1\n2"})
    assert len(str(caught.value).splitlines()) == 2


@pytest.mark.rule("S8")
def test_the_database_url_is_not_shown_with_the_settings() -> None:
    settings = load({"database_url": "postgresql://u:secret@h/d"})
    assert "secret" not in repr(settings)
    assert "secret" not in settings.model_dump_json()


def test_settings_survive_the_way_to_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = load({"workers": 3, "addresses": {"patterns": [{"match": "a*"}]}})
    monkeypatch.setenv("COORDINATOR_WORKERS", "9")
    there = Settings.model_validate_json(json.dumps(settings.model_dump(mode="json", exclude={"database_url"})))
    assert there == settings


@pytest.mark.parametrize(
    ("url", "host", "port"),
    [
        ("amqp://127.0.0.1:5672", "127.0.0.1", 5672),
        ("amqp://localhost", "localhost", 5672),
        ("amqp://[::1]:0/", "::1", 0),
        ("amqps://localhost", "localhost", 5671),
    ],
)
def test_endpoints(url: str, host: str, port: int) -> None:
    assert (endpoint(url).host, endpoint(url).port) == (host, port)


@all_cases("url", ["", "h:1", "http://h", "amqp://", "amqp://u@h", "amqp://h/x", "amqp://h:70000"])
def test_what_is_no_endpoint(url: str) -> None:
    with pytest.raises(ValueError, match="expected amqp://host:port"):
        endpoint(url)


def test_true_is_no_number(tmp_path: Path) -> None:
    config = tmp_path / "c.toml"
    config.write_text("[limits]\nconnections = true\n")
    with pytest.raises(SettingsInvalid, match=r"limits\.connections: expected a number or a text, not true"):
        load(config=config)


def test_the_help_says_the_defaults() -> None:
    hints = get_type_hints(serve, include_extras=True)
    settings = Settings()
    defaults = {
        "listen": settings.listen[0],
        "workers": settings.workers,
        "log_level": settings.log.level,
        "log_format": settings.log.format,
    }
    for name, default in defaults.items():
        (option,) = hints[name].__metadata__
        assert option.help.endswith(f"Default: {default}.")
