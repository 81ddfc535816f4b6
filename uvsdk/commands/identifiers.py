"""``uvsdk id hash``: the hashed id that a deployment's server knows a person by."""

from __future__ import annotations

import argparse
import unicodedata
from pathlib import Path

from uvsdk.cli import Command


def _configure(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="hash")
    hashed = actions.add_parser(
        "hash",
        help="print the hashed id of a user",
        description="Print the hashed id that the server knows a user by: what `user` is in POST /v1/verify.",
    )
    hashed.add_argument("user", metavar="USER", help="the id that the device enrolled")
    hashed.add_argument("--deployment", metavar="NAME", required=True, help="as `deployment` in training.json")
    hashed.add_argument("--pepper-file", metavar="FILE", type=Path, required=True, help="the deployment's secret")


def _run(arguments: argparse.Namespace) -> int:
    from uvsdk.errors import SettingsError
    from uvsdk.privacy.identifiers import hash_user_id

    for what, text in (("user id", arguments.user), ("deployment name", arguments.deployment)):
        # What a device enrolled may hold them; on a command line they come from a line's end that was taken along.
        for place, letter in enumerate(text):
            if unicodedata.category(letter) == "Cc":
                raise SettingsError(
                    f"the {what} has the control character U+{ord(letter):04X} at place {place + 1}, which a device "
                    "takes for a part of it; leave it out, or call uvsdk.hash_user_id() if it is meant"
                )
    try:
        pepper = arguments.pepper_file.read_bytes()
    except OSError as error:
        raise SettingsError(f"cannot read {arguments.pepper_file}: {error.strerror}") from error
    print(hash_user_id(arguments.user, deployment=arguments.deployment, pepper=pepper))
    return 0


COMMAND = Command("id", "the hashed ids that a server knows people by", _configure, _run)
