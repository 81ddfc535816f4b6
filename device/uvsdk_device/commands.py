"""The device's subcommands of ``uvsdk``."""

from __future__ import annotations

import argparse
import contextlib
import getpass
import json
import math
import os
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from uvsdk.cli import Command
from uvsdk.enroll import enroll
from uvsdk.enrolment.ageing import AgeingPolicy
from uvsdk.errors import SettingsError, StoreError, StoreLockedError, UvsdkError
from uvsdk.identify import DEFAULT_FPIR
from uvsdk.privacy.bundle_signing import read_public_key
from uvsdk.rest.verification import decision_document
from uvsdk_device.ageing import revert_template
from uvsdk_device.attempts import AttemptGate, reset_attempts
from uvsdk_device.deployment import forget_approval
from uvsdk_device.evaluations import EvaluationDone
from uvsdk_device.federation import Federation
from uvsdk_device.keystore import EncryptedStore
from uvsdk_device.membership import forget_here, is_member
from uvsdk_device.printouts import (
    decision_lines,
    enrolment_lines,
    identification_json,
    identification_lines,
    release_lines,
)
from uvsdk_device.releases import ReleaseReport, adopted_bundle, adopted_modality, forget_order, read_standing
from uvsdk_device.rounds import RoundReport
from uvsdk_device.runtime import Runtime
from uvsdk_device.wrapping import WrappedKey

if TYPE_CHECKING:
    from uvsdk.bundle import Bundle
    from uvsdk.modality import Capture

PASSPHRASE_VARIABLE = "UVSDK_PASSPHRASE"  # noqa: S105 - the name of a variable
_RELEASES_S = 300.0
REJECTED = 3
"""Exit status of ``uvsdk verify`` and ``identify`` for a probe that was rejected; 1 is a failure, 2 a wrong call."""


def _enroll_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("user", help="user id")
    parser.add_argument("files", nargs="+", help="several recordings or pictures of that one person")
    _model_arguments(parser)
    parser.add_argument(
        "--fmr", type=float, help="false match rate to aim for (default: the strictest that the model's trials measure)"
    )
    parser.add_argument("--minimum-samples", type=int, default=3, help="fewest usable files (default %(default)s)")
    parser.add_argument(
        "--existing",
        choices=("replace", "extend", "refuse"),
        default="replace",
        help="what happens to an earlier enrolment of that user (default %(default)s)",
    )
    _capture_arguments(parser)
    _store_arguments(parser)
    _server_arguments(parser, required=False)


def _enroll(arguments: argparse.Namespace) -> int:
    if arguments.model is None and not (Path(arguments.store) / "store.json").exists():
        raise SettingsError("a new store has adopted no release yet, so name the model: --model")
    store = _open_store(arguments, create=True)
    enrolment = enroll(
        arguments.user,
        arguments.files,
        model=_model(arguments) or adopted_bundle(store, read_standing(store, adopted_modality(store)).adopted[0]),
        store=store,
        federation=_federation(arguments) if arguments.server else None,
        fmr=arguments.fmr,
        minimum_samples=arguments.minimum_samples,
        existing=arguments.existing,
        capture=_capture(arguments),
    )
    for line in enrolment_lines(enrolment, arguments.files):
        print(line)
    return 0


def _verify_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("user", help="user id")
    parser.add_argument("file", help="one recording or picture")
    _model_arguments(parser)
    parser.add_argument("--fmr", type=float, help="false match rate, in place of the one enrolled with")
    _fallback_argument(parser)
    parser.add_argument("--json", action="store_true", help="print the decision as JSON")
    _capture_arguments(parser)
    _detector_argument(parser)
    _domain_argument(parser)
    _store_arguments(parser)


def _verify(arguments: argparse.Namespace) -> int:
    from uvsdk.presentation.detector import detectors_of

    store = _open_store(arguments)
    runtime = Runtime(
        store,
        _model(arguments),
        modality=store.template(arguments.user).modality,
        ageing=AgeingPolicy() if arguments.ageing else None,
        strict_domain=arguments.strict_domain,
    ).settled()
    decision = runtime.verify(
        arguments.user,
        arguments.file,
        fmr=arguments.fmr,
        fallback=arguments.fallback,
        capture=_capture(arguments),
        detectors=detectors_of(runtime.bundle) if arguments.presentation_detector else (),
    )
    if arguments.json:
        print(json.dumps(decision_document(decision) | {"timings_s": decision.timings_s}))
    else:
        for line in decision_lines(decision):
            print(line)
    return 0 if decision.accepted else REJECTED


