"""How pytest-xdist shares the tests out: a file, or what is marked as one group, to one process."""

from xdist.scheduler import LoadGroupScheduling


class ByFileOrGroup(LoadGroupScheduling):
    """Sends each file whole to one process, but tests of an `xdist_group` with their group, in collection order."""

    def __init__(self, config, log=None):
        config.option.loadscopereorder = False  # by the number of tests, which says little of their time
        super().__init__(config, log)

    def _split_scope(self, nodeid):
        group = super()._split_scope(nodeid)
        return nodeid.split("::")[0] if group == nodeid else group
