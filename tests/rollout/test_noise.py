"""Noise is a pure function of its address, and unit normal."""

import struct
import threading

import numpy as np
import pytest
import torch
from scipy import stats

from diffrl.rollout.address import Address, Purpose
from diffrl.rollout.noise import generator_at, noise_at, prefetch, sibling_noise

BASE = Address(stream="train", seed=5, iteration=3, group=11, root=2, path=(1, 0))
SHAPE = (2, 5, 7)


def flat(address, size=20011):
    return noise_at([address], (size,))[0].numpy()


# --- a pure function of the address -----------------------------------------------------------------------------------


def test_a_row_does_not_depend_on_its_batch():
    addresses = [BASE._replace(root=root) for root in range(13)]
    rows = noise_at(addresses, SHAPE)
    assert rows.shape == (13, *SHAPE) and rows.dtype == torch.float32 and rows.is_contiguous()
    order = torch.randperm(13, generator=torch.Generator().manual_seed(0)).tolist()
    assert torch.equal(noise_at([addresses[i] for i in order], SHAPE), rows[order])
    assert torch.equal(noise_at([addresses[7]], SHAPE)[0], rows[7])
    assert torch.equal(noise_at([BASE, BASE], SHAPE)[0], noise_at([BASE, BASE], SHAPE)[1])


def test_no_generator_is_read_or_moved():
    torch.manual_seed(1)
    np.random.seed(1)
    before = noise_at([BASE], SHAPE)
    state, numpy_state = torch.get_rng_state(), np.random.get_state()[1].copy()
    torch.manual_seed(2)
    assert torch.equal(noise_at([BASE], SHAPE), before)
    torch.set_rng_state(state)
    assert np.array_equal(np.random.get_state()[1], numpy_state)


def test_the_values_are_pinned():
    """Runs resume and replay across versions of diffrl and numpy only while these numbers stay."""
    expected = torch.tensor([-1.5092509, -1.2685531, -0.6623850, 0.1275093, -0.9142765])
    torch.testing.assert_close(noise_at([BASE], (5,))[0], expected, rtol=1e-6, atol=0.0)


# --- different addresses, unrelated noise -----------------------------------------------------------------------------

OTHERS = [
    BASE._replace(stream="eval"),
    BASE._replace(stream="train\0"),
    BASE._replace(seed=6),
    BASE._replace(seed=-5),
    BASE._replace(seed=5 + 2**32),
    BASE._replace(iteration=4),
    BASE._replace(group=12),
    BASE._replace(root=1),
    BASE._replace(path=()),
    BASE._replace(path=(0, 1)),
    BASE._replace(path=(1,)),
    BASE.child(0),
    BASE._replace(iteration=11, group=3),
]


@pytest.mark.parametrize("other", OTHERS, ids=lambda address: "-".join(map(str, address)).replace("\0", "0"))
def test_an_address_that_differs_in_one_field_has_unrelated_noise(other):
    correlation = np.corrcoef(flat(BASE), flat(other))[0, 1]
    assert abs(correlation) < 4 / np.sqrt(20011)


def test_no_two_addresses_pack_alike():
    def at(stream, root, path):
        return Address(stream, 0, 0, 0, root, path)

    addresses = [
        at("a", 1, (1, 11)),
        at("a", 1, (11, 1)),
        at("a", 1, (111,)),
        at("a", 1, (1, 1, 1)),
        at("a", 1, ()),
        at("a", 1, (0,)),
        at("a", 1, (0, 0)),
        at("a", 11, (1,)),
        at("a", 11, (1, 1)),
        at("a1", 1, (1,)),
        at("a11", 1, ()),
        at("", 1, (1,)),
        at("a\0", 1, (1,)),
        at("a", 256, (1,)),
        at("a", 2**40, (1,)),
        at("a", -1, (1,)),
    ]
    rows = noise_at(addresses, (3,))
    assert len({tuple(row) for row in rows.tolist()}) == len(addresses)


