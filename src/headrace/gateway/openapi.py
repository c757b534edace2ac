"""The OpenAPI document: FastAPI's, and the schemas that only hand-written parts of it name."""

from typing import Any

from fastapi import FastAPI
from pydantic.json_schema import models_json_schema

from headrace.gateway.schemas import MessageIn, MessagesIn, ProblemDocument

_NAMED_BY_HAND = (ProblemDocument, MessageIn, MessagesIn)


def complete_openapi(app: FastAPI) -> None:
    """Every reference in the document leads somewhere."""
    made_by_fastapi = app.openapi

    def openapi() -> dict[str, Any]:
        document = made_by_fastapi()
        _, definitions = models_json_schema(
            [(model, "validation") for model in _NAMED_BY_HAND], ref_template="#/components/schemas/{model}"
        )
        schemas = document.setdefault("components", {}).setdefault("schemas", {})
        for name, schema in definitions["$defs"].items():
            schemas.setdefault(name, schema)
        return document

    app.openapi = openapi  # type: ignore[method-assign]
