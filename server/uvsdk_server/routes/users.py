"""Users: admission, template, leaving."""

from __future__ import annotations

import asyncio
from typing import Annotated, Literal

from fastapi import APIRouter, Path, Request
from pydantic import BaseModel
from starlette.responses import JSONResponse, Response

from uvsdk.federation.messages import Admission, Numbered, TemplateUpload
from uvsdk.federation.strategy import EMBEDDED, MEAN
from uvsdk.records.codec import unpack
from uvsdk.rest.problems import Problem
from uvsdk_server import envelopes, problems, protocol
from uvsdk_server.authentication import ActiveDevice, Served, SignedDevice, operator, owner_or_operator
from uvsdk_server.deletions import Deletion
from uvsdk_server.deployment import Deployment
from uvsdk_server.people import Device, Place, check_user
from uvsdk_server.verification import check_verifies

router = APIRouter(tags=["users"])

User = Annotated[str, Path(pattern="^[0-9a-f]{64}$")]


@router.put("/v1/users/{user}/admission", status_code=204, responses=problems.responses(409))
async def put_admission(served: Served, device: SignedDevice, request: Request, user: User) -> None:
    """Join the training: a sealed ``Admission``. The next round that opens takes it up."""
    _own(device, user)
    numbered = await _opened(served, device, request, "admission")
    admission = unpack(Admission, numbered.body)
    check_user(admission.user, user)
    embedded = {MEAN, EMBEDDED} & set(served.training.needs)
    if embedded and admission.model_version != served.models.candidate.version:
        raise Problem("wrong-model", "the embeddings are of another model than the candidate; make them anew")
    await asyncio.to_thread(protocol.check_admission, served.training, admission)
    await served.people.admit(admission, Place(device.device_id, numbered.number))
    served.rounds.wake()


@router.put("/v1/users/{user}/template", status_code=204, responses=problems.responses(409))
async def put_template(served: Served, device: ActiveDevice, request: Request, user: User) -> None:
    """Leave a template here, so that the server can verify this user: a sealed ``TemplateUpload``.

    Answered 403 ``edge-only`` where the algorithm lets no template leave the device, and ``unconfirmed-device`` where
    nobody has vouched for this one.
    """
    _own(device, user)
    check_verifies(served.training)
    numbered = await _opened(served, device, request, "template")
    template = unpack(TemplateUpload, numbered.body)
    if not await served.models.knows(template.model_version):
        raise Problem("wrong-model", "the template was made with a model that is not kept here; make it again")
    await served.people.keep_template(template, user, Place(device.device_id, numbered.number), served.clock())


class DeletionAnswer(BaseModel):
    """How far a deletion is: ``pending`` or ``complete``. Times are Unix seconds."""

    deletion_id: str
    state: Literal["pending", "complete"]
    requested: float
    completed: float | None

    @classmethod
    def of(cls, deletion: Deletion) -> DeletionAnswer:
        """As it is answered."""
        return cls(
            deletion_id=deletion.deletion_id,
            state="complete" if deletion.complete else "pending",
            requested=deletion.requested,
            completed=deletion.completed,
        )


@router.delete("/v1/users/{user}", status_code=204, responses={202: {"model": DeletionAnswer}})
async def delete_user(served: Served, request: Request, user: User) -> Response:
    """Delete row, uploads, template, admission, devices and the key they were sealed with; doing it again is fine.

    Answered 204 when no byte of them is left. Where something still reads what was there before, e.g. a backup of the
    database under way, the answer is 202 with the deletion's state: it is irrevocable, goes on by itself, and
    ``GET /v1/deletions/ID`` tells when it is complete.
    """
    by = await owner_or_operator(request, user)
    deletion = await served.deletions.delete(user, by=by.actor)
    if deletion.complete:
        return Response(status_code=204)
    headers = {"Location": f"/v1/deletions/{deletion.deletion_id}", "Retry-After": "5"}
    return JSONResponse(DeletionAnswer.of(deletion).model_dump(), 202, headers=headers)


@router.get("/v1/deletions/{deletion_id}", responses=problems.responses(404))
async def get_deletion(
    served: Served, request: Request, deletion_id: Annotated[str, Path(pattern="^[0-9a-f]{32}$")]
) -> DeletionAnswer:
    """How far a deletion is. Its id, which only whoever asked for it was told, is the permission to ask.

    For an id that is not known here, or was complete more than 30 days ago, an operator is answered 404 and anybody
    else 401.
    """
    deletion = await served.deletions.find(deletion_id)
    if deletion is None:
        await operator(request)
        raise Problem("unknown-deletion", "there is no deletion of that id; it was complete, or never asked for")
    return DeletionAnswer.of(deletion)


async def _opened(served: Deployment, device: Device, request: Request, message_type: str) -> Numbered:
    expected = envelopes.Expected.of(served.training.config, message_type)
    return unpack(Numbered, envelopes.open_single(await request.body(), device, expected, served.keys))


def _own(device: Device, user: str) -> None:
    if device.user != user:
        raise Problem("forbidden", "a device may act for its own user only")
