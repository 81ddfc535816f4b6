"""Templates of one enrolment under other models than the one in use: so a release that comes back finds the very
template it verified by before, and a bundle that is named by hand the one it was enrolled with.

One record a user, bound to one enrolment: whoever enrols anew makes all of it void. Every template has its place by its
model and the calibration of its threshold.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from uvsdk.errors import StoreError, TemplateFormatError, WireError
from uvsdk.records.codec import pack, unpack
from uvsdk.templates.template import Template

if TYPE_CHECKING:
    from uvsdk_device.keystore import EncryptedStore

KEPT: Final = 16
"""Templates beside the one in use, the longest unused first to go: of the release before, and of bundles at hand."""

_PURPOSE = "templates"


@dataclass(frozen=True, slots=True)
class KeptTemplate:
    """One of them: ``body`` is all of it but its model version (:meth:`Template.to_plain_bytes`)."""

    model_version: str
    body: bytes


@dataclass(frozen=True, slots=True)
class KeptTemplates:
    """Templates of one enrolment, the last one put there first."""

    enrolment: bytes
    entries: tuple[KeptTemplate, ...]


def keep(store: EncryptedStore, user_id: str, template: Template, *, enrolment_id: bytes) -> None:
    """Keep a template of that enrolment in the place of its model and calibration. Durable when it returns."""
    with store.lock():
        others = [item for item in read(store, user_id, enrolment_id=enrolment_id) if _place(item) != _place(template)]
        entries = tuple(KeptTemplate(item.model_version, item.to_plain_bytes()) for item in [template, *others][:KEPT])
        store.put(_PURPOSE, [pack(KeptTemplates(enrolment_id, entries))], user=user_id)


def read(store: EncryptedStore, user_id: str, *, enrolment_id: bytes) -> Sequence[Template]:
    """Those of that enrolment, the last one kept first.

    Raises:
        StoreError: the record is damaged.
    """
    try:
        (data,) = store.get(_PURPOSE, user=user_id)
        record = unpack(KeptTemplates, data)
        if record.enrolment != enrolment_id:
            return ()
        return [Template.from_plain_bytes(item.body, item.model_version) for item in record.entries]
    except KeyError:
        return ()
    except (WireError, TemplateFormatError) as error:
        raise StoreError("the kept templates of other models do not read; enrol again") from error


def drop(store: EncryptedStore, user_id: str) -> None:
    """Forget them."""
    store.drop(_PURPOSE, user=user_id)


def _place(template: Template) -> tuple[str, str]:
    return template.model_version, "" if template.threshold is None else template.threshold.calibration
