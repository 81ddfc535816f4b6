"""Users: admission, template, leaving."""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import APIRouter, Path, Request

from uvsdk.federation.codec import unpack
from uvsdk.federation.messages import Admission, Numbered, TemplateUpload
from uvsdk.federation.strategy import EMBEDDED, MEAN
from uvsdk_server import envelopes, problems
from uvsdk_server.authentication import ActiveDevice, Served, SignedDevice, owner_or_operator
from uvsdk_server.deployment import Deployment
from uvsdk_server.people import Device, Place, check_user
from uvsdk_server.problems import Problem

router = APIRouter(tags=["users"])

User = Annotated[str, Path(pattern="^[0-9a-f]{64}$")]


@router.put("/v1/users/{user}/admission", status_code=204, responses=problems.responses(409))
async def put_admission(served: Served, device: SignedDevice, request: Request, user: User) -> None:
    """Join the training: a sealed ``Admission``. The next round that opens takes it up."""
    _own(device, user)
    numbered = await _opened(served, device, request, "admission")
    admission = unpack(Admission, numbered.body.tobytes())
    check_user(admission.user, user)
    embedded = {MEAN, EMBEDDED} & set(served.training.needs)
    if embedded and admission.model_version != served.models.current.version:
        raise Problem(409, "wrong-model", "the embeddings are of another model than the current one; make them anew")
    await asyncio.to_thread(served.training.check_admission, admission)
    await served.people.admit(admission, Place(device.device_id, numbered.number))
    served.rounds.wake()


@router.put("/v1/users/{user}/template", status_code=204, responses=problems.responses(409))
async def put_template(served: Served, device: ActiveDevice, request: Request, user: User) -> None:
    """Leave a template here, so that the server can verify this user: a sealed ``TemplateUpload``.

    Answered 403 ``edge-only`` where the algorithm lets no template leave the device, and ``unconfirmed-device`` where
    nobody has vouched for this one.
    """
    _own(device, user)
    served.training.check_verifies()
    numbered = await _opened(served, device, request, "template")
    template = unpack(TemplateUpload, numbered.body.tobytes())
    if not await served.models.knows(template.model_version):
        raise Problem(409, "wrong-model", "the template was made with a model that is not kept here; make it again")
    await served.people.keep_template(template, user, Place(device.device_id, numbered.number))


@router.delete("/v1/users/{user}", status_code=204)
async def delete_user(served: Served, request: Request, user: User) -> None:
    """Row, uploads, template, admission and devices are gone before this answers; doing it again is fine."""
    await owner_or_operator(request, user)
    await served.rounds.remove_user(user)


async def _opened(served: Deployment, device: Device, request: Request, message_type: str) -> Numbered:
    expected = served.training.expected(message_type)
    return unpack(Numbered, envelopes.open_single(await request.body(), device, expected, served.keys))


def _own(device: Device, user: str) -> None:
    if device.user != user:
        raise Problem(403, "forbidden", "a device may act for its own user only")
