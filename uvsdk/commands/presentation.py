"""``uvsdk presentation``: a presentation attack detector into a face bundle, or out of it."""

from __future__ import annotations

import argparse
from pathlib import Path

from uvsdk.cli import Command


def _configure(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="action")
    add = actions.add_parser("add", help="put a detector into a bundle; its model version and templates stay valid")
    add.add_argument("--detector", default="antispoof", help="which (default antispoof)")
    add.add_argument("--download", action="store_true", help="fetch weights that are not here")
    remove = actions.add_parser("remove", help="take it out again")
    for action in (add, remove):
        action.add_argument("bundle", type=Path, metavar="BUNDLE", help="a face bundle (.uvb)")
        action.add_argument("-o", "--output", type=Path, metavar="FILE", help="where to write it (default: in place)")


def _run(arguments: argparse.Namespace) -> int:
    from uvsdk.bundle import Bundle

    bundle = Bundle.open(arguments.bundle)
    signed = bundle.signature is not None
    if arguments.action == "add":
        from uvsdk.training.graphs.antispoof import presentation_graph

        bundle = bundle.with_presentation(presentation_graph(arguments.detector, download=arguments.download))
    else:
        bundle = bundle.with_presentation(None)
    target = arguments.output or arguments.bundle
    bundle.save(target)
    graph = bundle.presentation
    print(f"{target}  {bundle.manifest.modality}/{bundle.manifest.backbone}  {target.stat().st_size / 1e6:.1f} MB")
    print(f"model version {bundle.version}")
    if signed:
        print("its signature was of the bundle as it was: sign it again (uvsdk bundle sign)")
    print("no presentation attack detector" if graph is None else f"{graph.detector} from {graph.source}")
    return 0


COMMAND = Command("presentation", "put a presentation attack detector into a face bundle", _configure, _run)
