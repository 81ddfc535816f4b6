"""What FedAwS sends and receives, and who learns what of it."""

from __future__ import annotations

from dataclasses import dataclass

from uvsdk.arrays import Float32
from uvsdk.errors import SettingsError
from uvsdk.federation.classes.matrix import check_hinge
from uvsdk.federation.classes.spreadout import Spreadout
from uvsdk.federation.strategy import Disclosure

MOVED = ("all", "participants")
INDICES = ("exact", "approximate")


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of FedAwS; the defaults are the product's (SPEC 2.3, Appendix B), :meth:`paper` gives the paper's.

    Args:
        margin_positive: tau_p of the positive hinge, 0.9 (S0 Eq 23); 1 keeps it always active.
        vector_rate: learning rate of the own class vector as a multiple of the trunk's; 0 freezes it on the device.
        initialisation: ``centred_client_means``, ``client_means`` or ``random``.
        mode: ``hinge``, ``topk_neg_sq`` or ``topk_hinge``.
        step: lambda x eta_s of one spreadout step (only the product acts). It multiplies the plain sum over pairs,
            each of weight 1: 0.1 is the value measured best on three data sets (SPEC 16).
        spread_steps: spreadout steps in a round.
        margin: nu of ``hinge`` as a cosine distance; 0 takes 1.1 for up to 10 classes, 1.0 to 100, 0.8 above.
        neighbours: k; 0 takes min(C - 1, max(3, ceil(0.01 C))).
        reduction: ``sum``, or ``mean`` over the neighbours of a row.
        max_angle_radians: longest move of a row in one step.
        candidates: classes drawn at random as C' each round, the anchors being those who took part; 0 for all.
        exact_limit: classes above which ``hinge`` looks at the k nearest only, and the anchors are those who took part
            in any case.
        moved: ``all`` rows, or ``participants``: advised when fewer than a tenth take part in a round.
        neighbours_index: ``exact``, or ``approximate``: neighbours are sought in lists kept from round to round
            (:func:`uvsdk.federation.classes.neighbours.from_lists`). It makes a difference above 4,096 classes, for
            modes of nearest neighbours with all classes as candidates.
    """

    margin_positive: float = 0.9
    vector_rate: float = 1.0
    initialisation: str = "centred_client_means"
    mode: str = "hinge"
    step: float = 0.1
    spread_steps: int = 1
    margin: float = 0.0
    neighbours: int = 0
    reduction: str = "sum"
    max_angle_radians: float = 0.3
    candidates: int = 0
    exact_limit: int = 20_000
    moved: str = "all"
    neighbours_index: str = "exact"

    def __post_init__(self) -> None:
        check_hinge(self)
        if min(self.spread_steps, self.candidates, self.neighbours, self.exact_limit) < 0:
            raise SettingsError("spread_steps, candidates, neighbours and exact_limit cannot be negative")
        if self.moved not in MOVED:
            raise SettingsError(f"moved {self.moved!r} is not one of {MOVED}")
        if self.neighbours_index not in INDICES:
            raise SettingsError(f"neighbours_index {self.neighbours_index!r} is not one of {INDICES}")
        self.spreadout()

    @classmethod
    def paper(cls) -> Settings:
        """As printed: the literal regulariser, k = 100, lambda = 10 at eta = 0.1 (S0 Eq 8, Table 4)."""
        return cls(initialisation="random", mode="topk_neg_sq", step=1.0, neighbours=100)

    def spreadout(self) -> Spreadout:
        """The part that :mod:`uvsdk.federation.classes.spreadout` acts on."""
        return Spreadout(
            mode=self.mode,
            step_size=self.step,
            margin=self.margin or None,
            neighbours=self.neighbours or None,
            reduction=self.reduction,
            max_angle_radians=self.max_angle_radians,
            exact_limit=self.exact_limit,
        )


@dataclass(frozen=True, slots=True)
class Task:
    """Server to device, each round: the device's own class vector, float32 (d,), unit."""

    vector: Float32


@dataclass(frozen=True, slots=True)
class Payload:
    """Device to server, each round, beside the trunk's delta: the trained class vector, float32 (d,), unit."""

    vector: Float32


DISCLOSURE = Disclosure(
    sends=(
        "the change of the trunk's parameters",
        "the own class vector: a direction that stands for this person, usable as a template",
        "the number of enrolment samples",
    ),
    receives=("the trunk's parameters", "the own class vector as the spreadout moved it"),
    once=("the mean of the enrolment embeddings; nothing under initialisation = random",),
    server_learns=(
        "a template of every person under a hashed id, and each device's change of the trunk, from which the class "
        "vector can be computed as well; no recording, no photo, no single embedding of a person with several samples"
    ),
    others_learn="the trunk that all trained together; nobody else's class vector, and not who takes part",
)
