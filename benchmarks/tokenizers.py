"""Speed of tokenizers in Python and in tf.data, compared with tensorflow-text's WordPiece.

python -m benchmarks.tokenizers [--path FOLDER_OF_TEXT] [--size 8000]

The text is from a folder, or Python's source code. The vocabularies of subwords and word pieces are built from it and
have the same size. Each result is the best of `--repeats` runs over the whole text, in processor seconds of one thread.
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
    """Return the argument parser."""
    arguments = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    arguments.add_argument("--path", help="folder of text files; default: Python's source code")
    arguments.add_argument("--size", type=int, default=8000, help="vocabulary size")
    arguments.add_argument("--megabytes", type=float, default=8.0, help="amount of text")
    arguments.add_argument("--repeats", type=int, default=3, help="number of runs; the best run counts")
    return arguments


def read_documents(path, megabytes):
    """Return documents as bytes, with about `megabytes` in total."""
    folder = pathlib.Path(sysconfig.get_path("stdlib") if path is None else path)
    documents, size = [], 0
    for file in sorted(folder.rglob("*.py" if path is None else "*.txt")):
        if size >= megabytes * 1e6:
            break
        documents.append(file.read_bytes())
        size += len(documents[-1])
    if not documents:
        raise ValueError(f"`--path` must be a folder of text files. Received: {folder}.")
    return documents


def word_pieces(documents, size):
    """Return a WordPiece vocabulary: all characters, with and without prefix "##", and the most frequent words."""
    words = collections.Counter(word for text in documents for word in text.decode("utf-8", "replace").lower().split())
    characters = sorted({character for word in words for character in word})
    pieces = dict.fromkeys(["[UNK]", *characters, *(f"##{character}" for character in characters)])
    for word, _ in words.most_common(size):
        if len(pieces) >= size:
            break
        pieces[word] = None
    return list(pieces)


def rate(run, texts, repeats):
    """Return megabytes per processor second, the best of `repeats` runs."""
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
    """Return a function that tokenizes texts in a tf.data pipeline."""
    dataset = tf.data.Dataset.from_tensor_slices(texts)
    dataset = (dataset.batch(batch_size) if batch_size else dataset).map(tokenizer.tokenize)
    return lambda: sum(1 for _ in dataset)


def figures(documents, size, repeats):
    """Return rows: name, megabytes per second, and the ratio to WordPiece in the same pipeline."""
    paragraphs = [part for text in documents for part in text.split(b"\n\n")]
    subwords = train_subwords(documents, size)
    peer = WordPieceTokenizer(word_pieces(documents, size))
    places = {"documents": (documents, None), f"batches of {BATCH_SIZE} paragraphs": (paragraphs, BATCH_SIZE)}
    rows = []

    def in_python():
        fresh = SubwordTokenizer(subwords.vocabulary)  # without cached words
        return [fresh.tokenize(text) for text in documents]

    rows.append(("subwords, Python", rate(in_python, documents, repeats), None))
    for place, (texts, batch_size) in places.items():
        own, theirs = (rate(in_data(each, texts, batch_size), texts, repeats) for each in (subwords, peer))
        rows += [(f"subwords, tf.data, {place}", own, own / theirs), (f"WordPiece, tf.data, {place}", theirs, 1.0)]
    return rows


def main(arguments=None):
    """Measure and print a table."""
    options = parser().parse_args(arguments)
    documents = read_documents(options.path, options.megabytes)
    print(f"{sum(map(len, documents)) / 1e6:.1f} MB of text, vocabularies of {options.size}")
    for name, speed, ratio in figures(documents, options.size, options.repeats):
        print(f"{name:<55}{speed:6.1f} MB/s{'' if ratio is None else f'{ratio:7.2f} of WordPiece'}")


if __name__ == "__main__":
    # Must be set before TensorFlow's first operation.
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    main()
