"""A process on the JAX backend that runs pieces of code for the tests one after the other: starting one takes seconds.

`JaxWorker` is what the tests hold; `python -m tests.jax_worker` is the process, which reads a line of JSON for each
piece and answers with a line of JSON.
"""

import contextlib
import io
import json
import os
import subprocess
import sys
import traceback
from pathlib import Path

from tests.draws import JAX_SETTINGS

ROOT = Path(__file__).resolve().parent.parent


class JaxWorker:
    """The process as the tests see it; it starts when it is first asked for something.

    Args:
        said: File open for reading and writing, for its standard error.
    """

    def __init__(self, said):
        self._process, self._said = None, said

    def __call__(self, code):
        """Run code from the state of a fresh start and return what it printed; an error there is one here."""
        if self._process is None or self._process.poll() is not None:
            self._start()
        try:
            self._process.stdin.write(json.dumps(code) + "\n")
            self._process.stdin.flush()
            answer = json.loads(self._process.stdout.readline())
        except (OSError, ValueError):
            self._process.wait()
            self._said.seek(0)
            raise RuntimeError(f"the JAX process ended while it ran\n{code}\n{self._said.read()}") from None
        if "error" in answer:
            raise RuntimeError(f"an error on JAX, from\n{code}\n{answer['error']}")
        return answer["printed"]

    def _start(self):
        environment = {**os.environ, "JAX_PLATFORMS": "cpu", **JAX_SETTINGS}
        command = [sys.executable, "-m", "tests.jax_worker"]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": self._said}
        self._process = subprocess.Popen(command, cwd=ROOT, env=environment, text=True, **pipes)

    def close(self):
        if self._process is not None:
            self._process.communicate()


def run_on_devices(module, *arguments, count=4):
    """Run a module in a process on the JAX backend with several CPU devices, and return the JSON that it prints."""
    environment = {**os.environ, "KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": str(count)}
    command = [sys.executable, "-m", module, *arguments]
    return json.loads(subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, check=True).stdout)


def answer_to(code):
    """Run one piece of code and return {"printed": text} or {"error": traceback}."""
    import keras

    keras.utils.clear_session(free_memory=False)
    keras.utils.set_random_seed(0)
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            exec(compile(code, "<code of a test>", "exec"), {"__name__": "__main__"})
    except Exception:
        return {"error": f"{printed.getvalue()}{traceback.format_exc()}"}
    return {"printed": printed.getvalue()}


def main():
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries write to the standard output is no answer
    for line in sys.stdin:
        print(json.dumps(answer_to(json.loads(line))), file=answers, flush=True)


if __name__ == "__main__":
    main()
