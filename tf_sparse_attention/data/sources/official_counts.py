"""Published word counts, the denominators of published perplexities per word."""

# Documents and words of each split. Source: the README of deepmind/pg19 (Rae et al. 2020), commit b0e1f292.
PG19 = {"train": (28_602, 1_973_136_207), "validation": (50, 3_007_061), "test": (100, 6_966_499)}


def official_word_count(name: str, split: str, num_documents: int) -> int | None:
    """Returns the official number of words of a split, or None.

    Args:
        name: full name of the data set, such as "pg19/0.1.1".
        split: name of the split; a part of one ("test[:1]") has no official count.
        num_documents: documents that were read; only a complete split has an official count.

    Example:

    >>> official_word_count("pg19/0.1.1", "test", num_documents=100)
    6966499
    """
    documents, words = PG19.get(split, (0, None)) if name.split("/")[0] == "pg19" else (0, None)
    return words if num_documents == documents else None
