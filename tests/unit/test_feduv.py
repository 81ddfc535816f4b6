"""FedUV's messages, codewords, loss and secret, by numbers done by hand; and what comes after the training."""

import itertools
import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.federated_run import manifest_of
from tests.unit.conftest import IMPOSTORS, MakeBundle
from uvsdk.enroll import enroll
from uvsdk.errors import SettingsError, UpdateRejectedError
from uvsdk.federation import algorithms
from uvsdk.federation.algorithms.feduv import codewords
from uvsdk.federation.algorithms.feduv.bch import BCH
from uvsdk.federation.algorithms.feduv.client import CLIENT, Secretive
from uvsdk.federation.algorithms.feduv.payload import Payload, Settings, Task
from uvsdk.federation.algorithms.feduv.server import SERVER, Numbers
from uvsdk.federation.messages import Admission, TrainingConfig
from uvsdk.federation.strategy import TEMPLATE, Contribution
from uvsdk.records.codec import pack, unpack
from uvsdk.training import backbones
from uvsdk.training.loop import LocalTrainer
from uvsdk.training.participation import TrainingJob
from uvsdk_device.keystore import EncryptedStore
from uvsdk_device.reembedding import is_current, remake

C, K = 255, 99
TASK = Task(7, C, K)


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def counted() -> Callable[[int], bytes]:
    """Secrets that tell which call they come from: all bytes 1, then all 2, ..."""
    calls = itertools.count(1)
    return lambda size: bytes([next(calls)]) * size


def embed(indices: object = None) -> torch.Tensor:
    return torch.nn.functional.normalize(torch.ones(3, C), dim=1)


def begin(task: Task, memory: dict[str, np.ndarray], secret: Callable[[int], bytes]) -> Secretive:
    local = CLIENT.begin(task, memory, embed, Settings(), rng(), secret)
    assert isinstance(local, Secretive)
    return local


def finish(local: Secretive) -> dict[str, np.ndarray]:
    payload, memory = CLIENT.finish(local, embed, Settings(), rng(), counted())
    assert payload == Payload()
    return dict(memory)


def admission(user: str) -> Admission:
    return Admission(user, "m", 5, np.empty(0, np.float32))


def with_users(*users: str) -> Numbers:
    state = SERVER.empty(C, Settings())
    for user in users:
        state = SERVER.admit(state, admission(user), Settings(), rng())
    return state


# Messages and codes


def test_a_message_is_the_number_in_32_bits_and_then_the_secret() -> None:
    # 258 = 0x00000102; the secret's first byte 0xA0 is 1010 0000; 67 secret bits take 9 bytes, 5 bits are left over.
    message = codewords.code(C, K).message(258, b"\xa0" + bytes(8))
    assert message[:32].tolist() == [0] * 16 + [0, 0, 0, 0, 0, 0, 0, 1] + [0, 0, 0, 0, 0, 0, 1, 0]
    assert message[32:40].tolist() == [1, 0, 1, 0, 0, 0, 0, 0]
    assert message.shape == (99,)
    assert codewords.secret_bytes(K) == 9
    assert codewords.number_of(message) == 258


def test_messages_that_do_not_fit() -> None:
    code = codewords.code(C, K)
    for number in (-1, 1 << 32):
        with pytest.raises(SettingsError, match="32 bits"):
            code.message(number, bytes(9))
    with pytest.raises(SettingsError, match="67"):
        code.message(1, bytes(8))


@pytest.mark.parametrize(("length", "distance", "cosine"), [(127, 21, 0.669), (255, 47, 0.631), (511, 111, 0.566)])
def test_the_presets_and_their_distance(length: int, distance: int, cosine: float) -> None:
    code = codewords.code(length, codewords.MESSAGE_BITS[length])
    assert code.distance == distance
    # The most that the vectors of two different messages can agree.
    assert 1 - 2 * code.distance / code.length == pytest.approx(cosine, abs=1e-3)
    assert code.secret_bits == codewords.MESSAGE_BITS[length] - 32


def generator(code: BCH) -> int:
    """A bit a power: x^(n-k), and what is left of it on division, which is what follows the last message bit."""
    return int("1" + "".join(str(int(bit)) for bit in code.parity[-1]), 2)


def test_a_generator_by_hand() -> None:
    # One error: the field's own polynomial, x^7 + x^3 + 1, so a Hamming code. Two: times alpha^3's, which is
    # x^7 + x^3 + x^2 + x + 1. The product of 10001001 and 10001111 without carries is 100001101110111.
    assert generator(BCH.of(127, 120)) == 0b1000_1001
    assert generator(BCH.of(127, 113)) == 0b100_0011_0111_0111


