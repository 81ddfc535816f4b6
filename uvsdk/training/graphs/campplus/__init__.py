"""CAM++ below its head in 8-bit integers, which need no torch to run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from uvsdk.training.graphs import serialise
from uvsdk.training.graphs.campplus.integer import integer_graph
from uvsdk.training.graphs.campplus.ranges import digest, shipped_ranges

if TYPE_CHECKING:
    from uvsdk.training.backbones import Partial


def frozen_in_8_bits(backbone: Partial) -> bytes | None:
    """The graph of a ``campplus`` of which the head is trained; views -> z, ``frozen`` and ``spans``.

    ``None`` where the activations of its frozen layers were never measured: for other weights than those on record.
    """
    state = {name: value.detach().numpy() for name, value in backbone.stem.state_dict().items()}
    ranges = shipped_ranges()
    if digest(state) != ranges.weights:
        return None
    head = {name: value.detach().numpy() for name, value in backbone.rest.named_parameters(prefix="rest")}
    return serialise(integer_graph({name: np.asarray(value) for name, value in state.items()}, ranges, head))
