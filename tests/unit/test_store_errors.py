"""The boundary between driver errors and ours."""

from __future__ import annotations

import psycopg
import pytest
from sqlalchemy.exc import IntegrityError

from store import errors
from store.database import check_url, place
from store.errors import DatabaseUrlInvalid
from tests.tables import all_cases


@all_cases(
    ("sqlstate", "constraint", "kind"),
    [
        ("23505", "op_pkey", errors.AlreadyDecided),
        ("23505", "op_20260131_pkey", errors.AlreadyDecided),
        ("23505", "address_name_key", errors.AddressExists),
        ("23505", "half_pkey", errors.Conflict),
        ("23505", "shop_pkey", errors.Conflict),
        ("23505", None, errors.Conflict),
        ("23514", "address_kind_check", errors.Conflict),
        ("23514", None, errors.NoPartition),
        ("23001", None, errors.AppendOnly),
        ("CO001", None, errors.NotLeased),
        ("42P01", None, errors.SchemaMismatch),
        ("42703", None, errors.SchemaMismatch),
        ("57P01", None, errors.StoreUnavailable),
        ("08006", None, errors.StoreUnavailable),
        ("53100", None, errors.StoreUnavailable),
        ("53200", None, errors.StoreInTrouble),
        ("58030", None, errors.StoreInTrouble),
        ("XX001", None, errors.StoreInTrouble),
        ("54000", None, errors.StoreFault),
        ("26000", None, errors.StoreUnavailable),
        ("42P05", None, errors.StoreUnavailable),
        ("40P01", None, errors.Contended),
        ("55P03", None, errors.Locked),
        ("22001", None, errors.StoreFault),
        (None, None, errors.StoreUnavailable),
        ("", None, errors.StoreUnavailable),
    ],
)
def test_sqlstates(sqlstate: str | None, constraint: str | None, kind: type[errors.StoreError]) -> None:
    error = errors.from_sqlstate(sqlstate, constraint)
    assert type(error) is kind
    assert error.sqlstate == (sqlstate or None)
    # what an operator can do nothing about is named by its SQLSTATE
    named = bool(sqlstate) and kind not in (errors.AddressExists, errors.AlreadyDecided)
    assert (f"SQLSTATE {sqlstate}" in str(error)) is named


@pytest.mark.rule("S8")
def test_the_drivers_text_does_not_pass() -> None:
    cause = psycopg.errors.UniqueViolation("Key (id)=(secret) exists; insert into coordinator.op")
    error = errors.translate(IntegrityError("insert into t values (%s)", {"body": "secret"}, cause))
    assert isinstance(error, errors.Conflict)
    assert "secret" not in str(error)
    assert "insert" not in str(error)
    with pytest.raises(errors.Conflict) as caught, errors.boundary():
        raise cause
    assert caught.value.__suppress_context__


def test_our_own_faults_pass_as_they_are() -> None:
    with pytest.raises(ZeroDivisionError), errors.boundary():
        raise ZeroDivisionError


@pytest.mark.rule("S8")
@pytest.mark.parametrize(
    "url", ["mysql://u:secret@h/d", "secret", "postgresql://u:sec%zzret@h/d", "postgresql://h/d?x=secret"]
)
def test_a_wrong_url_is_not_repeated(url: str) -> None:
    with pytest.raises(DatabaseUrlInvalid) as caught:
        check_url(url)
    assert "sec" not in str(caught.value).removesuffix("security")


@pytest.mark.rule("S8")
@pytest.mark.parametrize("character", list("@/%"))
def test_a_password_that_is_not_escaped_is_no_host(character: str) -> None:
    for password in (f"sec{character}ret", f"12{character}ret", f"{character}{character}ret@sec"):
        with pytest.raises(DatabaseUrlInvalid, match="other special characters written as %25, %40") as caught:
            check_url(f"postgresql://u:{password}@db.example:6432/shop")
        assert "sec" not in str(caught.value)
        assert "ret" not in str(caught.value)


@pytest.mark.rule("S8")
@all_cases("password", ["sec#ret", "sec?ret", "sec:ret", "sec&host=x", "sec%40ret", "sec%2Fret%3F"])
def test_other_characters_stay_in_the_password(password: str) -> None:
    assert place(f"postgresql://u:{password}@db.example:6432/shop") == "db.example:6432/shop"


@all_cases("port", ["999999", "abc", "0", "-1", "65536", "9" * 5000])
def test_a_wrong_port_is_said_to_be_wrong(port: str) -> None:
    for url in (f"postgresql://u@h:1,i:{port}/d", f"postgresql:///d?host=h,i&port=1,{port}"):
        with pytest.raises(DatabaseUrlInvalid, match=r"^the port of the database URL is wrong: expected a number from"):
            check_url(url)


@all_cases("hosts", ["h", "h:", "h:1", "h:65535", "h:5432,i", "h,i:5432", "[::1]:5432"])
def test_a_port_of_each_host(hosts: str) -> None:
    assert check_url(f"postgresql://{hosts}/d")


@pytest.mark.rule("S8")
def test_a_place_has_no_password() -> None:
    assert place("postgresql://u:secret@db.example:6432/shop") == "db.example:6432/shop"
    assert place("postgresql://u@/shop?host=/run/x") == "/run/x:5432/shop"


def test_a_name_of_a_database_with_an_at() -> None:
    with pytest.raises(DatabaseUrlInvalid, match="%40 and so on, in the database's name, too"):
        check_url("postgresql://u@db.example/shop@home")
    assert place("postgresql://u@db.example/shop%40home") == "db.example:5432/shop@home"
