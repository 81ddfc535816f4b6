"""``POST /v1/verify``: a probe against a template that its device chose to leave here."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial

from uvsdk.arrays import Float32
from uvsdk.bundle import Bundle
from uvsdk.errors import SampleError, UncalibratedDomainError
from uvsdk.modality import Capture, FacesRule
from uvsdk.presentation import PresentationAttackDetector
from uvsdk.presentation.detector import detectors_of
from uvsdk.rest.problems import Problem
from uvsdk.scoring import Decision, QualityPolicy, Threshold
from uvsdk.templates.template import Template
from uvsdk.verify import check_rate, decide, stricter, threshold_at, threshold_for, verify
from uvsdk_server.attempts import AttemptGate
from uvsdk_server.monitoring import Metrics
from uvsdk_server.people import People
from uvsdk_server.releases import InForce, Releases
from uvsdk_server.store.rows import ReleaseRow
from uvsdk_server.training import Training


@dataclass(frozen=True, slots=True)
class Probe:
    """What is compared: an embedding made elsewhere with ``model_version``, or a sample and how it is to be taken.

    ``quality`` and ``faces`` may only be stricter than the server's own; they say nothing about an embedding.
    """

    embedding: Float32 | None = None
    model_version: str | None = None
    sample: bytes | None = None
    quality: QualityPolicy | None = None
    faces: FacesRule | None = None


class Verifier:
    """Verification in a pool of threads, apart from the event loop, as far as the gate lets attempts through."""

    def __init__(
        self,
        releases: Releases,
        people: People,
        gate: AttemptGate,
        metrics: Metrics,
        *,
        threads: int,
        capture: Capture,
        fmr: float | None,
        presentation_detector: bool,
        strict_domain: bool,
    ) -> None:
        self._releases = releases
        self._people = people
        self._gate = gate
        self._metrics = metrics
        self._capture = capture
        self._fmr = fmr
        self._presentation_detector = presentation_detector
        self._strict_domain = strict_domain
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="verify")

    async def verify(
        self, user: str, probe: Probe, fmr: float | None, *, fallback: bool = False, caller: str, told: bool
    ) -> Decision:
        """Decide as the person's own device would, and never laxer than the deployment's rate.

        It is decided by the release in force, and by a former one, with the model and the calibration of then, where
        the person's device has left no template of the one in force yet (:meth:`Releases.standing`).

        Only what passes the checks before the comparison is an attempt.

        Args:
            user: hashed id of the claimed person.
            probe: what is compared.
            fmr: false match rate to decide at, at most the one in force.
            fallback: where the trials cannot support ``fmr``, decide at the strictest rate that they measure, or at the
                one in force where that is stricter.
            caller: id of the token that asks.
            told: whether the caller will be told the score, which is then counted whatever it is.

        Raises:
            Problem: 404 unknown user; 409 no template of a release that verifies, uncalibrated or other model.
            LaxerRateError: ``fmr`` is above the rate in force.
            ThresholdError: the calibration cannot support that rate.
            UncalibratedDomainError: the deployment is strict, and the calibration does not speak for the comparison.
            SettingsError: the probe asks for a laxer policy than the server's.
            TooManyAttemptsError, DisabledError: after failures in a row; the probe was not looked at.
            SampleError: the probe cannot be used.
        """
        current, template = await self._found(user, probe)
        bundle = current.bundle
        # In a thread: a rate that was not asked for before is measured first.
        threshold = await asyncio.get_running_loop().run_in_executor(
            self._pool, partial(self._threshold, bundle, template, fmr, fallback=fallback)
        )
        capture = self._capture.narrow(quality=probe.quality, faces=probe.faces)

        def compared() -> Decision:
            detectors = detectors_of(bundle) if self._presentation_detector else ()
            decided = _decide(
                current, template, threshold, probe, capture, detectors, strict_domain=self._strict_domain
            )
            return decided if fmr is None else replace(decided, basis=replace(decided.basis, asked_fmr=fmr))

        async def attempt() -> Decision:
            return await asyncio.get_running_loop().run_in_executor(self._pool, compared)

        start = time.perf_counter()
        try:
            decision = await self._gate.decide(user, caller, attempt, told=told)
        except (SampleError, UncalibratedDomainError) as error:
            self._metrics.verifications.labels("unusable").inc()
            if isinstance(error, UncalibratedDomainError):
                self._metrics.outside_verifications.labels("refused").inc()
            raise
        self._metrics.verify_seconds.observe(time.perf_counter() - start)
        outcome = "accepted" if decision.accepted else "rejected"
        self._metrics.verifications.labels(outcome).inc()
        if decision.basis.placement.verdict == "outside":
            self._metrics.outside_verifications.labels(outcome).inc()
        return decision

    async def close(self) -> None:
        """Finish what is running and stop the threads."""
        await self._gate.close()
        self._pool.shutdown()

    async def _found(self, user: str, probe: Probe) -> tuple[InForce, Template]:
        """The newest release that verifies and that the person has a template of, and that template.

        An embedding is compared under the model that it was made with.
        """
        rows = await self._people.templates(user)
        standing = await self._releases.standing()
        if probe.embedding is not None and all(probe.model_version != release.model_version for release in standing):
            raise Problem("model-mismatch", "the embedding was made with another model than the current one")
        others = list[str]()
        for release in standing:
            for row in rows:
                if row.model_version != release.model_version or row.calibration not in ("", release.calibration):
                    continue
                template = await self._people.template(row)
                if not _is_of(template, release):
                    continue
                if probe.embedding is not None and probe.model_version != release.model_version:
                    others.append(release.model_version)
                    continue
                if release is not standing[0]:
                    self._metrics.former_verifications.inc()
                return await self._releases.opened(release), template
        if others:
            raise Problem(
                "model-mismatch",
                f"this person's template is still of the model {others[0]}; embed with that one, or send the sample",
            )
        raise Problem(
            "template-outdated",
            "the template is of a model or a calibration that verifies no longer; its device must renew it",
        )

    def _threshold(self, bundle: Bundle, template: Template, fmr: float | None, *, fallback: bool) -> Threshold:
        """The device's own threshold (:func:`uvsdk.verify.threshold_for`), or the deployment's where that is higher.

        What the device says of its threshold can only make the server stricter, and so can a caller: what ``fallback``
        comes to is held against the same two.
        """
        if bundle.calibration is None:
            raise Problem(
                "uncalibrated", "the released model has no impostor scores yet; the operator must calibrate it"
            )
        own = template.threshold
        bound = threshold_at(bundle, self._fmr, scale=None if own is None else own.scale)
        check_rate(fmr, bound.fmr if own is None else min(bound.fmr, own.fmr))
        if own is None:
            return bound if fmr is None else stricter(threshold_at(bundle, fmr, fallback=fallback), bound)
        return stricter(threshold_for(template, bundle, fmr=fmr, fallback=fallback), bound)


def _is_of(template: Template, release: ReleaseRow) -> bool:
    """Whether it was made under that release; a template without a threshold is verified by any calibration."""
    read_from = "" if template.threshold is None else template.threshold.calibration
    return template.model_version == release.model_version and read_from in ("", release.calibration)


def _decide(
    current: InForce,
    template: Template,
    threshold: Threshold,
    probe: Probe,
    capture: Capture,
    detectors: Sequence[PresentationAttackDetector],
    *,
    strict_domain: bool,
) -> Decision:
    bundle, release = current.bundle, current.number
    if probe.embedding is not None:
        return decide(
            probe.embedding,
            template,
            bundle=bundle,
            threshold=threshold,
            strict_domain=strict_domain,
            release=release,
        )
    if probe.sample is None:
        raise SampleError("neither an embedding nor a sample was sent; send one of them")
    return verify(
        probe.sample,
        template,
        model=bundle,
        threshold=threshold,
        capture=capture,
        detectors=detectors,
        strict_domain=strict_domain,
        release=release,
    )


def check_verifies(training: Training) -> None:
    """Raise :class:`Problem` 403 where nobody may be verified here."""
    if not training.method.server.verifies_on_server:
        raise Problem(
            "edge-only",
            f"under {training.config.algorithm} no template leaves its device, so nobody is verified here; "
            "verify on the device",
        )
