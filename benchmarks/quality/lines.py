"""Share of generated lines that are valid Python tokens: `python -m benchmarks.quality.lines --workdir=runs/demo`.

Generates samples with the settings of `tsa-generate`, and counts complete logical lines and the lines that Python's
`tokenize` reads without an error.
"""

import argparse
import io
import tokenize

from benchmarks.quality.run_folder import run_folder

NUM_SAMPLES, NUM_TOKENS = 8, 400


def count_lines(text: str) -> tuple[int, int]:
    """Return the number of complete logical lines of a text, and the number that `tokenize` reads.

    A line with an unclosed bracket or string counts as not read. The last line, which may be incomplete, does not
    count.
    """
    lines = [line for line in text.splitlines()[:-1] if line.strip()]
    complete = read = first = 0
    while first < len(lines):
        ends = (end for end in range(first + 1, len(lines) + 1) if _is_read("\n".join(lines[first:end])) is not None)
        end = next(ends, None)
        complete += 1
        read += end is not None and bool(_is_read("\n".join(lines[first:end])))
        first = first + 1 if end is None else end
    return complete, read


def _is_read(line):
    """Return whether `tokenize` reads a logical line; None if the line is incomplete."""
    try:
        kinds = [token.type for token in tokenize.generate_tokens(io.StringIO(line.strip() + "\n").readline)]
    except tokenize.TokenError:
        return None
    except SyntaxError:  # an indentation error inside the line
        return False
    return tokenize.ERRORTOKEN not in kinds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workdir", required=True, type=run_folder, help="run directory")
    options = parser.parse_args()

    import tf_sparse_attention as tsa
    from tf_sparse_attention.trainers.shared import workdir
    from tf_sparse_attention.trainers.tasks import registry

    task, model = registry.load_task(options.workdir), workdir.load_model(options.workdir)
    settings, tokenizer = task.config.generate, task.tokenizer
    strategy = tsa.generation.Sampling(temperature=settings.temperature, top_p=settings.top_p)
    counts = []
    for seed in range(NUM_SAMPLES):
        text = model.generate("import os\n", NUM_TOKENS, strategy, tokenizer, seed=seed)
        counts.append(count_lines(text))
        print(text, f"--- {counts[-1][1]} of {counts[-1][0]} lines", sep="\n")
    complete, read = map(sum, zip(*counts, strict=True))
    print(f"{read} of {complete} complete logical lines are read by tokenize: {read / max(complete, 1):.0%}")


if __name__ == "__main__":
    main()
