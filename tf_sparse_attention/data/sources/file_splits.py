"""Lists the text files of a folder, hashes their content and assigns them to splits."""

import dataclasses
import gzip
import hashlib
import os
import pathlib
import zlib
from collections.abc import Iterable

SPLITS = ("train", "validation", "test")
JSON_LINES = (".jsonl", ".jsonl.gz")  # how the names of files of JSON lines end
# Percent of the hash values below which a file is for training, and for validation; the rest is for testing.
TRAIN_BELOW, VALIDATION_BELOW = 90, 95


@dataclasses.dataclass(frozen=True)
class TextFile:
    """One document on disk: `name` relative to its folder with "/", `path`, and `digest`, a hash of its content."""

    name: str
    path: pathlib.Path
    digest: str

    def read(self) -> bytes:
        """Returns the content of the file, see `read_content`, which must be what was hashed.

        Raises:
            ValueError: If the file changed since it was listed.
        """
        content = read_content(self.path)
        if content_digest(content) != self.digest:
            raise ValueError(f"`path` must not change while it is being read. Received: changed file {self.path}.")
        return content


def read_content(path: pathlib.Path) -> bytes:
    """Returns the bytes of a file, those that are compressed in it if it is called NAME.gz.

    Raises:
        ValueError: If such a file is damaged.
    """
    content = path.read_bytes()
    if path.suffix != ".gz":
        return content
    try:
        return gzip.decompress(content)
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"`path` must be a whole gzip file. Received: {path}: {error}.") from error


def content_digest(content: bytes) -> str:
    """Returns a hash of these bytes, 32 hexadecimal digits."""
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def assign_split(digest: str) -> str:
    """Returns the split of a document from the hash of its content.

    90 % of all contents are for training, 5 % for validation and 5 % for testing. The name of a file has no effect, so
    two copies of one text are always in one split, and a document keeps its split when others are added or removed.

    Args:
        digest: hexadecimal hash of the content, from `content_digest`.

    Returns:
        "train", "validation" or "test".
    """
    percent = _percent(digest)
    return SPLITS[0] if percent < TRAIN_BELOW else SPLITS[1] if percent < VALIDATION_BELOW else SPLITS[2]


def _percent(digest):
    return int(digest[:16], 16) % 100


def files_by_split(files: list[TextFile]) -> dict[str, list[TextFile]]:
    """Returns {split: list of its `TextFile`} for "train", "validation" and "test" by `assign_split`."""
    return {split: [file for file in files if assign_split(file.digest) == split] for split in SPLITS}


def nonempty_splits(files: list[TextFile]) -> dict[str, list[TextFile]]:
    """Assigns files to three non-empty splits, by `assign_split` as far as that gives fair shares.

    The contents are ranked by their hash. The last of them are for testing, those before for validation, the rest for
    training; for testing as many as `assign_split` says, but at least 1 and at most max(1, a tenth of them), and so for
    validation. Below 20 contents that is one each. It is a function of the contents alone: names and order have no
    effect, and equal files are never in two splits.

    A fixed share of the ranks (5 % of however many there are) would be nearer to 90/5/5, but files that are added would
    push others over a border in folders of any size. The bounds here are met in small folders; among some hundred
    contents they almost never are: `assign_split` decides, and no file moves when others are added or removed.

    Args:
        files: list of `TextFile` with at least 3 different contents.

    Returns:
        {split: list of its `TextFile`, in the given order} for "train", "validation" and "test".

    Raises:
        ValueError: If there are fewer than 3 different contents.
    """
    contents = sorted({file.digest for file in files}, key=lambda digest: (_percent(digest), digest), reverse=True)
    if len(contents) < len(SPLITS):
        raise ValueError(
            f"`files` must have at least 3 different contents. Received: files of {len(contents)} contents."
        )
    natural = [assign_split(digest) for digest in contents]
    most = max(1, len(contents) // 10)
    num_test = min(max(1, natural.count("test")), most)
    # Contents that testing takes from validation are gone from it, and those beyond the bound of testing fall to it.
    num_validation = min(max(1, len(contents) - natural.count("train") - num_test), most)
    test, rest = set(contents[:num_test]), contents[num_test:]
    validation, train = set(rest[:num_validation]), set(rest[num_validation:])
    members = {"train": train, "validation": validation, "test": test}
    return {split: [file for file in files if file.digest in members[split]] for split in SPLITS}


def list_text_files(
    folder: str | os.PathLike, paths: Iterable[pathlib.Path], skip_invalid: bool = False
) -> list[TextFile]:
    """Lists the documents among some files of a folder, sorted by name.

    Hidden files, files in hidden folders, and files without text (empty or only blank) are left out.

    Args:
        folder: path of the folder that names are relative to.
        paths: iterable of `pathlib.Path` inside it, files and folders.
        skip_invalid: whether a file that is not UTF-8 is left out rather than an error.

    Returns:
        List of `TextFile`.

    Raises:
        ValueError: If a file is not UTF-8 and `skip_invalid` is False.
    """
    files = []
    for path in paths:
        if is_hidden(path, folder) or not path.is_file():
            continue
        content = read_content(path)
        if not content.strip() or (skip_invalid and _invalid_byte(content) is not None):
            continue
        check_utf8(content, path)
        files.append(TextFile(path.relative_to(folder).as_posix(), path, content_digest(content)))
    return sorted(files, key=lambda file: file.name)


def matching(folder: pathlib.Path, pattern: str) -> set[pathlib.Path]:
    """Returns the paths in a folder that match a pattern, as they are or with ".gz" after their name."""
    return {*folder.glob(pattern), *folder.glob(f"{pattern}.gz")}


def json_line_files(folder: pathlib.Path) -> list[pathlib.Path]:
    """Returns the files of JSON lines in a folder and those below it, sorted, without hidden ones."""
    found = (path for end in JSON_LINES for path in folder.rglob(f"*{end}"))
    return sorted(path for path in found if path.is_file() and not is_hidden(path, folder))


def is_hidden(path: pathlib.Path, folder: str | os.PathLike) -> bool:
    """Returns whether a name between a folder and a path in it begins with a dot."""
    return any(part.startswith(".") for part in path.relative_to(folder).parts)


def check_utf8(content: bytes, path: pathlib.Path) -> None:
    """Raises a `ValueError` unless the content of a file is UTF-8."""
    invalid = _invalid_byte(content)
    if invalid is not None:
        raise ValueError(f"`path` must hold UTF-8 text. Received: {path}, wrong at byte {invalid}.")


def _invalid_byte(content):
    """Returns the place of the first byte that is not UTF-8, or None."""
    try:
        content.decode("utf-8")
    except UnicodeDecodeError as error:
        return error.start
    return None


def fingerprint_files(files: Iterable[TextFile]) -> str:
    """Returns 16 hexadecimal digits that change with any name or content in the list of `TextFile`."""
    lines = "".join(f"{file.digest} {file.name}\n" for file in files)
    return content_digest(lines.encode("utf-8", errors="surrogateescape"))[:16]
