"""``uvsdk export``: make a bundle from a backbone."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

from uvsdk.bundle.manifest import PARTS
from uvsdk.cli import Command, setting

DEFAULTS: Final[Mapping[str, tuple[str, str]]] = MappingProxyType(
    {"voice": ("campplus", "head"), "face": ("sface", "all")}
)
"""Modality -> the model to begin with, and the part of it that devices train."""


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "backbone",
        metavar="BACKBONE",
        help="voice or face, which choose the model to begin with; a backbone's name; sface, auraface or"
        " wespeaker-resnet34",
    )
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="FILE", help="the bundle to write (.uvb)")
    parser.add_argument(
        "--train",
        choices=PARTS,
        help="what devices will train: all of it, the last block, or the head alone; the rest is frozen (default all,"
        " and of voice the head)",
    )
    parser.add_argument(
        "--presentation",
        metavar="NAME",
        help="a presentation attack detector to go with a face model: antispoof (see also `uvsdk presentation`)",
    )
    parser.add_argument(
        "--overlap",
        nargs="?",
        const="int8",
        choices=("int8", "float32"),
        help="a voice model also carries what hears people who speak at the same time, in 8 bits (1.9 MB) or in floats"
        " (6 MB); such recordings are then refused",
    )
    parser.add_argument("--weights", type=Path, metavar="PATH", help="weights to use instead of the catalogue's")
    parser.add_argument("--download", action="store_true", help="fetch weights that are not here")
    parser.add_argument("--seed", type=int, default=0, help="of backbones that start from random values (default 0)")
    parser.add_argument("--no-card", action="store_true", help="leave the bundle uncalibrated")
    parser.add_argument(
        "--set",
        type=setting,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="change a preprocessing setting, e.g. minimum_speech_s=0.3",
    )


def _run(arguments: argparse.Namespace) -> int:
    from uvsdk.errors import SettingsError

    name, part = DEFAULTS.get(arguments.backbone, (arguments.backbone, "all"))
    part = arguments.train or part
    if name == "sface":
        from uvsdk.training.graphs.sface import sface_bundle

        if arguments.set:
            raise SettingsError("sface has no settings to change")
        if part != "all":
            raise SettingsError("sface is a fixed model: nothing of it is trained, so there is no part to name")
        bundle = sface_bundle(weights=arguments.weights, download=arguments.download)
    elif _is_network(name):
        from uvsdk.training.graphs.network import network_bundle

        if part != "all":
            raise SettingsError(f"{name} is a fixed model: nothing of it is trained")
        bundle = network_bundle(
            name,
            weights=arguments.weights,
            download=arguments.download,
            preprocessing=dict(arguments.set),
        )
    else:
        from uvsdk.training import backbones
        from uvsdk.training.export import export_bundle

        backbone = backbones.get(name, part).load(
            weights=arguments.weights, download=arguments.download, seed=arguments.seed
        )
        bundle = export_bundle(backbone, download=arguments.download, preprocessing=dict(arguments.set))
    if arguments.presentation:
        from uvsdk.training.graphs.antispoof import presentation_graph

        bundle = bundle.with_presentation(presentation_graph(arguments.presentation, download=arguments.download))
    if not arguments.no_card:
        from uvsdk.bundle import cards

        bundle = cards.with_card(bundle)
    if arguments.overlap:  # after the card, which is found by the manifest as it was measured
        from uvsdk.training.graphs.segmentation import with_overlap

        bundle = with_overlap(bundle, precision=arguments.overlap, download=arguments.download)
    bundle.save(arguments.output)
    size = arguments.output.stat().st_size
    print(f"{arguments.output}  {bundle.manifest.modality}/{bundle.manifest.backbone}  {size / 1e6:.1f} MB")
    print(f"model version {bundle.version}")
    if bundle.calibration is not None:
        print(f"calibrated by a card: {bundle.calibration.source}; {bundle.calibration.account}")
        print("replace it with uvsdk calibrate on your own people")
    if bundle.manifest.train != "all":
        print(f"of it the {bundle.manifest.train} is trained: an update has {4 * bundle.manifest.size / 1e3:,.0f} kB")
    for source in bundle.manifest.sources:
        print(f"from {source}")
    return 0


def _is_network(name: str) -> bool:
    from uvsdk.training.catalogue import CATALOGUE

    return name in CATALOGUE and CATALOGUE[name].network is not None


COMMAND = Command("export", "make a model bundle that runs without torch", _configure, _run)