@pytest.mark.parametrize(
    ("length", "bits", "expected"),
    [
        # in octal as Lin and Costello print it: 1206534025570773100045
        (127, 64, 0xA1AB815BC7EC8025),
        # as galois 0.4.11 makes them
        (255, 99, 0x11AEDBAAE767C497861C81BE36955091F4698719),
        (
            511,
            130,
            int(
                "2564444333b8edaca8f25bf8556d001e4eaef2913d36296d9ac37685977982841d7f289a29862a159ee5d8a9fa2d0cd1",
                16,
            ),
        ),
    ],
)
def test_the_presets_have_the_generators_of_textbook_and_library(length: int, bits: int, expected: int) -> None:
    assert generator(BCH.of(length, bits)) == expected


def test_a_codeword_starts_with_its_message_and_is_a_unit_vector_of_signs() -> None:
    code = codewords.code(C, K)
    message = code.message(7, bytes(range(9)))
    bits = code.encode(message)
    np.testing.assert_array_equal(bits[:K], message)
    vector = code.vector(message)
    assert vector.dtype == np.float32
    np.testing.assert_allclose(vector, (2.0 * bits - 1) / math.sqrt(C), atol=1e-7)
    assert np.linalg.norm(vector) == pytest.approx(1.0, abs=1e-6)


def test_decoding_mends_23_flips_and_says_when_it_cannot() -> None:
    code = codewords.code(C, K)
    message = code.message(7, bytes(range(9)))
    bits = np.tile(code.encode(message), (2, 1))
    bits[0, 3:26] ^= 1  # (47 - 1) / 2
    bits[1] = rng().integers(0, 2, C)
    messages, decoded = code.decode(bits)
    assert decoded.tolist() == [True, False]
    np.testing.assert_array_equal(messages[0], message)


def test_no_code_of_that_kind() -> None:
    for length, bits in ((127, 65), (126, 64), (63, 36), (127, 0), (127, 127)):
        with pytest.raises(SettingsError, match="no BCH code"):
            codewords.code(length, bits)
    with pytest.raises(SettingsError, match=r"ge2e\+255"):
        SERVER.empty(256, Settings())
    # 127 / 64 leaves 32 secret bits: refused unless asked for.
    with pytest.raises(SettingsError, match="32 secret"):
        SERVER.empty(127, Settings())
    assert SERVER.empty(127, Settings(least_secret_bits=32)).distance == 21
    for wrong in ({"least_secret_bits": 31}, {"message_bits": 63}, {"message_bits": -1}, {"loss": "cubed"}):
        with pytest.raises(SettingsError):
            algorithms.settings("feduv", wrong)  # type: ignore[arg-type]


# The secret on the device


def test_the_secret_is_drawn_once_for_a_number() -> None:
    secret = counted()
    first = begin(TASK, {}, secret)
    memory = finish(first)
    code = codewords.code(C, K)
    np.testing.assert_array_equal(first.codeword.numpy(), code.vector(code.message(7, bytes([1]) * 9)))
    again = begin(TASK, memory, secret)
    assert again.codeword.numpy().tobytes() == first.codeword.numpy().tobytes()
    assert finish(again).keys() == memory.keys()
    assert next(iter(secret(1))) == 2  # nothing was drawn in between
    np.testing.assert_array_equal(memory[TEMPLATE], first.codeword.numpy())
    assert "secret" not in repr(first)


def test_a_lost_secret_is_drawn_anew_and_so_is_one_for_another_number_or_code() -> None:
    memory = finish(begin(TASK, {}, counted()))
    secret = counted()
    lost = begin(TASK, {}, lambda size: bytes([9]) * size)
    assert not np.array_equal(lost.codeword.numpy(), memory[TEMPLATE])
    for other in (replace(TASK, number=8), replace(TASK, message_bits=107)):
        drawn = begin(other, memory, secret)
        assert drawn.codeword.shape == (other.code_length,)
        assert drawn.message.tolist() == [other.number, other.code_length, other.message_bits]
    for missing in memory:
        begin(TASK, {key: value for key, value in memory.items() if key != missing}, secret)
    assert next(iter(secret(1))) == len(memory) + 3
    damaged = {**memory, TEMPLATE: memory[TEMPLATE][:5]}
    assert begin(TASK, damaged, secret).codeword.shape == (C,)


def test_a_device_does_not_take_less_secrecy_than_it_agreed_to() -> None:
    for bad in (Task(7, 127, 64), Task(-1, C, K), Task(1 << 32, C, K)):
        with pytest.raises(UpdateRejectedError):
            begin(bad, {}, counted())
    assert begin(Task((1 << 32) - 1, C, K), {}, counted()).codeword.shape == (C,)


