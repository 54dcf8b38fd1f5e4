"""How pytest-xdist shares the tests out: which go to one process together, and which come first.

By names and not by the mark `xdist_group`, which pytest-xdist 3.8 cannot read of pytest 9.
"""

from xdist.scheduler import LoadFileScheduling

# Files whose tests share what takes long to make: the process of `run_jax`, or one export.
TOGETHER = {
    "tests/generation/test_jax.py": "jax",
    "tests/layers/test_jax_layers.py": "jax",
    "tests/export/test_language_model.py": "export",
    "tests/export/test_generation.py": "export",
    "tests/export/test_serving_page.py": "export",
}
# What takes longest comes first, so that no process has it still before it when the others are done.
ORDER = ("jax", "export", "integration", "trainers", "convert", "layers", "models", "patterns", "ops")


def group_of(nodeid):
    """Return what goes to one process with a test: tests with "jax" in their names, the file of all others."""
    file, _, name = nodeid.partition("::")
    return "jax" if "jax" in name.split("[")[0] else TOGETHER.get(file, file)


def place_in_order(item):
    """Return the place of a test among the groups and folders of `ORDER`, for sorting."""
    group, (_, folder, *_) = group_of(item.nodeid), item.nodeid.split("/")
    return min((ORDER.index(name) for name in (group, folder) if name in ORDER), default=len(ORDER))


class ByGroup(LoadFileScheduling):
    """Sends each group whole to one process, in the order of collection."""

    def __init__(self, config, log=None):
        config.option.loadscopereorder = False  # by the number of tests, which says little of their time
        super().__init__(config, log)

    def _split_scope(self, nodeid):
        return group_of(nodeid)