def _identify_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", help="one recording or picture")
    _model_arguments(parser)
    parser.add_argument(
        "--fpir",
        type=float,
        default=DEFAULT_FPIR,
        help="false positive identification rate to aim for (default %(default)s)",
    )
    _fallback_argument(parser)
    parser.add_argument("--top", type=int, default=5, help="how many candidates to print (default %(default)s)")
    parser.add_argument("--json", action="store_true", help="print the outcome as JSON")
    _capture_arguments(parser)
    _detector_argument(parser)
    _domain_argument(parser)
    _store_arguments(parser)


def _identify(arguments: argparse.Namespace) -> int:
    from uvsdk.presentation.detector import detectors_of

    runtime = Runtime(
        _open_store(arguments),
        _model(arguments),
        ageing=AgeingPolicy() if arguments.ageing else None,
        strict_domain=arguments.strict_domain,
    ).settled()
    found = runtime.identify(
        arguments.file,
        runtime.gallery(),
        fpir=arguments.fpir,
        fallback=arguments.fallback,
        top=arguments.top,
        capture=_capture(arguments),
        detectors=detectors_of(runtime.bundle) if arguments.presentation_detector else (),
    )
    if arguments.json:
        print(json.dumps(identification_json(found)))
    else:
        for line in identification_lines(found):
            print(line)
    return 0 if found.outcome == "identified" else REJECTED


def _agent_arguments(parser: argparse.ArgumentParser) -> None:
    _model_arguments(parser)
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default %(default)s)")
    parser.add_argument("--port", type=int, default=8321, help="port, 0 for a free one (default %(default)s)")
    parser.add_argument("--allow-remote", action="store_true", help="let --host be reached from other machines")
    _capture_arguments(parser)
    _detector_argument(parser)
    _domain_argument(parser)
    parser.add_argument(
        "--scores", action="store_true", help="tell callers scores and likelihood ratios, each answer then counts"
    )
    parser.epilog = (
        "DELETE /v1/users/USER deletes on the server first where --server is given; without it, a person whom a server "
        "may know is not deleted (409 still-registered). With --server and without --model it also asks the server for "
        "its release every five minutes."
    )
    _store_arguments(parser)
    _server_arguments(parser, required=False)


def _agent(arguments: argparse.Namespace) -> int:
    # Here, so that the other commands work without the `agent` extra.
    try:
        from uvsdk_device import agent
    except ModuleNotFoundError as error:
        raise SettingsError(f"the agent needs {error.name}: pip install 'uvsdk[agent]'") from error

    settings = agent.AgentSettings(
        arguments.host,
        arguments.port,
        arguments.allow_remote,
        capture=_capture(arguments),
        presentation_detector=arguments.presentation_detector,
        scores=arguments.scores,
    )
    store = _open_store(arguments)
    model = _model(arguments)
    runtime = Runtime(
        store,
        model,
        ageing=AgeingPolicy() if arguments.ageing else None,
        keep_cohort=False,
        strict_domain=arguments.strict_domain,
    )
    if model is not None and model.calibration is not None and model.calibration.cohort is not None:
        kept = runtime.bundle.calibration is not None and runtime.bundle.calibration.cohort is not None
        what = "kept, since AS-norm judges scores against them" if kept else "not kept: verification needs none"
        print(f"the model's calibration holds people's embeddings (a cohort): {what}", file=sys.stderr)
    federation = _federation(arguments) if arguments.server else None
    forget = partial(forget_here if federation is None else federation.forget, store=store)
    if federation is not None and model is None:
        # It ends with the process, whatever it waits for.
        threading.Thread(target=_follow_releases, args=(federation, store), daemon=True).start()
    app = agent.create_app(runtime, token=agent.agent_token(store.folder), settings=settings, forget=forget)
    with contextlib.suppress(KeyboardInterrupt):  # Ctrl-C is how it is stopped
        agent.serve(
            app,
            settings,
            ready=lambda url: print(f"listening on {url}, token in {store.folder / 'agent-token'}", flush=True),
        )
    return 0


