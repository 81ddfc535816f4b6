"""Bundles whose graphs are not the ones that this version feeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from uvsdk.arrays import Array
from uvsdk.errors import BundleError
from uvsdk.modality.contract import GraphInput, run


class Older:
    """A session that wants other inputs."""

    def run(self, output_names: Sequence[str], input_feed: Mapping[str, Array], /) -> Sequence[Array]:
        raise ValueError("Required inputs (['h']) are missing from input feed (['power']).")

    def get_inputs(self) -> Sequence[GraphInput]:
        return []


def test_a_graph_of_an_earlier_version_says_to_export_again() -> None:
    with pytest.raises(BundleError, match=r"does not fit this version of uvsdk; export the bundle again \(Required"):
        run(Older(), ["speech"], {"power": np.zeros((1, 40), np.float32)})
