"""What FedALC sends and receives, and who learns what of it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from uvsdk.arrays import Float32
from uvsdk.errors import SettingsError
from uvsdk.federation.classes.labels import check_form
from uvsdk.federation.classes.matrix import check_hinge
from uvsdk.federation.classes.spreadout import Spreadout
from uvsdk.federation.strategy import Disclosure

WEIGHTS = ("sigma", "gamma", "eq11")
MOVED = ("all", "participants")


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of FedALC; those it shares with FedAwS mean the same and have the same defaults.

    Args:
        margin_positive: tau_p of the positive hinge, 0.9 (S2 Eq 14); 1 keeps it always active.
        vector_rate: learning rate of the own class vector as a multiple of the trunk's; 0 freezes it on the device.
        initialisation: ``centred_client_means``, ``client_means`` or ``random``.
        weights: ``sigma`` (S2 Eq 8), ``gamma`` (S2 Eq 10), or ``eq11``: sigma over the k nearest classes (S2 Eq 11).
        unit_mean: scale the weights to mean 1, so that ``step`` means what it means in FedAwS. The paper does not:
            then sigma is of the order of 1/C, and gamma of 1/(C - 1).
        adaptive_margin: under ``eq11``, nu_u is the distance of the (k+1)-th neighbour, the margin that S2 describes;
            ``False`` keeps the fixed nu of S2 Eq 11 as printed.
        step: lambda x eta_s of one step.
        spread_steps: steps in a round.
        margin: nu as a cosine distance; 0 takes 1.1 for up to 10 classes, 1.0 to 100, 0.8 above.
        neighbours: k of ``eq11``; 0 takes min(C - 1, max(3, ceil(0.01 C))).
        max_angle_radians: longest move of a row in one step.
        moved: ``all`` rows, or ``participants``.
        instances: what devices hash to tell common samples: ``content``, ``embedding`` or ``off``.
        smallest_shared: fewest common samples for which a pair counts as correlated (SPEC 3.6); 1 counts every pair.
        instance_weighted: where no pair is correlated, sigma_uv is n_u / n. ``False`` makes the step that of FedAwS;
            ``True`` keeps these weights, with which S0 Prop 2 is exact for unbalanced data (SPEC 3.5).
    """

    margin_positive: float = 0.9
    vector_rate: float = 1.0
    initialisation: str = "centred_client_means"
    weights: str = "sigma"
    unit_mean: bool = True
    adaptive_margin: bool = True
    step: float = 0.1
    spread_steps: int = 1
    margin: float = 0.0
    neighbours: int = 0
    max_angle_radians: float = 0.3
    moved: str = "all"
    instances: str = "content"
    smallest_shared: int = 5
    instance_weighted: bool = False

    def __post_init__(self) -> None:
        check_hinge(self)
        check_form(self.instances, self.smallest_shared)
        if self.weights not in WEIGHTS:
            raise SettingsError(f"weights {self.weights!r} is not one of {WEIGHTS}")
        if self.moved not in MOVED:
            raise SettingsError(f"moved {self.moved!r} is not one of {MOVED}")
        if self.spread_steps < 0 or self.neighbours < 0:
            raise SettingsError("spread_steps and neighbours cannot be negative")
        self.spreadout()

    @classmethod
    def paper(cls, *, lambda_: float = 10.0, neighbours: int = 5) -> Settings:
        """The paper's for Bibtex: sigma over the 5 nearest, the margin its text describes, lambda 10, eta_s 1e-4."""
        return cls(
            initialisation="random",
            weights="eq11",
            unit_mean=False,
            step=lambda_ * 1e-4,
            neighbours=neighbours,
            smallest_shared=1,
        )

    def spreadout(self) -> Spreadout:
        """The part that :mod:`uvsdk.federation.classes.spreadout` acts on."""
        nearest = self.weights == "eq11"
        options = Spreadout(
            mode="topk_hinge" if nearest and self.adaptive_margin else "hinge",
            step_size=self.step,
            margin=self.margin or None,
            neighbours=self.neighbours or None,
            max_angle_radians=self.max_angle_radians,
        )
        # From the first class on, "hinge" then looks at the k nearest only: S2 Eq 11 as printed.
        literal = nearest and not self.adaptive_margin
        return replace(options, exact_limit=0) if literal else options


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
    once=(
        "a keyed hash of each enrolment sample, 32 bytes, unless instances = off",
        "the mean of the enrolment embeddings; nothing under initialisation = random",
        "where the application links identities: a keyed hash of the person",
    ),
    server_learns=(
        "a template of every person under a hashed id, each device's change of the trunk, and which devices hold the "
        "very same sample and how often: a graph of common files; not what a sample is, unless a device tells the "
        "server the cohort's key"
    ),
    others_learn="the trunk that all trained together; nobody else's class vector, and not who takes part",
)
