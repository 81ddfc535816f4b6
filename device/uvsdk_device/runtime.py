"""Verification on the device, with no server and no torch: a store, a bundle, a decision."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from uvsdk.bundle import Bundle
from uvsdk.errors import EnrolmentError, ModelMismatchError, ThresholdError
from uvsdk.inference import open_bundle
from uvsdk.scoring import Decision, Threshold
from uvsdk.template import Template
from uvsdk.verify import verify
from uvsdk_device.keystore import EncryptedStore
from uvsdk_device.reembedding import is_current, remade

if TYPE_CHECKING:
    from uvsdk.modality import Sample


class Runtime:
    """Verifies the users of one store with one model. Safe to share between threads.

    A template that an older model made is made again from the stored features, once, when its user is first
    verified; the store keeps the new one.

    Args:
        store: this device's.
        model: a bundle, or the path of one.
    """

    def __init__(self, store: EncryptedStore, model: Bundle | str | os.PathLike[str]) -> None:
        self._store = store
        self._bundle = open_bundle(model)

    @property
    def bundle(self) -> Bundle:
        """The model it verifies with."""
        return self._bundle

    def verify(
        self, user_id: str, probe: Sample, *, threshold: Threshold | None = None, fmr: float | None = None
    ) -> Decision:
        """Whether ``probe`` is of that user.

        Args:
            user_id: enrolled in the store.
            probe: one sample, in any form the modality reads.
            threshold: in place of the template's own.
            fmr: false match rate to read a threshold for from the bundle's calibration, in place of both.

        Raises:
            UnknownUserError: not enrolled here.
            SampleError: the probe cannot be used.
            ModelMismatchError: the template is of another model and no features were kept to make it again.
            ThresholdError: no threshold, or a rate that the calibration cannot support.
        """
        if fmr is not None:
            if self._bundle.calibration is None:
                raise ThresholdError("this model has no calibration to read a threshold from; calibrate it first")
            threshold = self._bundle.calibration.threshold(fmr)
        return verify(probe, self.template(user_id), model=self._bundle, threshold=threshold)

    def template(self, user_id: str) -> Template:
        """The user's template for this runtime's model, made again and stored where it was of another one.

        Raises:
            UnknownUserError, ModelMismatchError, ThresholdError: see :meth:`verify`.
        """
        template = self._store.template(user_id)
        if is_current(template, self._bundle):
            return template
        old = template
        try:
            with self._store.lock():
                # Another thread or process may have been faster.
                old = self._store.template(user_id)
                if is_current(old, self._bundle):
                    return old
                return self._store.update_template(user_id, lambda features: remade(old, features, self._bundle))
        except EnrolmentError as error:
            if template.model_version == self._bundle.version:
                return template
            raise ModelMismatchError(
                f"the template was made with model {template.model_version[:12]}, this is {self._bundle.version[:12]}, "
                "and no features were kept to make it again; enrol again, or use the bundle it was made with"
            ) from error
