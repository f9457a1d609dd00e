"""The console has a form for each act, and asks for what the act takes (S11)."""

from __future__ import annotations

import inspect

import pytest

from coordinator.http.acting import model_of, path_of
from coordinator.http.forms import FORMS, Form
from coordinator.operations import ACTS, OF_THE_SERVICE

pytestmark = pytest.mark.rule("S11")


def test_each_act_has_a_form() -> None:
    assert {each.operation for each in FORMS.values()} == set(ACTS)


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_a_form_asks_for_arguments_of_its_act(form: Form) -> None:
    takes = {*model_of(form.operation).model_fields, *path_of(form.operation)}
    assert set(form.labels) <= takes - {"reason"}
    assert form.about[2] in takes


@pytest.mark.parametrize("form", [each for each in FORMS.values() if each.preview], ids=lambda form: form.name)
def test_a_preview_takes_what_its_act_takes(form: Form) -> None:
    assert form.preview is not None
    takes = {*model_of(form.operation).model_fields, *path_of(form.operation), *OF_THE_SERVICE, "connection"}
    assert set(inspect.signature(form.preview).parameters) <= takes
