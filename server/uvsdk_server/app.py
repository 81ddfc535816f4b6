"""The application: built from settings, opened when the server starts, closed when it stops."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI

from uvsdk_server import monitoring, problems
from uvsdk_server.base_path import BasePath
from uvsdk_server.deployment import Deployment, installed_version
from uvsdk_server.freshness import ChallengeHeader, Freshness
from uvsdk_server.limits import Bounds, Gate
from uvsdk_server.monitoring import Metrics
from uvsdk_server.observer import Observer, Unobserved
from uvsdk_server.request_ids import RequestIds
from uvsdk_server.routes import (
    attempts,
    audit,
    deployment,
    devices,
    evaluations,
    models,
    operations,
    releases,
    rounds,
    tokens,
    users,
    verify,
)
from uvsdk_server.settings import Settings


def create_app(settings: Settings, *, observer: Observer | None = None) -> FastAPI:
    """The coordination server as an ASGI application; nothing is opened before its lifespan starts.

    Args:
        settings: where its data lie, and its limits.
        observer: told of every point a round passes; the server waits for it.
    """
    metrics, log = Metrics(), monitoring.logger(settings.log_level)
    freshness = Freshness(settings.signature_window_s)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        served = await Deployment.open(settings, observer or Unobserved(), metrics, log, freshness=freshness)
        app.state.deployment = served
        try:
            yield
        finally:
            await served.close()

    app = FastAPI(
        title="uvsdk coordination server",
        version=installed_version(),
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,  # to an address that is wrong behind a proxy, and devices follow none
        responses=problems.responses(400, 401, 403, 408, 413, 422, 429, 503, 507),
    )
    app.state.settings = settings
    problems.install(app, log)
    bounds = Bounds(
        body_bytes=settings.body_limit_bytes,
        stall_s=settings.stall_timeout_s,
        bytes_per_s=settings.slowest_bytes_per_s,
        handler_s=settings.request_timeout_s,
    )
    app.add_middleware(Gate, bounds=bounds, metrics=metrics)
    app.add_middleware(ChallengeHeader, freshness=freshness)
    app.add_middleware(BasePath, prefix=settings.base_path)
    app.add_middleware(RequestIds)
    for module in (
        deployment,
        devices,
        users,
        rounds,
        evaluations,
        models,
        releases,
        verify,
        attempts,
        tokens,
        audit,
        operations,
    ):
        app.include_router(module.router)
    return app