def _follow_releases(federation: Federation, store: EncryptedStore) -> None:
    """Ask for a release now and then, for everybody here whom the server knows."""
    while True:
        for user_id in store.users():
            try:
                report = federation.follow_release(user_id, store) if is_member(store, user_id) else None
            except UvsdkError as error:  # the server is away, say; verification goes on
                print(f"releases: {error}", file=sys.stderr, flush=True)
            else:
                if report is not None:
                    _print_release(report)
        time.sleep(_RELEASES_S)


def _attempts_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="show|reset")
    for name, text in (
        ("show", "failures in a row, and how long the next attempt must wait"),
        ("reset", "forget them, after identifying the person in another way than by voice or face"),
    ):
        action = actions.add_parser(name, help=text, description=text)
        whose = action.add_mutually_exclusive_group(required=True)
        whose.add_argument("user", nargs="?", help="user id, enrolled in the store")
        whose.add_argument("--device", action="store_true", help="those of the whole device, whoever was claimed")
        _store_arguments(action)


def _attempts(arguments: argparse.Namespace) -> int:
    store = _open_store(arguments)
    if arguments.action == "reset":
        reset_attempts(store, arguments.user)
        return 0
    gate = AttemptGate(store)
    state, wait_s = gate.state(arguments.user), gate.wait_s(arguments.user)
    recent = gate.recent(arguments.user)
    then = "disabled until it is reset" if math.isinf(wait_s) else f"the next attempt waits {math.ceil(wait_s)} s"
    print(
        f"{state.failures} failed attempts in a row, {state.unusable} samples that could not be used, "
        f"{recent.hour:.1f} failures in the hour's window and {recent.day:.1f} in the day's; {then}"
    )
    return 0


def _participate_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("user", help="user id, enrolled in the store")
    parser.add_argument("--model", help="model bundle that is at hand already, to download less")
    parser.add_argument("--max-rounds", type=int, help="stop after that many rounds")
    parser.add_argument("--once", action="store_true", help="do not wait for a round that is not open yet")
    parser.add_argument("--save-model", help="write the released model's bundle here afterwards")
    _store_arguments(parser)
    _server_arguments(parser, required=True)


def _participate(arguments: argparse.Namespace) -> int:
    from uvsdk.bundle import Bundle

    store, federation = _open_store(arguments), _federation(arguments)
    reports = federation.participate(
        arguments.user,
        store,
        model=Bundle.open(arguments.model) if arguments.model else None,
        until_finished=not arguments.once,
        max_rounds=arguments.max_rounds,
        progress=_print_report,
        evaluated=_print_evaluation,
        released=_print_release,
    )
    print(f"took part in {sum(report.state == 'uploaded' for report in reports)} of {len(reports)} rounds")
    if arguments.save_model:
        federation.newest_model(arguments.user, store).save(arguments.save_model)
    return 0


def _print_report(report: RoundReport) -> None:
    detail = report.detail or f"{report.samples} samples, loss {report.loss:.4f}, {report.train_s:.1f} s"
    print(f"round {report.round_id}: {report.state}, {detail}", flush=True)


def _print_evaluation(done: EvaluationDone) -> None:
    detail = done.detail or f"{done.samples} samples, {done.seconds:.1f} s"
    print(f"evaluation {done.evaluation_id}: {done.state}, {detail}", flush=True)


def _print_release(report: ReleaseReport) -> None:
    detail = f", {report.detail}" if report.detail else ""
    print(f"release {report.number}: {report.state}, model {report.model_version[:12]}{detail}", flush=True)


def _device_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="show|list|approve|revoke|rotate")
    for name, text in (
        ("show", "print this device's id, to be compared where it is approved"),
        ("list", "the person's devices as the server knows them"),
        ("approve", "let another device of that person act for them; compare the id on its screen"),
        ("revoke", "take the rights of a lost device of that person, or of this one"),
        ("rotate", "put new keys in place of this device's"),
    ):
        action = actions.add_parser(name, help=text, description=text)
        action.add_argument("user", help="user id, enrolled in the store")
        if name in ("approve", "revoke"):
            action.add_argument("id", help="of the device, 32 hexadecimal digits")
        _store_arguments(action)
        _server_arguments(action, required=True)


def _device(arguments: argparse.Namespace) -> int:
    store, federation = _open_store(arguments), _federation(arguments)
    if arguments.action == "approve":
        federation.approve_device(arguments.user, store, arguments.id)
    elif arguments.action == "revoke":
        federation.revoke_device(arguments.user, store, arguments.id)
    elif arguments.action == "rotate":
        federation.rotate_keys(arguments.user, store)
    else:
        for device in federation.devices(arguments.user, store):
            if arguments.action == "list" or device.here:
                print(f"{device.device_id}  {device.state}{'  (this device)' if device.here else ''}")
    return 0


