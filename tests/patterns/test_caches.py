"""Number of slots of each cache policy."""

import numpy as np

from tf_sparse_attention.patterns.cache_policies import CachePolicy, Everything, Ring
from tf_sparse_attention.patterns.first import FirstSlots
from tf_sparse_attention.patterns.group_band import GroupRings
from tf_sparse_attention.patterns.selection import TokenInfo
from tf_sparse_attention.patterns.stride import PhaseRings


class OneEach(CachePolicy):
    """A custom policy with only the required method."""

    def num_slots(self, max_length):
        return max_length


GROWING = [OneEach(), Everything(), Ring(30), PhaseRings(5), PhaseRings(5, 30), GroupRings(3, 30), FirstSlots(30)]


def test_slots_hold_the_length_of_the_cache_and_no_more():
    for policy in GROWING:
        slots = policy.num_slots(10)
        assert policy.has_room(10, slots)
        assert not policy.has_room(11, slots)
    for policy in (Ring(3), PhaseRings(2, 3), GroupRings(3, 3), FirstSlots(3)):  # which reuse slots
        assert policy.has_room(10**6, policy.num_slots(10))


def test_a_query_that_reads_every_slot_reads_them_in_place():
    for policy in (Ring(3), Everything(), PhaseRings(1), PhaseRings(1, 30)):
        assert policy.read(TokenInfo(np.array([[3]]), {}), 30) is None  # indices would copy the whole cache
