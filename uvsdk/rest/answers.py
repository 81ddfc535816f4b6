"""Answers as starlette sends them. Needs starlette, of the extras ``server`` and ``agent``."""

from __future__ import annotations

from starlette.responses import JSONResponse

from uvsdk.rest.problems import MEDIA_TYPE, Problem


def response(problem: Problem) -> JSONResponse:
    """As ``application/problem+json``."""
    return JSONResponse(problem.document(), problem.status, headers=problem.headers, media_type=MEDIA_TYPE)
