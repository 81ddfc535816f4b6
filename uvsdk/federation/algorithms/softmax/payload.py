"""What the softmax oracle sends and receives, and who learns what of it."""

from __future__ import annotations

from dataclasses import dataclass

from uvsdk.arrays import Float32, Int64
from uvsdk.federation.sampled_softmax.columns import check_column_settings
from uvsdk.federation.strategy import Disclosure


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of the softmax oracle.

    Args:
        scale: of the cosines, 20 (S4 A.2).
        initialisation: ``random``, ``client_means`` or ``centred_client_means``.
        vector_rate: learning rate of the columns on a device as a multiple of the trunk's; 0 freezes them.
        momentum: of the columns on the server, 0.9 (S4 A.2).
        server_rate: step size of the columns on the server, 1 (S4 A.2).
        foreign_cap: longest change of a column that is not the device's own; 0 for any.
        samples_cap: most samples that count in a device's weight; 1 weights all alike. The papers weight by samples,
            which are a device's own word.
    """

    scale: float = 20.0
    initialisation: str = "random"
    vector_rate: float = 1.0
    momentum: float = 0.9
    server_rate: float = 1.0
    foreign_cap: float = 0.0
    samples_cap: int = 1

    def __post_init__(self) -> None:
        check_column_settings(self)

    @property
    def loss(self) -> str:
        """Over every column."""
        return "full"

    @property
    def correction(self) -> str:
        """Nothing is sampled."""
        return "none"

    @property
    def pool(self) -> str:
        """Everybody's columns."""
        return "users"

    @property
    def anchors(self) -> int:
        """No class that nobody holds."""
        return 0

    @property
    def divide_by_holders(self) -> bool:
        """Every device has every column."""
        return False


@dataclass(frozen=True, slots=True)
class Task:
    """Server to device, each round: all of W.

    Args:
        classes: int64 (n,), ids, ascending.
        vectors: float32 (n, d), unit rows.
        own: int64 (P,), where in ``classes`` the device's own classes stand, in order of their names.
        label_space: n.
    """

    classes: Int64
    vectors: Float32
    own: Int64
    label_space: int


@dataclass(frozen=True, slots=True)
class Payload:
    """Device to server, each round, beside the trunk's delta.

    Args:
        classes: int64 (n,), ids of the columns that the task held.
        deltas: float32 (n, d), trained minus received.
    """

    classes: Int64
    deltas: Float32


DISCLOSURE = Disclosure(
    sends=(
        "the change of the trunk's parameters",
        "the change of every class vector; that of the own one points along the person's embeddings",
        "the number of enrolment samples",
    ),
    receives=("the trunk's parameters", "the class vectors of all people"),
    once=(
        "the mean of the enrolment embeddings under an initialisation from means",
        "the names of the classes it holds, from a device of several",
    ),
    server_learns="a template of every person under a hashed id, and each device's change of trunk and class vectors",
    others_learn="the trunk, and everybody's class vector, a usable template; they may move it as they like",
)