# The loss


def local_of(vector: np.ndarray) -> Secretive:
    return Secretive(torch.from_numpy(vector), np.zeros(3, np.int64), np.zeros(9, np.uint8))


def test_the_loss_by_hand() -> None:
    # v / sqrt(c) = (1, 1, 1, -1) / 2. Scores: 1 with itself, 0.5 with (1, 1, 1, 1) / 2, -1 with its opposite.
    vector = np.array([1, 1, 1, -1], np.float64) / 2
    rows = torch.tensor(np.stack([vector, np.ones(4) / 2, -vector]))
    classes = torch.zeros(3, dtype=torch.int64)
    linear = CLIENT.loss(rows, classes, local_of(vector), Settings())
    squared = CLIENT.loss(rows, classes, local_of(vector), Settings(loss="squared"))
    assert float(linear) == pytest.approx((0 + 0.5 + 2) / 3)
    assert float(squared) == pytest.approx((0 + 0.25 + 4) / 3)
    with pytest.raises(UpdateRejectedError, match="3 dimensions"):
        CLIENT.loss(rows[:, :3], classes, local_of(vector), Settings())


@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=20, deadline=None)
def test_the_gradient_at_the_head_is_the_papers(seed: int) -> None:
    # -(1 / sqrt c) (v - (v . u) u) / |a| with u = a / |a| (SPEC 6.3), and of W its product with z.
    from uvsdk.training.loop import unit

    draw = np.random.default_rng(seed)
    v = draw.choice([-1.0, 1.0], 16)
    head = torch.tensor(draw.standard_normal((16, 5)), requires_grad=True)
    z = torch.tensor(draw.standard_normal((1, 5)))
    a = z @ head.T
    CLIENT.loss(unit(a), torch.zeros(1, dtype=torch.int64), local_of(v / 4), Settings()).backward()
    length = float(a.detach().norm())
    u = a.detach().numpy()[0] / length
    expected = -(v - (v @ u) * u) / length / 4
    np.testing.assert_allclose(head.grad.numpy(), np.outer(expected, z.numpy()[0]), atol=1e-12)  # type: ignore[union-attr]


# Numbers on the server


def test_numbers_are_counted_and_never_given_twice() -> None:
    state = with_users("b", "a", "c")
    assert state.users == ("a", "b", "c")
    assert state.numbers.tolist() == [1, 0, 2]
    state = SERVER.remove(state, "b")
    state = SERVER.admit(state, admission("d"), Settings(), rng())
    assert dict(zip(state.users, state.numbers.tolist(), strict=True)) == {"a": 1, "c": 2, "d": 3}
    assert SERVER.remove(state, "nobody") is state
    assert unpack(Numbers, pack(state)).numbers.tolist() == state.numbers.tolist()


def test_to_enrol_again_is_a_new_number() -> None:
    state = SERVER.admit(with_users("a", "b"), admission("a"), Settings(), rng())
    assert state.users == ("a", "b")
    assert state.numbers.tolist() == [2, 1]


def test_a_table_with_one_number_twice_is_refused() -> None:
    good = with_users("a", "b")
    for change in (
        {"numbers": np.array([1, 1])},
        {"numbers": np.array([0, 2])},  # never handed out
        {"numbers": np.array([0])},
        {"users": ("b", "a")},
    ):
        with pytest.raises(ValueError):
            replace(good, **change)  # type: ignore[arg-type]


def test_the_numbers_end_with_32_bits() -> None:
    last = replace(with_users("a"), following=1 << 32)
    with pytest.raises(UpdateRejectedError, match="new deployment"):
        SERVER.admit(last, admission("b"), Settings(), rng())


def test_a_device_of_several_classes_and_a_stranger_are_refused() -> None:
    state = with_users("a")
    with pytest.raises(UpdateRejectedError, match="one class"):
        SERVER.admit(state, replace(admission("b"), classes=("x", "y")), Settings(), rng())
    with pytest.raises(UpdateRejectedError, match="not among the 1"):
        SERVER.check(Payload(), state, "b", Settings())
    with pytest.raises(UpdateRejectedError):
        SERVER.task(state, "b", None, Settings(), rng())
    assert SERVER.task(state, "a", None, Settings(), rng()) == Task(0, C, K)


def test_the_report_says_that_codewords_are_not_secret() -> None:
    state = SERVER.step(with_users("a", "b"), (Contribution("a", 5, Payload()),), Settings(), rng())
    report = SERVER.report(state, Settings())
    assert report["codeword_secrecy"] == "none"
    assert "in the clear" in str(report["codeword_secrecy_reason"])
    assert (report["code_length"], report["code_distance"], report["secret_bits"]) == (255, 47, 67)
    assert not SERVER.verifies_on_server


