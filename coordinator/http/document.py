"""The document says what the API takes and answers (OpenAPI 3.1). What it takes FastAPI knows of the routes; what it
answers is of the types that :mod:`coordinator.operations` has.
"""

from __future__ import annotations

from typing import Any, Final

from fastapi import FastAPI
from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema

from coordinator.http.acting import GoesOn
from coordinator.http.problems import Problem, ProblemDetails
from coordinator.operations import ACTS, READS, ROOT

_REFERENCE: Final = "#/components/schemas/{model}"


class _WithDefaults(GenerateJsonSchema):
    """An answer has all fields of its type, also those that have a default."""

    def field_is_required(self, field: object, total: bool) -> bool:
        return True


class Documented(FastAPI):
    """Has the document, which is made when it is first asked for."""

    def openapi(self) -> dict[str, Any]:
        if not self.openapi_schema:
            _describe(super().openapi())
        assert self.openapi_schema is not None
        return self.openapi_schema


def _describe(document: dict[str, Any]) -> None:
    """Add what is answered, and how one shows a token."""
    operations = {(method, each.path): each for method, those in (("get", READS), ("post", ACTS)) for each in those}
    types: dict[object, Any] = {key: each.answers for key, each in operations.items()}
    types |= {Problem: ProblemDetails, GoesOn: GoesOn}
    schemas, definitions = TypeAdapter.json_schemas(
        [(key, "serialization", TypeAdapter(each)) for key, each in types.items()],
        ref_template=_REFERENCE,
        schema_generator=_WithDefaults,
    )

    def content(key: object, media_type: str = "application/json") -> dict[str, Any]:
        return {"content": {media_type: {"schema": schemas[key, "serialization"]}}}

    for method, path in operations:
        responses = document["paths"][ROOT + path.replace(":path", "")][method]["responses"]
        responses["200"] |= content((method, path))
        responses.pop("422", None)  # what FastAPI would answer: here it is 400, as a problem
        responses["default"] = {"description": ProblemDetails.__doc__, **content(Problem, Problem.media_type)}
        if "202" in responses:
            responses["202"] |= content(GoesOn)
    of_requests = document["components"]["schemas"]
    del of_requests["HTTPValidationError"], of_requests["ValidationError"]
    of_requests |= definitions["$defs"]
    document["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    document["security"] = [{"token": []}]