def test_refuses_fields_that_are_no_integers():
    with pytest.raises(struct.error):
        noise_at([BASE._replace(seed=0.5)], SHAPE)
    with pytest.raises(struct.error):
        noise_at([BASE._replace(seed=2**64)], SHAPE)


def test_numpy_integers_address_the_same_noise():
    same = BASE._replace(group=np.int64(11), path=(np.int32(1), np.uint8(0)))
    assert torch.equal(noise_at([same], SHAPE), noise_at([BASE], SHAPE))


# --- unit normal ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_noise_is_unit_normal_within_and_across_addresses(seed):
    within = flat(BASE._replace(seed=seed))
    across = noise_at([BASE._replace(seed=seed, root=root) for root in range(4001)], (5,)).numpy().ravel()
    for values in (within, across):
        assert abs(values.mean()) < 4 / np.sqrt(values.size)
        assert abs(values.std() - 1) < 4 / np.sqrt(2 * values.size)
        assert stats.kstest(values, "norm").pvalue > 1e-3


# --- siblings ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("c", [0.0, 0.5, 1.0, 4.0])
def test_siblings_have_unit_variance_and_the_stated_correlation(c):
    shared, first, second = noise_at([BASE._replace(path=path) for path in [(3,), (3, 0), (3, 1)]], (200003,))
    a, b = (sibling_noise(shared, own, c).numpy() for own in (first, second))
    tolerance = 4 / np.sqrt(200003)
    assert abs(a.std() - 1) < tolerance and abs(b.std() - 1) < tolerance
    assert abs(np.corrcoef(a, b)[0, 1] - 1 / (1 + c * c)) < tolerance


def test_infinite_c_gives_the_own_noise_and_zero_the_shared():
    shared, own = noise_at([BASE, BASE.child(0)], SHAPE)
    assert torch.equal(sibling_noise(shared, own, float("inf")), own)
    assert torch.equal(sibling_noise(shared, own, 0.0), shared)
    torch.testing.assert_close(sibling_noise(shared, own, 1e30), own, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("c", [-1.0, float("nan")])
def test_refuses_a_negative_weight(c):
    with pytest.raises(ValueError, match="c must be at least 0"):
        sibling_noise(torch.zeros(3), torch.zeros(3), c)


# --- random choices ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("purpose", "order"),
    [
        (Purpose.UPDATE_SHARES, [4, 5, 0, 1, 2, 6, 3]),
        (Purpose.CANDIDATES, [6, 5, 3, 4, 1, 2, 0]),
        (Purpose.NOISE_LEVELS, [4, 6, 2, 5, 1, 0, 3]),
    ],
)
def test_the_choices_of_runs_are_pinned(purpose, order):
    for _ in range(2):
        assert generator_at(2**40 + 5, 3, 11, purpose).permutation(7).tolist() == order


# --- in advance -------------------------------------------------------------------------------------------------------


def test_noise_drawn_in_advance_is_the_same_one_ahead_and_on_another_thread():
    begun, threads = [], set()

    def drawing(root):
        def draw():
            begun.append(root)
            threads.add(threading.get_ident())
            return noise_at([BASE._replace(root=root)], SHAPE)

        return draw

    taken = prefetch([drawing(root) for root in range(5)])
    for root in range(5):
        assert torch.equal(next(taken), noise_at([BASE._replace(root=root)], SHAPE))
        assert len(begun) <= root + 2
    assert begun == list(range(5)) and threading.get_ident() not in threads
    assert list(taken) == [] and list(prefetch([])) == []


def test_what_goes_wrong_in_advance_is_raised_where_the_noise_is_asked_for():
    taken = prefetch([lambda: noise_at([BASE], SHAPE), lambda: noise_at([BASE._replace(seed=2**70)], SHAPE)])
    assert next(taken).shape == (1, *SHAPE)
    with pytest.raises(struct.error):
        next(taken)
