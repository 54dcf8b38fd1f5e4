"""How pytest-xdist shares the tests out: a file, or what is marked as one group, to one process, the slowest first."""

from xdist.scheduler import LoadGroupScheduling


class ByFileOrGroup(LoadGroupScheduling):
    """Sends each file whole to one process, but for tests marked `xdist_group`, which go by their group."""

    def _split_scope(self, nodeid):
        group = super()._split_scope(nodeid)
        return nodeid.split("::")[0] if group == nodeid else group
