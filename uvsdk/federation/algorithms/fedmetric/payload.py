"""What FedMetric sends and receives, and who learns what of it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from uvsdk.arrays import Float32
from uvsdk.errors import SettingsError
from uvsdk.federation.algorithms.fedmetric.proxies import FEWEST_SAMPLES, Shift
from uvsdk.federation.strategy import Disclosure

_WORDS = {
    "sharing": ("proxy", "none", "true"),
    "negative_loss": ("squared", "hinge"),
    "negative_reduction": ("sum", "mean"),
    "positive_loss": ("squared", "linear"),
    "centre": ("trained", "fixed", "batch"),
    "initialisation": ("apart", "random"),
    "measured": ("global", "local"),
}
_NOT_NEGATIVE = (
    "negative_weight",
    "pull_radius",
    "centre_rate",
    "centre_push",
    "centre_samples",
    "radius_samples",
    "radius_min",
    "offset_factor",
    "offset_factor_min",
    "offset_min",
    "margin_max",
    "proxies",
    "age_max",
)

FARTHEST = 2.0
"""The longest distance of two points on the unit sphere, so the largest radius of a ball of embeddings."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of FedMetric; the defaults are the product's, :meth:`paper` gives the paper's.

    On unit embeddings, and with margins clamped to 1.2, the loss as printed collapses on voices (the paper says
    neither of
    the two, see :meth:`paper`): the centre is wherever the embeddings are, so nothing holds it, the push of others
    shrinks with the balls, and the pull does not. Three settings mend it: a ``trained`` centre, kept
    between rounds and itself pushed out of the balls; margins clamped by ``cap_cosine``, so that a ball whose offset
    is long still pushes; a pull that stops at ``pull_radius``.

    Args:
        sharing: ``proxy``; ``none`` for positives only; ``true`` for the centres themselves, which are templates: a
            yardstick for laboratories that a server runs only where its operator names it.
        negative_weight: lambda (S3 Eq 4), of the push on embeddings.
        negative_loss: ``squared`` hinge (S3 Eq 6), or ``hinge`` as S3 Alg 1 prints it.
        negative_reduction: of the push on embeddings, over the proxies that a device has: ``sum`` (S3 Eq 6), or
            ``mean``, by which lambda means the same among 10 people and among 10,000.
        positive_loss: ``squared``, the mean of max(0, d - pull_radius)^2, or ``linear``, without the square; S3 Eq 5
            is ``linear`` with a radius of 0.
        pull_radius: embeddings nearer to the centre than this are not pulled any further. The default is the distance
            of unit vectors with the cosine 0.9, tau_p of the other methods.
        centre: ``trained``, a unit vector that stays on the device, follows the embeddings and is pushed like them;
            ``fixed``, the mean of the embeddings before the local steps (S3 Alg 1); or ``batch``, the mean of
            the batch (S3 section 3.1). The last two are constants to the gradient.
        initialisation: a trained centre starts ``apart``, as the mean embedding less the mean of what others published
            (from the mean itself all would start in one place), or as a secret ``random`` direction. Apart is better
            among a hundred people and more; among ten the mean of the others' offsets drowns what is left.
        centre_rate: learning rate of a trained centre as a multiple of the trunk's.
        centre_push: weight of the push on a trained centre, summed over the proxies.
        centre_samples: a fixed centre, and a trained one at its start, is the mean of this many of the device's
            samples, its first; 0 for all.
        measured: the ball that is shared is measured under the ``global`` trunk that the round starts from, whose
            successor everybody will use, or under the ``local`` one after the local steps, which is nobody else's.
        radius_samples: it is measured on this many samples, the first; 0 for all, without which it may not hold all.
        radius_min: least radius of the ball that is shared, whatever the embeddings do.
        percentile: of the distances that the radius is; under 100 the farthest samples are not contained.
        offset_factor: s, the length of a new offset in radii (S3 section 4.2 asks for more than 1).
        offset_factor_min: an offset shorter than this many radii is replaced.
        offset_min: D_min, the least length of an offset.
        margin_max: a proxy's margin is clamped to this in training; 0 for no such clamp.
        cap_cosine: and to what leaves room on the unit sphere: unit vectors whose cosine with a proxy's direction is
            at most this are not pushed by it. -1 clamps no margin but one whose ball covers the whole sphere.
        proxies: q, how many proxies a device is sent in a round; 0 for all.
        age_max: rounds after which a proxy that was not refreshed is dropped.
        publish_every: rounds after which a device that takes part refreshes its proxy.
    """

    sharing: str = "proxy"
    negative_weight: float = 0.3
    negative_loss: str = "squared"
    negative_reduction: str = "mean"
    positive_loss: str = "squared"
    pull_radius: float = 0.447
    centre: str = "trained"
    initialisation: str = "apart"
    centre_rate: float = 1.0
    centre_push: float = 1.0
    centre_samples: int = 0
    measured: str = "global"
    radius_samples: int = 0
    radius_min: float = 0.0
    percentile: float = 100.0
    offset_factor: float = 3.0
    offset_factor_min: float = 1.5
    offset_min: float = 0.3
    margin_max: float = 0.0
    cap_cosine: float = 0.0
    proxies: int = 0
    age_max: int = 20
    publish_every: int = 1

    def __post_init__(self) -> None:
        for name, allowed in _WORDS.items():
            if getattr(self, name) not in allowed:
                raise SettingsError(f"{name} {getattr(self, name)!r} is not one of {allowed}")
        for name in _NOT_NEGATIVE:
            if not 0 <= getattr(self, name) < math.inf:
                raise SettingsError(f"{name} is {getattr(self, name)}; it must be finite and not negative")
        for name in ("pull_radius", "radius_min"):
            if getattr(self, name) > FARTHEST:
                raise SettingsError(f"{name} is {getattr(self, name)}; distances on the unit sphere lie in [0, 2]")
        if not -1 <= self.cap_cosine < 1:
            raise SettingsError(f"cap_cosine is {self.cap_cosine}; it must lie in [-1, 1)")
        if 0 < self.radius_samples < FEWEST_SAMPLES or self.publish_every < 1:
            raise SettingsError(f"radius_samples is 0 or at least {FEWEST_SAMPLES}, publish_every at least 1")
        if self.age_max < self.publish_every - 1:
            raise SettingsError(
                f"a proxy refreshed every {self.publish_every} rounds is dropped before, at age {self.age_max}; "
                "raise age_max or lower publish_every"
            )
        if not 0 < self.percentile <= 100:
            raise SettingsError(f"percentile is {self.percentile}; it must lie in (0, 100]")
        if self.sharing == "proxy" and self.offset_factor <= 0:
            raise SettingsError("offset_factor is 0: the proxies would be the true centres; say sharing = true instead")

    @classmethod
    def paper(cls) -> Settings:
        """The loss printed in the paper, on unit embeddings, with a frozen offset and margins below 1.2.

        These three are ours (SPEC 4.4, 4.5): the paper draws an offset each round and does not say whether embeddings
        are normalised or margins clamped.
        """
        return cls(
            negative_reduction="sum",
            positive_loss="linear",
            pull_radius=0.0,
            centre="fixed",
            margin_max=1.2,
            cap_cosine=-1.0,
        )

    def shift(self) -> Shift:
        """How far a proxy is moved from the true centre."""
        return Shift(self.offset_factor, self.offset_factor_min, self.offset_min)

    def longest_margin(self) -> float:
        """The largest M that a device can publish: R <= 2 and D <= max(s R, D_min)."""
        if self.sharing == "true":
            return FARTHEST
        return FARTHEST + max(self.offset_factor * FARTHEST, self.offset_min)


@dataclass(frozen=True, slots=True)
class Task:
    """Server to device, each round: balls to stay out of, without a name and in random order.

    Args:
        centres: float32 (q, d), A of others.
        margins: float32 (q,), their M; 0 where a row only fills up, so that every device is sent as many.
        publish: whether the device is to send its own proxy anew.
    """

    centres: Float32
    margins: Float32
    publish: bool


@dataclass(frozen=True, slots=True)
class Payload:
    """Device to server beside the trunk's delta: the own proxy, or nothing.

    Args:
        centre: A, float32 (d,); (0,) where nothing is published.
        margin: M; 0 where nothing is published.
    """

    centre: Float32
    margin: float


DISCLOSURE = Disclosure(
    sends=(
        "the change of the trunk's parameters",
        "a proxy: a ball that holds this person's embeddings, its centre moved by a secret offset that stays on the "
        "device, and its radius; not before there are 3 samples",
        "the number of enrolment samples",
    ),
    receives=("the trunk's parameters", "proxies of others, without names and in random order"),
    once=("where the application links identities: a keyed hash of the person",),
    server_learns=(
        "under a hashed id, that this person's embeddings lie in the proxy ball, their mean about s radii from its "
        "centre in a direction it does not know, and each device's change of the trunk, from which the mean can be "
        "computed unless updates are summed under a mask"
    ),
    others_learn="the trunk that all trained together, and the same of every proxy, but not whose it is",
)
