"""Text that tokenizers read in a second of one processor: in Python, in tf.data, beside tensorflow-text's WordPiece.

python -m benchmarks.tokenizers [--path FOLDER_OF_TEXT] [--size 8000]

The text is that of a folder, or Python's own source code. The vocabularies of subwords and of word pieces are made from
it, of one size; each figure is the best of `--repeats` runs over all of it, in processor seconds of one thread.
"""

import argparse
import collections
import pathlib
import resource
import sysconfig

import tensorflow as tf

from tf_sparse_attention.data import SubwordTokenizer, WordPieceTokenizer, train_subwords

BATCH_SIZE = 256  # paragraphs


def parser():
    """Return the command line."""
    arguments = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    arguments.add_argument("--path", help="folder with files of text; Python's own source code if not given")
    arguments.add_argument("--size", type=int, default=8000, help="entries of the vocabularies")
    arguments.add_argument("--megabytes", type=float, default=8.0, help="text to read")
    arguments.add_argument("--repeats", type=int, default=3, help="runs, of which the best counts")
    return arguments


def read_documents(path, megabytes):
    """Return documents as bytes, up to so many megabytes in all."""
    folder = pathlib.Path(sysconfig.get_path("stdlib") if path is None else path)
    documents, size = [], 0
    for file in sorted(folder.rglob("*.py" if path is None else "*.txt")):
        if size >= megabytes * 1e6:
            break
        documents.append(file.read_bytes())
        size += len(documents[-1])
    if not documents:
        raise ValueError(f"`--path` must be a folder with files of text. Received: {folder}.")
    return documents


def word_pieces(documents, size):
    """Return a vocabulary of WordPiece: all characters, alone and inside of words, and the most frequent words."""
    words = collections.Counter(word for text in documents for word in text.decode("utf-8", "replace").lower().split())
    characters = sorted({character for word in words for character in word})
    pieces = dict.fromkeys(["[UNK]", *characters, *(f"##{character}" for character in characters)])
    for word, _ in words.most_common(size):
        if len(pieces) >= size:
            break
        pieces[word] = None
    return list(pieces)


def rate(run, texts, repeats):
    """Return megabytes a processor second, the best of some runs."""
    size = sum(map(len, texts)) / 1e6
    run()
    seconds = []
    for _ in range(repeats):
        before = _processor_seconds()
        run()
        seconds.append(_processor_seconds() - before)
    return size / min(seconds)


def _processor_seconds():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def in_data(tokenizer, texts, batch_size=None):
    """Return a function that reads texts through a tf.data pipeline."""
    dataset = tf.data.Dataset.from_tensor_slices(texts)
    dataset = (dataset.batch(batch_size) if batch_size else dataset).map(tokenizer.tokenize)
    return lambda: sum(1 for _ in dataset)


def figures(documents, size, repeats):
    """Return rows of what was measured: name, megabytes a second, and the ratio to WordPiece in the same place."""
    paragraphs = [part for text in documents for part in text.split(b"\n\n")]
    subwords = train_subwords(documents, size)
    peer = WordPieceTokenizer(word_pieces(documents, size))
    places = {"documents": (documents, None), f"batches of {BATCH_SIZE} paragraphs": (paragraphs, BATCH_SIZE)}
    rows = []

    def in_python():
        fresh = SubwordTokenizer(subwords.vocabulary)  # without the words that it has seen
        return [fresh.tokenize(text) for text in documents]

    rows.append(("subwords, Python", rate(in_python, documents, repeats), None))
    for place, (texts, batch_size) in places.items():
        own, theirs = (rate(in_data(each, texts, batch_size), texts, repeats) for each in (subwords, peer))
        rows += [(f"subwords, tf.data, {place}", own, own / theirs), (f"WordPiece, tf.data, {place}", theirs, 1.0)]
    return rows


def main(arguments=None):
    """Measure and prints a table."""
    options = parser().parse_args(arguments)
    documents = read_documents(options.path, options.megabytes)
    print(f"{sum(map(len, documents)) / 1e6:.1f} MB of text, vocabularies of {options.size}")
    for name, speed, ratio in figures(documents, options.size, options.repeats):
        print(f"{name:<55}{speed:6.1f} MB/s{'' if ratio is None else f'{ratio:7.2f} of WordPiece'}")


if __name__ == "__main__":
    # Possible before TensorFlow's first operation alone.
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    main()
