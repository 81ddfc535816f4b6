"""Verification on the device, with no server and no torch: a store, a bundle or an adopted release, a decision."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from uvsdk.bundle import Bundle
from uvsdk.bundle.inference import open_bundle
from uvsdk.enrolment.ageing import AgeingPolicy
from uvsdk.errors import EnrolmentError, ModelMismatchError, StoreError, ThresholdError
from uvsdk.identify import DEFAULT_FPIR, Identification, SearchThreshold, identify
from uvsdk.records.transfer import stays_here
from uvsdk.scoring import Decision, Threshold
from uvsdk.templates.attempts import RetryPolicy
from uvsdk.templates.gallery import Gallery
from uvsdk.templates.template import Template
from uvsdk.verify import threshold_for, verify_with_embedding
from uvsdk_device import ageing as versions
from uvsdk_device.attempts import AttemptGate
from uvsdk_device.keystore import EncryptedStore
from uvsdk_device.reembedding import is_current, remake
from uvsdk_device.releases import Signed, adopted_bundle, adopted_modality, read_standing

if TYPE_CHECKING:
    from uvsdk.arrays import Float32
    from uvsdk.modality import Capture, Sample
    from uvsdk.presentation import PresentationAttackDetector


class Runtime:
    """Verifies the users of one store, with one model or with what its deployment has released. Safe to share between
    threads.

    Without ``model`` it verifies by the release that the store has adopted (:mod:`uvsdk_device.releases`), and by the
    next one as soon as the store has adopted that, whichever process it was that did.

    The store must work with a model that is named (:mod:`uvsdk_device.acceptance`): the one that people were enrolled
    with does, and another one once it was accepted. It is used as it is, whatever was released meanwhile, with the
    template that was made under it; where there is none, or its threshold is of another calibration, it is made from
    the stored features, once, when its user is first verified, and the store keeps it.

    Failed attempts are counted in the store, for each person and for the device, and closed as ``retry`` says
    (:mod:`uvsdk.templates.attempts`).

    Args:
        store: this device's.
        model: a bundle, or the path of one; ``None`` for the release that the store has adopted.
        modality: of the release, where the store has adopted some of several.
        retry: what failures in a row cost. ``None`` lets everybody try for ever: only for measurements, or where the
            application itself counts.
        ageing: lets templates follow their people, see :mod:`uvsdk.enrolment.ageing`; ``None`` verifies with what the
            enrolment made, whatever steps were taken earlier.
        keep_cohort: whether to hold other people's embeddings, where the bundle's calibration has some: only a search
            (:meth:`identify`) measures anything on them, and AS-norm, under which they stay whatever is said here.
        strict_domain: refuse what the model's calibration does not speak for, as for :func:`uvsdk.verify`.
        clock: gives Unix time.

    Raises:
        ExchangedBundleError: the store works with another model, and nobody has accepted this one.
        SettingsError: no model was named, and no release was adopted, or several were.

    >>> from uvsdk.templates.attempts import RetryPolicy
    >>> patient = RetryPolicy(free_failures=3, first_delay_s=60.0)  # Runtime(store, model, retry=patient)
    """

    def __init__(
        self,
        store: EncryptedStore,
        model: Bundle | str | os.PathLike[str] | None = None,
        *,
        modality: str = "",
        retry: RetryPolicy | None = RetryPolicy(),  # noqa: B008 - frozen
        ageing: AgeingPolicy | None = None,
        keep_cohort: bool = True,
        strict_domain: bool = False,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._store = store
        self._strict_domain = strict_domain
        self._gate = None if retry is None else AttemptGate(store, retry, clock)
        self._ageing_policy = ageing
        self._keep_cohort = keep_cohort
        self._clock = clock
        self._modality = modality if model is not None else adopted_modality(store, modality)
        self._following = model is None
        self._release = 0
        self._last: tuple[Signed, Runtime] | None = None
        if model is not None:
            self._open(open_bundle(model))
        else:
            self.settled()

    __reduce_ex__ = stays_here("it works on an open store; make it in each process")

    def _open(self, bundle: Bundle) -> None:
        self._opened = bundle
        self._accepted = self._store.check_model(bundle)
        self._bundle = bundle if self._keep_cohort or _normalises(bundle) else bundle.without_cohort()
        self._ageing = (
            None
            if self._ageing_policy is None
            else versions.TemplateAgeing(self._store, self._bundle, self._ageing_policy, self._clock)
        )

    def settled(self) -> Runtime:
        """This runtime with the model that it verifies with now, for several calls that belong together.

        Raises:
            StoreError: the adopted release's bundle is missing or was altered on the disk.
        """
        if not self._following:
            return self
        for last_try in (False, True):
            adopted = read_standing(self._store, self._modality).adopted
            if not adopted:
                raise StoreError("the store's record of releases is gone; restore it from a backup, or name a model")
            last = self._last
            if last is not None and last[0] == adopted[0]:
                return last[1]
            try:
                bundle = adopted_bundle(self._store, adopted[0])
                break
            except StoreError:
                # Two releases later than what was just read, its bundle is gone.
                if last_try or read_standing(self._store, self._modality).adopted == adopted:
                    raise
        runtime = object.__new__(type(self))  # shares the counting of attempts
        runtime.__dict__.update(self.__dict__)
        runtime._following = False
        runtime._release = adopted[0].release.number
        runtime._open(bundle)
        self._last = (adopted[0], runtime)
        return runtime

    @property
    def bundle(self) -> Bundle:
        """The model it verifies with now."""
        return self.settled()._bundle

    def verify(
        self,
        user_id: str,
        probe: Sample,
        *,
        threshold: Threshold | None = None,
        fmr: float | None = None,
        fallback: bool = False,
        capture: Capture | None = None,
        detectors: Sequence[PresentationAttackDetector] = (),
        told: bool = False,
    ) -> Decision:
        """Whether ``probe`` is of that user. Where templates follow their people, an accepted probe may move this one.

        Args:
            user_id: enrolled in the store.
            probe: one sample, in any form the modality reads.
            threshold: in place of the template's own.
            fmr: false match rate to decide at in place of the template's own, see :func:`uvsdk.verify.threshold_for`.
            fallback: where the trials cannot support ``fmr``, decide at the lowest rate that they support.
            capture: how the probe is taken: quality policy, rule for several faces, limits.
            detectors: presentation attack detectors that look at the probe too.
            told: whether somebody else than whoever holds the store is told the score; then every answer counts as an
                attempt (:mod:`uvsdk.templates.attempts`).

        Raises:
            TooManyAttemptsError, DisabledError: after failures in a row; the probe was not looked at.
            UnknownUserError: not enrolled here.
            SampleError: the probe cannot be used.
            ModelMismatchError: the template is of another model and no features were kept to make it again.
            ThresholdError: no threshold, or a rate that the calibration cannot support.
            UncalibratedDomainError: the runtime is strict, and the calibration does not speak for this comparison.
        """
        if self._following:
            return self.settled().verify(
                user_id,
                probe,
                threshold=threshold,
                fmr=fmr,
                fallback=fallback,
                capture=capture,
                detectors=detectors,
                told=told,
            )
        enrolled = self.template(user_id)
        template = enrolled if self._ageing is None else self._ageing.in_use(user_id, enrolled)
        probes: list[Float32] = []

        def compare() -> Decision:
            decision, embedded = verify_with_embedding(
                probe,
                template,
                model=self._bundle,
                threshold=threshold,
                fmr=fmr,
                fallback=fallback,
                capture=capture,
                detectors=detectors,
                strict_domain=self._strict_domain,
                release=self._release,
            )
            probes.append(embedded.embedding)
            return decision

        if self._gate is None:
            decision = compare()
        else:
            decision = self._gate.decide(user_id, compare, in_force=self._in_force(enrolled), told=told)
        if self._ageing is not None and decision.accepted:
            # Who was recognised is let in, even where the disk is full or the user was deleted meanwhile.
            with contextlib.suppress(StoreError):
                self._ageing.learn(user_id, enrolled, probe=probes[0], decision=decision)
        return decision

    def rate(self, user_id: str) -> float:
        """The false match rate at which that user is verified where nobody asks for another.

        Raises:
            UnknownUserError, ModelMismatchError, ThresholdError: see :meth:`verify`.
        """
        now = self.settled()
        return threshold_for(now.template(user_id), now._bundle).fmr

    def count_attempt(self, user_id: str, compare: Callable[[], Decision]) -> Decision:
        """A decision that is made otherwise, counted as one attempt: of a voice stream, or fused of voice and face.

        :meth:`verify` counts by itself; :func:`uvsdk.verify` and :class:`uvsdk.stream.VoiceStream` remember nothing.

        Args:
            user_id: enrolled in the store; :meth:`template` gives what to compare with.
            compare: makes the decision; not called where the attempt is refused. Where it accepts at a higher rate than
                the template's, the template's threshold says how it counts.

        Raises:
            TooManyAttemptsError, DisabledError: after failures in a row.
            UnknownUserError: not enrolled here.
        """
        if self._gate is None:
            return compare()
        now = self.settled()
        return self._gate.decide(user_id, compare, in_force=now._in_force(now.template(user_id)))

    def _in_force(self, template: Template) -> Threshold | None:
        """By which an acceptance at a higher rate is judged; ``None`` where there is none."""
        try:
            return threshold_for(template, self._bundle)
        except ThresholdError:
            return None

    def identify(
        self,
        probe: Sample,
        people: Gallery,
        *,
        fpir: float = DEFAULT_FPIR,
        top: int = 5,
        threshold: SearchThreshold | None = None,
        fallback: bool = False,
        capture: Capture | None = None,
        detectors: Sequence[PresentationAttackDetector] = (),
    ) -> Identification:
        """Who of ``people`` gave ``probe``: :func:`uvsdk.identify.identify`, counted as an attempt on this device.

        Searches in which nobody is named count for the device as failed verifications do, so that probes cannot be
        tried here without end.

        Args:
            probe: one sample, in any form the modality reads.
            people: who can be named, see :meth:`gallery`.
            fpir, top, threshold, fallback, capture, detectors: as for :func:`uvsdk.identify.identify`. Whoever is named
                at a higher rate than 1 % counts as nobody.

        Raises:
            TooManyAttemptsError, DisabledError: after failures in a row; the probe was not looked at.
            SampleError, ModelMismatchError, ThresholdError: as for :func:`uvsdk.identify.identify`; the last but one
                also where a release was adopted since the gallery was made: make it again.
            UncalibratedDomainError: the runtime is strict, and the calibration does not speak for this search.
        """
        now = self.settled()

        def search() -> Identification:
            return identify(
                probe,
                people,
                model=now._bundle,
                fpir=fpir,
                top=top,
                threshold=threshold,
                fallback=fallback,
                strict_domain=self._strict_domain,
                release=now._release,
                capture=capture,
                detectors=detectors,
            )

        return search() if self._gate is None else self._gate.search(search)

    def template(self, user_id: str) -> Template:
        """The user's template for this runtime's model, made and stored where there is none.

        Raises:
            UnknownUserError, ModelMismatchError, ThresholdError: see :meth:`verify`.
            ExchangedBundleError: somebody was enrolled with another model meanwhile.
        """
        if self._following:
            return self.settled().template(user_id)
        found = self._store.template_for(user_id, self._fits)
        if not self._accepted:
            # The first model of a store that an older version wrote, or one that somebody has signed.
            if not self._store.check_model(self._opened):
                self._store.accept_model(self._opened)
            self._accepted = True
        if found is not None:
            return found
        return self._made(user_id)

    def _fits(self, template: Template) -> bool:
        return is_current(template, self._bundle)

    def _made(self, user_id: str) -> Template:
        """A new template under this model: the one in use, unless the store verifies by a release of another."""
        try:
            with self._store.lock():
                # Another thread or process may have been faster.
                found = self._store.template_for(user_id, self._fits)
                if found is not None:
                    return found
                enrolment = self._store.enrolment(user_id)
                known = next((item for item in self._store.templates(user_id) if item.threshold is not None), None)
                made = remake(
                    enrolment.template if enrolment.template.threshold is not None or known is None else known,
                    enrolment.features,
                    self._bundle,
                    fresh=self._store.fresh_samples(user_id, enrolment.features, self._bundle.version),
                )
                adopted = read_standing(self._store, self._bundle.manifest.modality).adopted
                if adopted and adopted[0].release.bundle != self._opened.digest:
                    self._store.keep_template(user_id, made, enrolment_id=enrolment.enrolment_id)
                else:
                    self._store.use_template(user_id, made, enrolment_id=enrolment.enrolment_id)
                return made
        except EnrolmentError as error:
            template = self._store.template(user_id)
            if template.model_version == self._bundle.version:
                return template
            raise ModelMismatchError(
                f"the template was made with model {template.model_version[:12]}, this is {self._bundle.version[:12]}, "
                "and no features were kept to make it again; enrol again, or use the bundle it was made with"
            ) from error

    def gallery(self) -> Gallery:
        """Everybody in the store, for :func:`uvsdk.identify.identify`, with the templates :meth:`verify` compares with.

        Who enrols or leaves later is put in or taken out by the application.

        Raises:
            ModelMismatchError, ThresholdError: see :meth:`verify`.
        """
        now, people = self.settled(), Gallery()
        for user_id in self._store.users():
            enrolled = now.template(user_id)
            people.add(user_id, enrolled if now._ageing is None else now._ageing.in_use(user_id, enrolled))
        return people

    def revert_template(self, user_id: str, *, steps: int | None = None) -> Template:
        """Take back what probes have done to a template, and give the one now in use.

        Args:
            user_id: enrolled in the store.
            steps: how many of the newest steps; ``None`` for all, which leaves the template of the enrolment.

        Raises:
            UnknownUserError: not enrolled here.
            SettingsError: ``steps`` below 1.
        """
        return versions.revert_template(self._store, user_id, versions=steps, enrolled=self.template(user_id))


def _normalises(bundle: Bundle) -> bool:
    """Whether the bundle's scores are normalised against its cohort."""
    return bundle.calibration is not None and bundle.calibration.ratio is not None and bundle.calibration.ratio.top > 0
