"""What FedSS sends, asks for and receives, and who learns what of it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from uvsdk.arrays import Float32, Int64
from uvsdk.errors import SettingsError
from uvsdk.federation.sampled_softmax.columns import check_column_settings
from uvsdk.federation.strategy import Disclosure

LOSSES = ("sampled", "negatives", "positives", "full")
CORRECTIONS = ("ht", "none")
AGGREGATIONS = ("auto", "zero_fill", "holders")


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of FedSS; the defaults are the product's, :meth:`paper` gives the paper's.

    Args:
        loss: ``sampled`` (S4 Eq 5), ``negatives`` (NegOnly, S4 Eq 7), ``positives`` (PosOnly, S4 Eq 8) or ``full``, the
            same loss with every class of the label space asked for.
        correction: ``ht`` takes the negatives' inclusion probability off their logits (SPEC 5.2), ``none`` does not.
        aggregation: ``zero_fill`` divides a column's changes by the weight of all devices of the round, ``holders`` by
            that of those which had it; the latter counts negatives too often unless the correction is off (SPEC 5.3),
            so the two go together: ``auto`` takes ``zero_fill`` with ``ht`` and ``holders`` with ``none``.
        scale: of the cosines, 20 (S4 A.2).
        negatives: m, classes asked for beside the own ones; 0 takes max(50, 5 % of the label space). A device with
            fewer classes than another asks for correspondingly more, so that all ask for equally many.
        pool: ``anchors`` samples from synthetic anchors and from classes that devices listed by name; ``users`` from
            other people's class vectors as well, which thereby reach those devices.
        anchors: synthetic classes that nobody holds.
        epoch_rounds: a device keeps its sample for that many rounds of its own, by a key that stays on it; 0 draws
            anew each round. Rounds of one sample do not add up for whoever intersects them (SPEC 5.5), and the
            gradient is biased towards that sample.
        initialisation: of a person's class vector: ``centred_client_means``, ``client_means`` or ``random``.
        vector_rate: learning rate of the columns on a device as a multiple of the trunk's; 0 freezes them.
        momentum: of the columns on the server, 0.9 (S4 A.2).
        server_rate: step size of the columns on the server, 1 (S4 A.2).
        foreign_cap: longest change of a column that is not the device's own; 0 for any.
        samples_cap: most samples that count in a device's weight; 1 weights all alike. The papers weight by samples,
            which are a device's own word.
    """

    loss: str = "sampled"
    correction: str = "ht"
    aggregation: str = "auto"
    scale: float = 20.0
    negatives: int = 0
    pool: str = "anchors"
    anchors: int = 100
    epoch_rounds: int = 0
    initialisation: str = "centred_client_means"
    vector_rate: float = 1.0
    momentum: float = 0.9
    server_rate: float = 1.0
    foreign_cap: float = 0.1
    samples_cap: int = 1

    def __post_init__(self) -> None:
        for name, choices in (("loss", LOSSES), ("correction", CORRECTIONS), ("aggregation", AGGREGATIONS)):
            if getattr(self, name) not in choices:
                raise SettingsError(f"{name} {getattr(self, name)!r} is not one of {choices}")
        if (self.correction, self.aggregation) in (("ht", "holders"), ("none", "zero_fill")):
            raise SettingsError(
                f"aggregation {self.aggregation!r} with correction {self.correction!r} counts negatives wrongly; use "
                "zero_fill with ht, holders with none, or auto"
            )
        if self.negatives < 0 or self.epoch_rounds < 0:
            raise SettingsError("negatives and epoch_rounds cannot be negative")
        check_column_settings(self)

    @classmethod
    def paper(cls) -> Settings:
        """As printed in the paper: everybody's classes are the pool, columns start at random, no cap (S4 A.2)."""
        return cls(pool="users", anchors=0, initialisation="random", foreign_cap=0.0)

    @property
    def divide_by_holders(self) -> bool:
        """Whether ``holders`` is in force."""
        return self.aggregation == "holders" or (self.aggregation == "auto" and self.correction == "none")

    def size(self, label_space: int, most_held: int) -> int:
        """\\|S\\|, the classes that a device asks for: constant, so that it does not tell how many are its own.

        >>> Settings(negatives=11).size(160, 5), Settings(negatives=400).size(160, 5), Settings().size(10_000, 1)
        (16, 160, 501)
        """
        if self.loss == "full":
            return label_space
        sampled = self.negatives or max(50, math.ceil(0.05 * label_space))
        return min(label_space, sampled + most_held)


@dataclass(frozen=True, slots=True)
class Invitation:
    """Server to device, before a round: what there is to choose from.

    Args:
        classes: int64 (n,), ids of the label space, ascending.
        own: int64 (P,), those of the device's own classes.
        size: \\|S\\|, how many to ask for.
    """

    classes: Int64
    own: Int64
    size: int


@dataclass(frozen=True, slots=True)
class Request:
    """Device to server, before a round: int64 (s,), ids of the classes wanted, own ones among them, ascending."""

    classes: Int64


@dataclass(frozen=True, slots=True)
class Task:
    """Server to device, each round: the columns asked for.

    Args:
        classes: int64 (s,), as asked for.
        vectors: float32 (s, d), unit rows.
        own: int64 (P,), where in ``classes`` the device's own classes stand, in order of their names.
        label_space: n, from which the device knows the negatives' inclusion probability.
    """

    classes: Int64
    vectors: Float32
    own: Int64
    label_space: int


@dataclass(frozen=True, slots=True)
class Payload:
    """Device to server, each round, beside the trunk's delta.

    Args:
        classes: int64 (s,), ids of the columns that the task held.
        deltas: float32 (s, d), trained minus received.
    """

    classes: Int64
    deltas: Float32


DISCLOSURE = Disclosure(
    sends=(
        "the change of the trunk's parameters",
        "which classes it wants to train against, the own ones hidden among them by number but not by content",
        "the change of each of their class vectors; that of the own class vector points along the person's embeddings",
        "the number of enrolment samples",
    ),
    receives=(
        "the trunk's parameters",
        "the ids of all classes in its label space",
        "the own class vector and those of the classes it asked for: synthetic anchors and classes that devices listed "
        "by name; other people's as well under pool = users",
    ),
    once=(
        "the mean of the enrolment embeddings; nothing under initialisation = random",
        "the names of the classes it holds, from a device of several",
    ),
    server_learns=(
        "a template of every person under a hashed id: the class vectors are its own, and their changes show which of "
        "them is the device's (SPEC 5.5), so the sample hides nothing from a server that reads the changes"
    ),
    others_learn=(
        "the trunk that all trained together and the pool's class vectors; under pool = users the class "
        "vectors, usable templates, of the people they ask for, and they may move them a little"
    ),
)