# The template after the training: features of three numbers, whose direction is the embedding


def test_the_codeword_is_the_template_once_it_is_learnt(identity_bundle: MakeBundle, store: EncryptedStore) -> None:
    bundle = identity_bundle(IMPOSTORS)
    features = [np.array(row, np.float32) for row in ([1, 0, 0], [1, 0, 0.1], [1, 0, -0.1])]
    old = enroll("ana", [b"1 0 0", b"1 0 0.1", b"1 0 -0.1"], model=bundle, store=store).template
    mean = remake(old, features, bundle)
    np.testing.assert_allclose(mean.embedding, [1, 0, 0], atol=1e-6)
    # Against (0.8, 0.6, 0) the samples score 0.8 and 0.796, above the 0.49 that 1 % of the impostors reach.
    near = np.array([0.8, 0.6, 0], np.float32)
    learnt = remake(old, features, bundle, trained=near)
    np.testing.assert_array_equal(learnt.embedding, near)
    assert learnt.threshold == mean.threshold  # three samples raise nothing
    # Against (0.4, 0.9165, 0) they score 0.4: the model has not learnt it, so the mean stands in (SPEC 6.7).
    far = np.array([0.4, math.sqrt(1 - 0.16), 0], np.float32)
    assert remake(old, features, bundle, trained=far) == mean
    assert remake(old, features, bundle, trained=np.ones(4, np.float32) / 2) == mean  # of another model


def test_a_mean_of_this_model_gives_way_to_the_codeword(identity_bundle: MakeBundle, store: EncryptedStore) -> None:
    bundle = identity_bundle(IMPOSTORS)
    mean = enroll("ana", [b"1 0 0", b"1 0 0.1", b"1 0 -0.1"], model=bundle, store=store).template
    assert is_current(mean, bundle)
    codeword = np.array([0.8, 0.6, 0], np.float32)
    assert not is_current(mean, bundle, trained=codeword)
    features = [np.array(row, np.float32) for row in ([1, 0, 0], [1, 0, 0.1], [1, 0, -0.1])]
    assert is_current(remake(mean, features, bundle, trained=codeword), bundle, trained=codeword)


def test_without_calibration_nothing_says_that_the_codeword_is_learnt(
    identity_bundle: MakeBundle, store: EncryptedStore
) -> None:
    bundle = identity_bundle()
    old = enroll("ana", [b"1 0 0", b"1 0 0.1", b"1 0 -0.1"], model=bundle, store=store).template
    again = remake(old, [np.array([1, 0, 0], np.float32)], bundle, trained=np.array([1, 0, 0], np.float32))
    assert again.threshold is None
    np.testing.assert_allclose(again.embedding, [1, 0, 0])


def test_twenty_samples_raise_the_threshold_to_the_warm_up_one(
    identity_bundle: MakeBundle, store: EncryptedStore
) -> None:
    # Nineteen samples score 1 against the codeword (1, 0, 0), one scores 0.6: i = floor(20 * 0.05) = 1, so tau is just
    # above 0.6 and nineteen of twenty are accepted (SPEC 6.4).
    bundle = identity_bundle(IMPOSTORS)
    old = enroll("ana", [b"1 0 0", b"1 0 0.1", b"1 0 -0.1"], model=bundle, store=store).template
    features = [np.array([1, 0, 0], np.float32)] * 19 + [np.array([0.6, 0.8, 0], np.float32)]
    template = remake(old, features, bundle, trained=np.array([1, 0, 0], np.float32))
    assert template.threshold is not None
    assert template.threshold.score == pytest.approx(0.6, abs=1e-6)


def test_a_device_learns_its_codeword_over_rounds() -> None:
    # Whole rounds with the real trainer: theta moves on, and the secret stays as it was drawn in the first.
    manifest, trainer = manifest_of("digits-cnn+255"), LocalTrainer(secret=rng().bytes)
    config = TrainingConfig("d", "handwriting", "digits-cnn+255", "feduv", local_steps=5, learning_rate=0.3)
    theta, memory, losses = backbones.flatten(backbones.get("digits-cnn+255").random(1)), {}, []
    features = tuple(rng().random((6, 8, 8), np.float32))
    for round_id in range(1, 5):
        job = TrainingJob(config, manifest, round_id, theta, features, pack(TASK), memory)
        result = trainer.train(job, np.random.default_rng(round_id))
        assert unpack(Payload, result.payload) == Payload()
        if memory:
            np.testing.assert_array_equal(result.memory[TEMPLATE], memory[TEMPLATE])
        theta, memory = theta + result.delta, dict(result.memory)
        losses.append(result.loss)
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < 0.2
