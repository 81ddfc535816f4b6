"""Updates as they arrive: streamed to the disk, checked there, durable before they are acknowledged.

Order matters. What costs nothing comes first (is the device in the cohort, is the round open), then one of a few slots,
of which a device has one at a time and which a device that hardly sends loses to one that does, then what costs reading
(binding, signature), then what costs opening (every chunk, every guard of SPEC 1.7), then the disk, then the row; only
after the row is committed does the device hear that its update is safe.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from weakref import WeakValueDictionary

import numpy as np

from uvsdk.errors import UvsdkError
from uvsdk.federation.aggregation import CHUNK_PARAMETERS
from uvsdk.federation.guards import DeltaCheck, check_samples
from uvsdk.federation.messages import UpdateHead
from uvsdk.federation.round import accept
from uvsdk.privacy.sealing import OVERHEAD_BYTES, Digests, Envelope, RunningDigest
from uvsdk.records.codec import pack, unpack
from uvsdk.rest.problems import Problem
from uvsdk_server import envelopes, limits, observer, problems
from uvsdk_server.aggregation import map_envelope
from uvsdk_server.monitoring import Metrics
from uvsdk_server.people import Device
from uvsdk_server.rounds import Rounds, check_collecting
from uvsdk_server.seals import seal_of
from uvsdk_server.shielding import to_its_end
from uvsdk_server.store.blobs import Blobs
from uvsdk_server.store.rows import Receipt, Round

_HEAD_ALLOWANCE: Final = 1 << 20
_WRITE_BYTES: Final = 1 << 20
_HEAD_START_S: Final = 1.0
_TOO_SLOW: Final = 408
_NOT_ITS_DOING: Final = frozenset({410, 429})
"""Refusals that say nothing of the update: the round has closed, the server is busy."""


@dataclass(frozen=True, slots=True)
class Checked:
    """What an update that passed every guard says of itself."""

    nonce: str
    digest: str
    norm: float
    head: UpdateHead


class Uploads:
    """The way of an update from the socket to the database."""

    def __init__(
        self,
        rounds: Rounds,
        blobs: Blobs,
        metrics: Metrics,
        *,
        limit_bytes: int,
        concurrent: int,
        slowest_bytes_per_s: float,
    ) -> None:
        """``limit_bytes`` 0 takes what the deployment's model needs, and 1 MiB more for the head."""
        self._rounds = rounds
        self._training = rounds.training
        self._blobs = blobs
        self._metrics = metrics
        self._concurrent = concurrent
        self._slowest = slowest_bytes_per_s
        self._receiving: dict[str, _Receiving] = {}
        self._present: Counter[str] = Counter()
        self._devices: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        parameters = rounds.training.parameters
        chunks = -(-parameters // CHUNK_PARAMETERS) + 1
        self._limit = limit_bytes or 4 * parameters + chunks * OVERHEAD_BYTES + _HEAD_ALLOWANCE

    async def receive(
        self, device: Device, round_id: int, body: AsyncIterator[bytes], check_body: Callable[[bytes], None]
    ) -> bool:
        """Take one update; false where the very same was accepted before.

        Args:
            device: the device that signed the request.
            round_id: from the address.
            body: the request's body.
            check_body: raises unless the SHA-256 it is given is the one that was signed.

        Raises:
            Problem, UvsdkError: it was refused, and nothing changed.
        """
        start = time.perf_counter()
        try:
            with self._presence(device.device_id):
                row, former = await self._rounds.admits(device.device_id, round_id)
                # One at a time for each device, so that a retry that overtakes its original cannot remove its file.
                async with self._devices.setdefault(device.device_id, asyncio.Lock()):
                    new = await self._receive(device, row, former, body, check_body)
        except (Problem, UvsdkError) as error:
            self._metrics.uploads.labels(problems.of(error).kind).inc()
            raise
        self._metrics.uploads.labels("accepted" if new else "repeated").inc()
        self._metrics.upload_seconds.observe(time.perf_counter() - start)
        return new

    async def _receive(
        self,
        device: Device,
        row: Round,
        former: Receipt | None,
        body: AsyncIterator[bytes],
        check_body: Callable[[bytes], None],
    ) -> bool:
        round_id = int(row.round_id)
        try:
            with self._slot(device.device_id) as slot:
                if former is None:
                    self._rounds.awaited.begin(device.device_id, round_id)
                return await self._take(device, row, former, slot, body, check_body)
        except (Problem, UvsdkError) as error:
            # The device has signed what it sent: it has said what it has to say, and the others need not wait for it.
            problem = problems.of(error)
            if former is None and problem.status < 500 and problem.status not in _NOT_ITS_DOING:
                self._rounds.excuse(device.device_id, round_id, stalled=problem.status == _TOO_SLOW)
            raise

    async def _take(
        self,
        device: Device,
        row: Round,
        former: Receipt | None,
        slot: _Receiving,
        body: AsyncIterator[bytes],
        check_body: Callable[[bytes], None],
    ) -> bool:
        round_id = int(row.round_id)
        temporary = self._blobs.temporary()
        try:
            digests = await self._stream(slot.counting(body), temporary)
            check_body(digests.whole)
            expected = envelopes.Expected.of(self._training.config, "update", row)
            nonce = await asyncio.to_thread(_identify, temporary, digests, device, expected)
            if former is not None:
                return _repeated(former, nonce, digests.whole.hex())
            check_collecting(row)
            checked = await asyncio.to_thread(self._check, temporary, digests, device, row)
            # File and row belong together: whoever hangs up, or runs out of time, no longer comes between them.
            return await to_its_end(self._keep(device, round_id, temporary, checked))
        finally:
            temporary.unlink(missing_ok=True)

    async def _keep(self, device: Device, round_id: int, temporary: Path, checked: Checked) -> bool:
        await asyncio.to_thread(self._blobs.keep, temporary, checked.digest)
        await self._rounds.observer.reached(observer.UPLOAD_STORED)
        return await self._record(device, round_id, checked)

    async def _record(self, device: Device, round_id: int, checked: Checked) -> bool:
        own = await seal_of(device.user, self._rounds.keys.files, self._rounds.database)
        sealed = own.seal(pack(checked.head), f"head/{round_id}/{device.device_id}")
        receipt = Receipt(
            round_id=round_id,
            device_id=device.device_id,
            user=device.user,
            nonce=checked.nonce,
            digest=checked.digest,
            norm=checked.norm,
            samples=checked.head.samples,
            head_sealed=sealed,
            blob=checked.digest,
            received=self._rounds.clock(),
        )
        try:
            former = await self._rounds.record(receipt)
        except BaseException:
            await self._rounds.discard(checked.digest)
            raise
        if former is not None:
            if former.digest != checked.digest:
                self._blobs.remove(checked.digest)
            return _repeated(former, checked.nonce, checked.digest)
        await self._rounds.observer.reached(observer.UPLOAD_RECORDED)
        return True

    async def _stream(self, body: AsyncIterator[bytes], path: Path) -> Digests:
        """Write the body to ``path``, hashed on its way, which is the only time. Raises :class:`Problem` 413."""
        running, pending, total = RunningDigest(), bytearray(), 0
        with path.open("wb") as file:

            def flush() -> None:
                running.update(pending)
                file.write(pending)
                pending.clear()

            async for piece in body:
                total += len(piece)
                if total > self._limit:
                    raise limits.too_large(self._limit)
                pending += piece
                if len(pending) >= _WRITE_BYTES:
                    await asyncio.to_thread(flush)
            await asyncio.to_thread(flush)
        return running.digests()

    def _check(self, path: Path, digests: Digests, device: Device, row: Round) -> Checked:
        """Open every chunk and apply every guard. Runs in a worker thread.

        A delta longer than the round announced is kept as it came: it is shortened where it is summed.
        """
        with map_envelope(path, digests) as envelope:
            private_key = self._rounds.keys.hpke(row.server_key_id)
            if private_key is None:
                raise Problem("round-closed", "the key of that round was destroyed after it closed")
            _check_cut(envelope, self._training.parameters)
            head = unpack(UpdateHead, envelope.open_chunk(0, private_key))
            self._check_head(head, device, row)
            delta = DeltaCheck(self._training.parameters)
            for index in range(1, len(envelope.chunk_lengths)):
                delta.add(np.frombuffer(envelope.open_chunk(index, private_key), "<f4"))
            return Checked(envelope.binding.nonce, envelope.digest, delta.finish(), head)

    def _check_head(self, head: UpdateHead, device: Device, row: Round) -> None:
        config = self._training.config
        repeated = (head.round_id, head.algorithm, head.model_version, head.parameters)
        if repeated != (row.round_id, config.algorithm, row.model_version, self._training.parameters):
            raise Problem(
                "invalid-update", "round, algorithm, model or number of parameters inside the seal differ from it"
            )
        check_samples(head.samples)
        accept(self._training.method, self._training.state, device.user, head.payload)

    @contextmanager
    def _presence(self, device_id: str) -> Iterator[None]:
        """Count the uploads of one device: one that is received, and one that waits to take its place; no third."""
        if self._present[device_id] > 1:
            raise _occupied(2)
        self._present[device_id] += 1
        try:
            yield
        finally:
            self._present[device_id] -= 1
            if not self._present[device_id]:
                del self._present[device_id]

    @contextmanager
    def _slot(self, device_id: str) -> Iterator[_Receiving]:
        """One of the places, taken over from whoever sends slowest where there is none free and someone is too slow."""
        if len(self._receiving) >= self._concurrent:
            slow = [item for item in self._receiving.items() if item[1].lags(self._slowest)]
            if not slow:
                raise _occupied(len(self._receiving))
            former, idle = min(slow, key=lambda item: item[1].rate)
            del self._receiving[former]
            idle.give_way()
        mine = self._receiving[device_id] = _Receiving()
        try:
            yield mine
        finally:
            if self._receiving.get(device_id) is mine:
                del self._receiving[device_id]


class _Receiving:
    """One body on its way in."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._bytes = 0
        self._complete = False
        self._way: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def rate(self) -> float:
        """Bytes a second so far."""
        return self._bytes / max(time.monotonic() - self._began, 1e-9)

    def lags(self, slowest_bytes_per_s: float) -> bool:
        """Whether it has been too slow for a second or more."""
        waited_s = time.monotonic() - self._began
        return not self._complete and waited_s > _HEAD_START_S and self._bytes < waited_s * slowest_bytes_per_s

    def give_way(self) -> None:
        """Let :meth:`counting` raise :class:`Problem` 408."""
        if not self._way.done():
            self._way.set_result(None)

    async def counting(self, body: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """The pieces of ``body``, counted."""
        pieces = aiter(body)
        while True:
            following = asyncio.ensure_future(anext(pieces, None))
            try:
                await asyncio.wait((following, self._way), return_when=asyncio.FIRST_COMPLETED)
                if not following.done():
                    raise Problem(
                        "too-slow",
                        "the update came so slowly that it gave way to another; send it again",
                        {"Connection": "close", "Retry-After": "1"},
                    )
            finally:
                following.cancel()
            piece = following.result()
            if piece is None:
                self._complete = True
                return
            self._bytes += len(piece)
            yield piece


def _occupied(uploads: int) -> Problem:
    return Problem("too-many-uploads", f"{uploads} uploads are being received; try again", {"Retry-After": "1"})


def _identify(path: Path, digests: Digests, device: Device, expected: envelopes.Expected) -> str:
    """The nonce of an envelope that belongs here and is signed by ``device``."""
    with map_envelope(path, digests) as envelope:
        envelopes.check(envelope, device, expected)
        return envelope.binding.nonce


def _repeated(former: Receipt, nonce: str, digest: str) -> bool:
    """False for the update that was accepted before. Raises :class:`Problem` 409 for any other (SPEC 11.2)."""
    if (former.nonce, former.digest) == (nonce, digest):
        return False
    if former.nonce == nonce:
        raise Problem("replayed-nonce", "the nonce of an accepted update was used for another one")
    raise Problem("already-uploaded", "this device's update of this round was accepted; there is one a round")


def _check_cut(envelope: Envelope, parameters: int) -> None:
    """Raise unless the delta is cut into chunks of 1 Mi float32, as the sum needs it."""
    full, rest = divmod(parameters, CHUNK_PARAMETERS)
    wanted = (4 * CHUNK_PARAMETERS,) * full + ((4 * rest,) if rest else ())
    if envelope.chunk_lengths[1:] != wanted:
        raise Problem(
            "invalid-update",
            f"a delta of {parameters} float32 comes in {len(wanted)} chunks of at most {CHUNK_PARAMETERS}, got "
            f"{len(envelope.chunk_lengths) - 1} chunks of {sum(envelope.chunk_lengths[1:])} bytes",
        )
