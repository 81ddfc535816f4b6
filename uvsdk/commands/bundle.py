"""``uvsdk bundle``: what a model bundle is, and who stands behind it."""

from __future__ import annotations

import argparse
import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from uvsdk.cli import Command

if TYPE_CHECKING:
    from uvsdk.bundle import Bundle


def _configure(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="show|key|sign|verify|strip")
    show = actions.add_parser("show", help="members, digests, calibration and signature")
    show.add_argument("bundle", type=Path, metavar="BUNDLE")
    key = actions.add_parser("key", help="make a publisher's key; its public key goes beside it, as FILE.pub")
    key.add_argument("output", type=Path, metavar="FILE", help="the private key (PEM, mode 0600); must not exist")
    sign = actions.add_parser("sign", help="stand behind every member of a bundle")
    sign.add_argument("bundle", type=Path, metavar="BUNDLE")
    sign.add_argument("--key", type=Path, required=True, metavar="FILE", help="a publisher's private key")
    sign.add_argument("--issuer", default="", metavar="TEXT", help="what the publisher calls itself")
    sign.add_argument("--with-cohort", action="store_true", help="even if it holds people's embeddings (a cohort)")
    strip = actions.add_parser("strip", help="leave people's embeddings (a cohort) out of a bundle")
    strip.add_argument("bundle", type=Path, metavar="BUNDLE")
    for action in (sign, strip):
        action.add_argument("-o", "--output", type=Path, metavar="FILE", help="where to write it (default: in place)")
    verify = actions.add_parser("verify", help="exit status 0 where one of the keys has signed the bundle, else 1")
    verify.add_argument("bundle", type=Path, metavar="BUNDLE")
    verify.add_argument(
        "--trusted", type=Path, required=True, action="append", metavar="KEY", help="a publisher's public key"
    )


def _run(arguments: argparse.Namespace) -> int:
    from uvsdk.bundle import Bundle
    from uvsdk.errors import SettingsError
    from uvsdk.privacy import bundle_signing

    if arguments.action == "key":
        public = arguments.output.with_name(arguments.output.name + ".pub")
        key = bundle_signing.new_private_key(arguments.output)
        public.write_bytes(bundle_signing.public_pem(key.public_key()))
        print(f"{arguments.output}  keep it secret: whoever has it can publish models in your name")
        print(f"{public}  hand it to those who are to trust your models")
        return 0
    if arguments.action == "verify":
        trusted = [bundle_signing.read_public_key(path) for path in arguments.trusted]
        bundle = Bundle.open(arguments.bundle, trusted=trusted)
    else:
        bundle = Bundle.open(arguments.bundle)
    if arguments.action == "strip":
        bundle = bundle.without_cohort()
        bundle.save(arguments.output or arguments.bundle)
    if arguments.action == "sign":
        holds_people = bundle.calibration is not None and bundle.calibration.cohort is not None
        if holds_people and not arguments.with_cohort:
            raise SettingsError(
                "the bundle holds people's embeddings (a cohort), and what is signed is handed out: leave them "
                "out with `uvsdk bundle strip`, or add --with-cohort if these people agree to that"
            )
        bundle = bundle.sign(bundle_signing.read_private_key(arguments.key), issuer=arguments.issuer)
        bundle.save(arguments.output or arguments.bundle)
    for line in _lines(bundle):
        print(line)
    return 0


def _lines(bundle: Bundle) -> list[str]:
    manifest, calibration, signature = bundle.manifest, bundle.calibration, bundle.signature
    lines = [
        f"{manifest.modality}/{manifest.backbone}, {manifest.dimension} dimensions",
        f"bundle digest  {bundle.digest}",
        f"model version  {bundle.version}",
    ]
    if calibration is None:
        lines.append("calibration    none")
    else:
        lines.append(f"calibration    {calibration.digest}")
        lines.append(f"  measured on {calibration.source}; {calibration.account}")
        if calibration.measured_unix_s:
            day = datetime.datetime.fromtimestamp(calibration.measured_unix_s, datetime.UTC).date()
            lines.append(f"  dated {day.isoformat()}")
        if calibration.cohort is not None:
            lines.append(
                f"  a cohort: {len(calibration.cohort.embeddings):,} embeddings of {calibration.cohort.people:,} "
                "people, as personal as their templates; uvsdk calibrate leaves them out unless told otherwise"
            )
    if bundle.presentation is not None:
        lines.append(f"detector       {bundle.presentation.detector}")
    lines += [f"member         {name}  {digest}" for name, digest in bundle.members.items()]
    if signature is None:
        lines.append("signature      none")
    else:
        lines.append(f"signature      key {signature.key_id}{f', {signature.issuer}' if signature.issuer else ''}")
        lines.append("               whether the key is to be trusted: uvsdk bundle verify --trusted KEY")
    return lines if bundle.signed_by is None else [*lines[:-1], "               the key is one of those trusted"]


COMMAND = Command("bundle", "show a model bundle, sign it, check its signature", _configure, _run)