def _store_command_arguments(parser: argparse.ArgumentParser) -> None:
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--list", action="store_true", help="print who is enrolled, one a line")
    action.add_argument(
        "--delete",
        metavar="USER",
        help="delete a user; with --server, there first, without it only whom no server knows",
    )
    action.add_argument(
        "--refresh", metavar="USER", help="switch to the server's release now, also to one refused before"
    )
    action.add_argument("--releases", action="store_true", help="print which releases verify here, or were refused")
    action.add_argument("--revert", metavar="USER", help="give back the template that the enrolment made")
    action.add_argument(
        "--accept-model",
        metavar="BUNDLE",
        help="work with this model or calibration from now on, beside those before; look at it first: uvsdk "
        "bundle show",
    )
    action.add_argument("--change-passphrase", metavar="FILE", help="protect the store by the passphrase in FILE")
    action.add_argument("--use-keyring", action="store_true", help="protect the store by the system's keyring")
    action.add_argument("--forget-server", metavar="URL", help="forget what was agreed with a server")
    parser.add_argument(
        "--local-only",
        action="store_true",
        help="with --delete: even if a server may know this person, whom only its operator can then remove there",
    )
    _store_arguments(parser)
    _server_arguments(parser, required=False)


def _store(arguments: argparse.Namespace) -> int:
    store = _open_store(arguments)
    if arguments.list:
        for user in store.users():
            print(user)
    elif arguments.delete is not None:
        if arguments.server:
            if _federation(arguments).forget(arguments.delete, store) == "pending":
                print("deleted; the server has yet to empty its log, which it goes on with by itself")
        elif arguments.local_only:
            store.delete(arguments.delete)
        else:
            forget_here(arguments.delete, store)
    elif arguments.refresh is not None:
        template = _federation(arguments).refresh_template(arguments.refresh, store)
        print(f"the template is of model {template.model_version[:12]}")
        for line in release_lines(store, only_refused=True):
            print(line)
    elif arguments.releases:
        for line in release_lines(store):
            print(line)
    elif arguments.revert is not None:
        revert_template(store, arguments.revert)
    elif arguments.accept_model is not None:
        from uvsdk.bundle import Bundle

        bundle = Bundle.open(arguments.accept_model)
        store.accept_model(bundle)
        print(f"accepted bundle {bundle.digest[:12]}, model {bundle.version[:12]}")
    elif arguments.change_passphrase is not None:
        store.change_passphrase(_line_of(arguments.change_passphrase))
    elif arguments.use_keyring:
        store.change_passphrase(None)
    else:
        forget_order(store, forget_approval(store, arguments.forget_server))
    return 0


def _model_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--model", help="model bundle; left out, the release that the store has adopted from its deployment"
    )
    parser.add_argument(
        "--publisher",
        action="append",
        metavar="KEY",
        help="public key that must have signed the bundle (uvsdk bundle key); several: one of them",
    )


def _model(arguments: argparse.Namespace) -> Bundle | None:
    """The bundle that was named; ``None`` for the release that the store has adopted."""
    from uvsdk.bundle import Bundle

    trusted = None if not arguments.publisher else [read_public_key(path) for path in arguments.publisher]
    if arguments.model is None:
        if trusted is not None:
            raise SettingsError("--publisher says who signed the bundle of --model; a release is signed by its server")
        return None
    return Bundle.open(arguments.model, trusted=trusted)


def _capture_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--quality",
        choices=("off", "standard", "strict"),
        default="standard",
        help="what a sample must reach before it is matched (default %(default)s)",
    )
    parser.add_argument(
        "--faces",
        choices=("largest", "single", "only"),
        default="single",
        help="whose face is meant where a picture has several (default %(default)s: the clearly largest one)",
    )


def _fallback_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--fallback",
        action="store_true",
        help="where the model's trials cannot support that rate, take the lowest that they support",
    )


def _domain_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--strict-domain",
        action="store_true",
        help="refuse what lies outside of what the model was calibrated on (left out: ask for more)",
    )


