"""Templates that follow their person, kept sealed beside the enrolment, which never changes.

One record a model holds the original, the last versions and which is in use, so a step is one atomic write: a crash
leaves the template before it or after it. While a release of another model verifies, the record waits, and a roll-back
goes on from it. It is void as soon as the enrolment is another one, goes with the user, and without a policy nobody
reads it.
"""

from __future__ import annotations

from collections.abc import Callable

from uvsdk.arrays import Float32
from uvsdk.bundle import Bundle
from uvsdk.enrolment.ageing import STRONG_FMR, AgeingPolicy, History, Step, begin, belongs, revert, step, template_of
from uvsdk.errors import StoreError, UnknownUserError, WireError
from uvsdk.records.codec import pack, unpack
from uvsdk.scoring import Decision, Threshold
from uvsdk.templates.template import Template
from uvsdk_device.keystore import AGEING, EncryptedStore


class TemplateAgeing:
    """Lets the templates of one store follow their people under one policy. Safe to share between threads.

    Args:
        store: keeps the histories.
        bundle: the model; a strong match is one at a threshold from its calibration.
        policy: the rules.
        clock: gives Unix time.
    """

    def __init__(self, store: EncryptedStore, bundle: Bundle, policy: AgeingPolicy, clock: Callable[[], float]) -> None:
        self._store = store
        self._bundle = bundle
        self._policy = policy
        self._clock = clock

    def in_use(self, user_id: str, enrolled: Template) -> Template:
        """The template to verify with. Raises :class:`StoreError` where the record is damaged."""
        return template_of(enrolled, read_history(self._store, user_id, enrolled.model_version))

    def learn(self, user_id: str, enrolled: Template, *, probe: Float32, decision: Decision) -> Step:
        """Take a step towards an accepted probe if the policy allows; nothing is written where it does not.

        Args:
            user_id: whose template ``decision`` was about.
            enrolled: the enrolment's own template at that time.
            probe: the embedding behind ``decision``.
            decision: about the probe and the template in use.

        Raises:
            StoreError: the step cannot be kept; the template is as it was.
            UnknownUserError: deleted meanwhile.
        """
        strong = self._strong(enrolled)
        if strong is None:
            return Step(begin(enrolled), "the calibration cannot support a threshold that is strict enough")
        with self._store.lock():
            history = read_history(self._store, user_id, enrolled.model_version)
            found = step(
                enrolled,
                history,
                probe=probe,
                decision=decision,
                strong=strong,
                policy=self._policy,
                now_s=self._clock(),
                calibration=self._bundle.calibration,
            )
            # Enrolled anew since the decision: the step is of a template that is gone.
            if found.taken and self._store.template_for(user_id, lambda kept: belongs(found.history, kept)) is not None:
                _keep(self._store, user_id, found.history)
        return found

    def _strong(self, enrolled: Template) -> Threshold | None:
        """The threshold of a strong match; ``None`` where there are too few trials, or no calibration.

        The calibration may not reach as far below the template's own rate as the policy asks, for that rate is the
        strictest one by default: then the strictest is strong, unless it is above :data:`STRONG_FMR`.
        """
        if self._bundle.calibration is None or enrolled.threshold is None:
            return None
        wanted = enrolled.threshold.fmr / self._policy.stricter
        rate = max(wanted, self._bundle.calibration.strictest("cosine"))
        return None if rate > max(wanted, STRONG_FMR) else self._bundle.calibration.threshold(rate)


def read_history(store: EncryptedStore, user_id: str, model_version: str | None = None) -> History | None:
    """What became of the user's template of one model, by default of the one in use; ``None`` where it never moved.

    Raises:
        StoreError: the record is damaged.
    """
    wanted = _version(store, user_id) if model_version is None else model_version
    # An earlier version kept one record, whatever the model.
    for name in (wanted, ""):
        try:
            (data,) = store.get(AGEING, name=name, user=user_id)
            history = unpack(History, data)
        except KeyError:
            continue
        except WireError as error:
            raise StoreError("the kept versions of a template do not read; revert it to the enrolment's own") from error
        if history.model_version == wanted:
            return history
    return None


def revert_template(
    store: EncryptedStore, user_id: str, *, versions: int | None = None, enrolled: Template | None = None
) -> Template:
    """Take back the newest ``versions`` steps of one of the user's templates, or all; gives the template now in use.

    Args:
        store: keeps the histories.
        user_id: enrolled in it.
        versions: how many steps; ``None`` for all.
        enrolled: which template; by default the one in use, and with all steps those of every other model too.

    Raises:
        UnknownUserError: not enrolled here.
        SettingsError: ``versions`` below 1.
    """
    with store.lock():
        chosen = store.template(user_id) if enrolled is None else enrolled
        if versions is None:
            for template in [chosen] if enrolled is not None else store.templates(user_id):
                _forget_versions(store, user_id, template)
            return chosen
        history = read_history(store, user_id, chosen.model_version)
        if history is None or not belongs(history, chosen):
            return chosen
        left = revert(history, versions=versions)
        _keep(store, user_id, left)
        return template_of(chosen, left)


def _forget_versions(store: EncryptedStore, user_id: str, enrolled: Template) -> None:
    """Back to the original, even where the record is damaged; the time of the last step stays if it can be read."""
    try:
        history = read_history(store, user_id, enrolled.model_version)
    except StoreError:
        history = None
    if history is not None and belongs(history, enrolled):
        _keep(store, user_id, revert(history))
    else:
        store.drop(AGEING, name=enrolled.model_version, user=user_id)
    store.drop(AGEING, user=user_id)  # as an earlier version kept it


def _keep(store: EncryptedStore, user_id: str, history: History) -> None:
    store.put(AGEING, [pack(history)], name=history.model_version, user=user_id)


def _version(store: EncryptedStore, user_id: str) -> str:
    try:
        return store.template(user_id).model_version
    except UnknownUserError:
        return ""
