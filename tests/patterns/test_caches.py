"""For how many positions the slots of a cache are enough."""

import numpy as np
import pytest

from tf_sparse_attention.patterns.cache_policies import CachePolicy, Everything, Ring
from tf_sparse_attention.patterns.first import FirstSlots
from tf_sparse_attention.patterns.group_band import GroupRings
from tf_sparse_attention.patterns.selection import TokenInfo
from tf_sparse_attention.patterns.stride import PhaseRings


class OneEach(CachePolicy):
    """A policy of one's own, which says no more than it has to."""

    def num_slots(self, max_length):
        return max_length


GROWING = [OneEach(), Everything(), Ring(30), PhaseRings(5), PhaseRings(5, 30), GroupRings(3, 30), FirstSlots(30)]


@pytest.mark.parametrize("policy", GROWING)
def test_slots_hold_the_length_that_they_were_made_for_and_no_more(policy):
    slots = policy.num_slots(10)
    assert policy.has_room(10, slots)
    assert not policy.has_room(11, slots)


@pytest.mark.parametrize("policy", [Ring(3), Everything(), PhaseRings(1), PhaseRings(1, 30)])
def test_a_query_that_reads_every_slot_reads_them_in_place(policy):
    assert policy.read(TokenInfo(np.array([[3]]), {}), 30) is None  # indices would copy the whole cache


@pytest.mark.parametrize("policy", [Ring(3), PhaseRings(2, 3), GroupRings(3, 3), FirstSlots(3)])
def test_slots_that_are_used_again_hold_any_length(policy):
    assert policy.has_room(10**6, policy.num_slots(10))