def _detector_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--presentation-detector",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="ask the presentation attack detector that the model carries, where it carries one",
    )
    parser.add_argument(
        "--ageing",
        action="store_true",
        help="let templates follow their people, by strong matches that detectors saw live",
    )


def _capture(arguments: argparse.Namespace) -> Capture:
    from uvsdk.modality import Capture

    return Capture(quality=arguments.quality, faces=arguments.faces)


def _store_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--store", required=True, help="folder of the encrypted store; enroll makes it where it is absent"
    )
    parser.add_argument(
        "--passphrase-file",
        help=f"file whose first line is the store's passphrase; else {PASSPHRASE_VARIABLE}, else a prompt",
    )
    parser.add_argument("--keyring", action="store_true", help="protect a new store by the system's keyring")


def _server_arguments(parser: argparse.ArgumentParser, *, required: bool) -> None:
    parser.add_argument("--server", required=required, help="address of the coordination server")
    parser.add_argument("--pepper-file", help="file of the deployment's secret for hashing user ids")
    parser.add_argument("--token-file", help="file of the operator's enrolment token")
    parser.add_argument("--approve", metavar="DIGEST", help="training configuration to approve; else the first seen")
    parser.add_argument("--server-verification", action="store_true", help="let the server verify this user too")
    parser.add_argument("--allow-plain-http", action="store_true", help="where the network itself encrypts")


def _federation(arguments: argparse.Namespace) -> Federation:
    if not arguments.server or not arguments.pepper_file:
        raise SettingsError("give --server and --pepper-file, the secret under which user ids are hashed")
    return Federation(
        arguments.server,
        enrolment_token=_line_of(arguments.token_file) if arguments.token_file else "",
        pepper=_bytes_of(arguments.pepper_file),
        approve=arguments.approve,
        server_verification=arguments.server_verification,
        allow_plain_http=arguments.allow_plain_http,
    )


def _open_store(arguments: argparse.Namespace, *, create: bool = False) -> EncryptedStore:
    if not create and not (Path(arguments.store) / "store.json").exists():  # before anybody is asked for a passphrase
        raise StoreError(f"there is no store in {arguments.store}; name the right folder, or enrol first")
    return EncryptedStore.open(arguments.store, passphrase=_passphrase(arguments), create=create)


def _passphrase(arguments: argparse.Namespace) -> str | None:
    """From the file, the environment or a prompt; ``None`` means the keyring."""
    if arguments.passphrase_file:
        return _line_of(arguments.passphrase_file)
    if PASSPHRASE_VARIABLE in os.environ:
        return os.environ[PASSPHRASE_VARIABLE]
    key_file = Path(arguments.store) / "store.json"
    new = not key_file.exists()
    if arguments.keyring if new else WrappedKey.from_json(key_file.read_bytes()).protection == "keyring":
        return None
    if not sys.stdin.isatty():
        raise StoreLockedError(
            f"the store needs a passphrase: --passphrase-file, {PASSPHRASE_VARIABLE} or a terminal"
            + ("; or --keyring" if new else "")
        )
    passphrase = getpass.getpass("passphrase of the store: ")
    if new and getpass.getpass("again: ") != passphrase:
        raise StoreLockedError("the two passphrases differ; nothing was made")
    return passphrase


def _line_of(path: str) -> str:
    try:
        lines = _bytes_of(path).decode("utf-8-sig").splitlines()  # some editors put a mark before the first letter
    except UnicodeDecodeError as error:
        raise SettingsError(f"{path} is not UTF-8 text; save it as UTF-8") from error
    if not lines or not lines[0]:
        raise SettingsError(f"{path} is empty; its first line is what is needed")
    return lines[0]


def _bytes_of(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise SettingsError(f"cannot read {path}: {error.strerror}") from error


COMMANDS = (
    Command("enroll", "make a template of a person on this device", _enroll_arguments, _enroll),
    Command("identify", "compare a probe with everybody, offline", _identify_arguments, _identify),
    Command("verify", "compare a probe with a template, offline", _verify_arguments, _verify),
    Command("agent", "verify over REST on this machine", _agent_arguments, _agent),
    Command("attempts", "failed attempts in a row: show and reset", _attempts_arguments, _attempts),
    Command("participate", "take part in training with a server", _participate_arguments, _participate),
    Command("device", "a person's devices at a server: show, approve, revoke, new keys", _device_arguments, _device),
    Command("store", "look after the encrypted store", _store_command_arguments, _store),
)
