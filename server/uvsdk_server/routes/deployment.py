"""What a device must know before it joins."""

from __future__ import annotations

import base64
import json
from typing import Any

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict

from uvsdk.federation.messages import ServerStatement
from uvsdk_server.authentication import Served

router = APIRouter(tags=["deployment"])


class DeploymentAnswer(BaseModel):
    """Keys are base64 of 32 raw bytes: X25519 to seal to, Ed25519 to check the server's signatures with.

    ``needs`` names what an admission must hold (``mean``, ``instances``, ``embedded-instances``) or may hold
    (``person``). ``model_version`` is what training goes on from, under which admissions are made; which one verifies
    is told by ``GET /v1/releases/current``. ``authorities`` are the names by which devices call this server.
    ``signature`` is base64 of the signature over the ``ServerStatement`` that the other fields make up, and over the
    two times between which it holds.
    """

    model_config = ConfigDict(protected_namespaces=())

    deployment: str
    config: dict[str, Any]
    config_digest: str
    server_key_id: str
    server_public_key: str
    server_signing_key: str
    model_version: str
    modality: str
    needs: tuple[str, ...]
    authorities: tuple[str, ...]
    issued_unix_s: float
    expires_unix_s: float
    signature: str


@router.get("/v1/deployment")
async def get_deployment(served: Served, request: Request) -> DeploymentAnswer:
    """Configuration and public keys; needs no authentication, for it is what a device decides to trust."""
    config, keys = served.training.config, served.keys
    validity = served.validity()
    statement = ServerStatement(
        deployment=config.deployment,
        config_digest=config.digest(),
        server_key_id=keys.current_id,
        server_public_key=keys.public(keys.current_id),
        model_version=served.models.candidate.version,
        needs=served.training.needs,
        authorities=served.authorities.possible(request.headers.get("host", "")),
    )
    return DeploymentAnswer(
        deployment=statement.deployment,
        config=json.loads(config.to_json()),
        config_digest=statement.config_digest,
        server_key_id=statement.server_key_id,
        server_public_key=base64.b64encode(statement.server_public_key).decode(),
        server_signing_key=base64.b64encode(keys.signing.public_key().public_bytes_raw()).decode(),
        model_version=statement.model_version,
        modality=config.modality,
        needs=statement.needs,
        authorities=statement.authorities,
        issued_unix_s=validity.issued_unix_s,
        expires_unix_s=validity.expires_unix_s,
        signature=base64.b64encode(keys.stand_behind(statement, validity)).decode(),
    )
