"""``docs/openapi.json`` describes the server that is here: a change of a route or field is a change of that file.

``python -m tests.architecture.test_openapi`` writes it anew.
"""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path
from typing import Any

from uvsdk_server import Settings, create_app

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "openapi.json"
GENERATORS = ("fastapi", "pydantic")


def generated() -> dict[str, Any]:
    description: dict[str, Any] = create_app(Settings(data=Path("nowhere"))).openapi()
    description["info"]["version"] = "1"  # of the routes; the package's own changes with every commit
    description["x-generators"] = {name: version(name) for name in GENERATORS}
    return description


def written(description: dict[str, Any]) -> str:
    return json.dumps(description, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def essence(description: dict[str, Any]) -> dict[str, Any]:
    """What a client depends on, in a form that no generator's version changes: routes, parameters, statuses, fields."""
    routes = {
        f"{method.upper()} {path}": {
            "parameters": sorted(
                (item["in"], item["name"].lower(), bool(item.get("required"))) for item in route.get("parameters", ())
            ),
            "statuses": sorted(route["responses"]),
            "body": sorted(route.get("requestBody", {}).get("content", ())),
        }
        for path, methods in description["paths"].items()
        for method, route in methods.items()
    }
    fields = {
        name: {"fields": sorted(schema.get("properties", ())), "required": sorted(schema.get("required", ()))}
        for name, schema in description["components"]["schemas"].items()
        if name not in ("HTTPValidationError", "ValidationError")  # the framework's own
    }
    plain: dict[str, Any] = json.loads(json.dumps({"routes": routes, "schemas": fields}))
    return plain


def test_the_description_is_that_of_the_server() -> None:
    kept = json.loads(DOCUMENT.read_text(encoding="utf-8"))
    new = generated()
    remedy = "run: python -m tests.architecture.test_openapi"
    assert essence(kept) == essence(new), remedy
    if kept["x-generators"] == new["x-generators"]:
        assert kept == new, remedy


def test_every_route_has_words_and_every_problem_a_document() -> None:
    for path, methods in generated()["paths"].items():
        for method, route in methods.items():
            assert route.get("description"), (method, path)
            for status, answer in route["responses"].items():
                if status.startswith(("4", "5")):
                    assert list(answer["content"]) == ["application/problem+json"], (method, path, status)


if __name__ == "__main__":
    DOCUMENT.write_text(written(generated()), encoding="utf-8")
