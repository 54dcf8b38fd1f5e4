"""Which files of a folder are documents, what they hold, and which split each belongs to."""

import dataclasses
import hashlib
import pathlib

SPLITS = ("train", "validation", "test")
# Percent of the hash values below which a file is for training, and for validation; the rest is for testing.
TRAIN_BELOW, VALIDATION_BELOW = 90, 95


@dataclasses.dataclass(frozen=True)
class TextFile:
    """One document on disk: `name` relative to its folder with "/", `path`, and `digest`, a hash of its content."""

    name: str
    path: pathlib.Path
    digest: str

    def read(self):
        """Returns the bytes of the file, which must be those that were hashed.

        Raises:
            ValueError: If the file changed since it was listed.
        """
        content = self.path.read_bytes()
        if digest_of(content) != self.digest:
            raise ValueError(f"`path` must not change while it is being read. Received: changed file {self.path}.")
        return content


def digest_of(content):
    """Returns 32 hexadecimal digits that stand for these bytes."""
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def split_of(digest):
    """Returns the split of a document from the hash of its content.

    90 % of all contents are for training, 5 % for validation and 5 % for testing. The name of a file plays no part, so
    two copies of one text are never on both sides, and a document keeps its split when others come or go.

    Args:
        digest: Hexadecimal hash of the content, from `digest_of`.

    Returns:
        "train", "validation" or "test".
    """
    percent = int(digest[:16], 16) % 100
    return SPLITS[0] if percent < TRAIN_BELOW else SPLITS[1] if percent < VALIDATION_BELOW else SPLITS[2]


def files_by_split(files):
    """Returns {split: list of its `TextFile`} for "train", "validation" and "test", by `split_of`."""
    return {split: [file for file in files if split_of(file.digest) == split] for split in SPLITS}


def list_text_files(folder, paths, skip_invalid=False):
    """Lists the documents among some files of a folder, sorted by name.

    Hidden files, files in hidden folders, and files without text (empty or only blank) are left out.

    Args:
        folder: Path of the folder that names are relative to.
        paths: Iterable of `pathlib.Path` inside it, files and folders.
        skip_invalid: Whether a file that is not UTF-8 is left out rather than an error.

    Returns:
        List of `TextFile`.

    Raises:
        ValueError: If a file is not UTF-8 and `skip_invalid` is False.
    """
    files = []
    for path in paths:
        relative = path.relative_to(folder)
        if any(part.startswith(".") for part in relative.parts) or not path.is_file():
            continue
        content = path.read_bytes()
        if content.strip() and _is_utf8(content, path, skip_invalid):
            files.append(TextFile(relative.as_posix(), path, digest_of(content)))
    return sorted(files, key=lambda file: file.name)


def _is_utf8(content, path, skip_invalid):
    try:
        content.decode("utf-8")
    except UnicodeDecodeError as error:
        if not skip_invalid:
            raise ValueError(f"`path` must hold UTF-8 text. Received: {path}, wrong at byte {error.start}.") from error
        return False
    return True


def fingerprint_of(files):
    """Returns 16 hexadecimal digits that change with any name or content in the list of `TextFile`."""
    lines = "".join(f"{file.digest} {file.name}\n" for file in files)
    return digest_of(lines.encode("utf-8", errors="surrogateescape"))[:16]
