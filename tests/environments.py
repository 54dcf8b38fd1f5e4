"""Core tests with other versions: `python -m tests.environments [NAME ...] [--folder FOLDER]` (make test-environments).

Each environment is made in its folder, from what is installed without the lock, unless it is there already.
"""

import argparse
import dataclasses
import os
import pathlib
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
TEST_TOOLS = ("hypothesis>=6.100", "pytest>=9", "pytest-xdist>=3.6")
ON_TENSORFLOW = (
    "tests/ops",
    "tests/patterns",
    "tests/optimizers",
    "tests/data/batches",
    "tests/layers/test_contract_results.py",
    "tests/layers/test_decoding.py",
    "tests/models/test_language_model.py",
    "tests/integration/test_replicas.py",
)
# What these compare is JAX, in processes of its own too.
WITHOUT_TENSORFLOW = (
    "tests/integration/test_without_tensorflow.py",
    "tests/layers/test_jax_layers.py",
    "tests/models/test_metrics.py",
)
# Each of several processes and devices against one; what needs a backend that is not there is skipped.
SEVERAL_WORKERS = "tests/integration/test_workers.py"
TWO_OF_JAX = (SEVERAL_WORKERS, "-k=as_one_device and jax-2")
JAX = {"KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu"}


@dataclasses.dataclass(frozen=True)
class Environment:
    """What is installed, which tests run, variables for them, and which tests marked `large` run after them."""

    packages: tuple[str, ...]
    tests: tuple[str, ...]
    variables: dict[str, str] = dataclasses.field(default_factory=dict)
    large: tuple[str, ...] = ()


ENVIRONMENTS = {
    "oldest": Environment(
        # The newest tensorflow-metadata, of TFDS, wants a protobuf that is too new for this TensorFlow.
        (".[train]", "tensorflow==2.19.*", "keras==3.13.*", "tensorflow-metadata<1.18"),
        ON_TENSORFLOW,
        large=(SEVERAL_WORKERS, "-k=as_one_device and tensorflow-2"),
    ),
    "newest": Environment((".[jax,train]",), ON_TENSORFLOW, large=(SEVERAL_WORKERS,)),
    "colab-tpu": Environment((".[jax,tools]", "jax==0.7.2", "keras==3.13.2"), WITHOUT_TENSORFLOW, JAX, TWO_OF_JAX),
    "jax": Environment((".[jax,tools]",), WITHOUT_TENSORFLOW, JAX, TWO_OF_JAX),
}


def make(environment, folder):
    """Make a virtual environment, unless a complete one is there, and return its interpreter."""
    python, ready = folder / "bin" / "python", folder / ".ready"
    if not ready.exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
        package, *versions = environment.packages
        install = [python, "-m", "pip", "install", "--quiet", "--editable", package, *versions, *TEST_TOOLS]
        subprocess.run(install, cwd=ROOT, check=True)
        ready.touch()
    return python


def run(environment, python):
    """Run the tests of an environment and return the exit status, 0 where all passed."""
    variables = {**os.environ, "XLA_FLAGS": "--xla_backend_optimization_level=0", **environment.variables}
    # Warnings of other versions are not ours; in the lock's they are errors.
    command = [python, "-m", "pytest", "-q", "-W", "ignore"]
    sets = [environment.tests, *([("-m=large", *environment.large)] if environment.large else [])]
    statuses = [subprocess.run([*command, *tests], cwd=ROOT, env=variables, check=False).returncode for tests in sets]
    return max(statuses, key=abs)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", default=list(ENVIRONMENTS), metavar="NAME", help=", ".join(ENVIRONMENTS))
    parser.add_argument("--folder", type=pathlib.Path, default=ROOT / ".environments", help="of the environments")
    arguments = parser.parse_args()
    unknown = set(arguments.names) - set(ENVIRONMENTS)
    if unknown:
        parser.error(f"`NAME` must be one of {', '.join(ENVIRONMENTS)}. Received: {', '.join(sorted(unknown))}.")
    failed = []
    for name in arguments.names:
        begin = time.monotonic()
        python = make(ENVIRONMENTS[name], (arguments.folder / name).resolve())
        status = run(ENVIRONMENTS[name], python)
        failed += [name] if status else []
        print(f"{name}: {'failed' if status else 'passed'}, {(time.monotonic() - begin) / 60:.1f} minutes", flush=True)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
