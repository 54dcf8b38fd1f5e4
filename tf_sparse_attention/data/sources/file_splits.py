"""Lists the files of a data set, hashes them, and assigns them to splits."""

import codecs
import contextlib
import dataclasses
import functools
import gzip
import hashlib
import os
import pathlib
import re
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import IO, Any, NamedTuple, TypeVar

from tf_sparse_attention.data.sources.readers import warn_once

SPLITS = ("train", "validation", "test")
# Percentiles of the hash: below the first for training, below the second for validation, the rest for testing.
TRAIN_BELOW, VALIDATION_BELOW = 90, 95
BLOCK = 1 << 20  # bytes per read
RECENT = 2.0  # seconds: a file that changes twice within this time may keep its modification time
T = TypeVar("T")


class Scan(NamedTuple):
    """Hash and size in bytes of a file, whether it is blank, and the position of the first byte that is not UTF-8."""

    digest: str
    size: int
    is_blank: bool
    invalid_byte: int | None


@dataclasses.dataclass(frozen=True)
class DataFile:
    """File, or its bytes from `begin` to `end`. `name` is the path in the folder of the data set, with "/"."""

    name: str
    path: pathlib.Path
    digest: str
    begin: int = 0
    end: int | None = None

    def read(self) -> bytes:
        """Return the content, or raise a `ValueError` if the file is damaged or changed since it was listed."""
        with open_content(self.path) as file:
            content = file.read()
        if content_digest(content) != self.digest:
            raise ValueError(f"`path` must not change while it is being read. Received: changed file {self.path}.")
        return content[self.begin : self.end]


def existing_path(path: str | os.PathLike | None, expected: str) -> pathlib.Path:
    """Return the absolute path of a file or folder, or raise a `ValueError` if it does not exist."""
    if path is None or not pathlib.Path(path).expanduser().exists():
        raise ValueError(f"`path` must be an existing {expected}. Received: path={path}.")
    return pathlib.Path(path).expanduser().resolve()


def readable_name(path: pathlib.Path, default: str) -> str:
    """Return the name of a file or folder, reduced to letters, digits and underscores."""
    stem = path.name.removesuffix(".gz").removesuffix(".jsonl").removesuffix(".npz")
    return re.sub("[^A-Za-z0-9]+", "_", stem).strip("_") or default


@contextlib.contextmanager
def open_content(path: pathlib.Path) -> Iterator[IO[bytes]]:
    """Open a file for reading bytes. NAME.gz is decompressed, and raises a `ValueError` if it is damaged."""
    opener: Any = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rb") as file:
        try:
            yield file
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise ValueError(f"`path` must be a complete gzip file. Received: {path}: {error}.") from error


def content_digest(content: bytes) -> str:
    """Return a hash of 32 hexadecimal digits, which decides the split of the content."""
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def _remember(function: Callable[[pathlib.Path], T]) -> Callable[[pathlib.Path], T]:
    """Cache the results of a function of a file by path, size and modification time."""
    cached = functools.cache(lambda path, *_: function(path))

    @functools.wraps(function)
    def remembered(path: pathlib.Path) -> T:
        status = os.stat(path)
        if time.time() - status.st_mtime < RECENT:
            return function(path)
        return cached(path, status.st_size, status.st_mtime_ns)

    return remembered


@_remember
def file_fingerprint(path: pathlib.Path) -> str:
    """Return a hash of the bytes of a file, 16 hexadecimal digits."""
    with path.open("rb") as file:
        # The fastest hash of hashlib, 1.2 GB per second. SHA-1 detects changes, not attacks.
        return hashlib.file_digest(file, lambda: hashlib.sha1(usedforsecurity=False)).hexdigest()[:16]


@_remember
def scan_file(path: pathlib.Path) -> Scan:
    """Hash a file and check its UTF-8, in blocks."""
    digest, decoder = hashlib.blake2b(digest_size=16), codecs.getincrementaldecoder("utf-8")()
    size = begin = 0  # `begin`: position of the first byte that is not decoded, because its character is incomplete
    is_blank, invalid = True, None
    with open_content(path) as file:
        while block := file.read(BLOCK):
            digest.update(block)
            is_blank = is_blank and not block.strip()
            size += len(block)
            if invalid is None:
                try:
                    decoder.decode(block)
                except UnicodeDecodeError as error:
                    invalid = begin + error.start
                begin = size - len(decoder.getstate()[0])
    if invalid is None and begin < size:
        invalid = begin
    return Scan(digest.hexdigest(), size, is_blank, invalid)


def fingerprint_files(files: Mapping[str, Sequence[DataFile]], further: Iterable[str] = ()) -> str:
    """Return a hash, 16 hexadecimal digits, of splits, names, contents and byte ranges of files, and of `further`."""
    lines = [f"{split} {file.digest} {file.begin} {file.end} {file.name}" for split in files for file in files[split]]
    return content_digest("\n".join([*lines, *further]).encode("utf-8", errors="surrogateescape"))[:16]


def assign_split(digest: str) -> str:
    """Return the split for a content hash: 90 % "train", 5 % "validation" and 5 % "test".

    File names have no effect: equal files are in one split, and a file keeps its split when other files are added.
    """
    percent = _percent(digest)
    return SPLITS[0] if percent < TRAIN_BELOW else SPLITS[1] if percent < VALIDATION_BELOW else SPLITS[2]


def _percent(digest):
    return int(digest[:16], 16) % 100


def nonempty_splits(files: Sequence[DataFile]) -> dict[str, list[DataFile]]:
    """Assign files to three non-empty splits, as `assign_split` does if the sizes of its splits are within bounds.

    Different contents are sorted by hash. The highest hashes are for testing, the next for validation, the rest for
    training. Testing and validation have the sizes of `assign_split`, but at least 1 and at most max(1, a tenth of all
    contents), so 1 each below 20 contents. Names and order have no effect, and equal files are in one split.

    With a few hundred contents or more, the bounds rarely apply. A file then keeps its split when other files are added
    or removed, which would not hold for splits of fixed sizes.

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
    # Validation can lose contents to an empty testing split, and receives the excess of testing.
    num_validation = min(max(1, len(contents) - natural.count("train") - num_test), most)
    held_out = dict.fromkeys(contents[:num_test], "test")
    held_out |= dict.fromkeys(contents[num_test : num_test + num_validation], "validation")
    return {split: [file for file in files if held_out.get(file.digest, "train") == split] for split in SPLITS}


def list_files(
    folder: pathlib.Path, find: Callable[[pathlib.Path], Iterable[pathlib.Path]], others: str, kind: str
) -> dict[str, list[pathlib.Path]]:
    """List the sorted files of a folder by split, and warn about files that are left out, unless they are hidden.

    Subfolders train, validation and test are the splits. Without them, the only key of the result is "".

    Args:
        folder: the folder.
        find: function that returns the files of the data set in a folder.
        others: glob pattern of files to warn about if `find` does not return them.
        kind: description of the files of the data set, for warnings.
    """
    parts = {split: folder / split for split in SPLITS if (folder / split).is_dir()}
    files = {split: set(find(part)) for split, part in (parts or {"": folder}).items()}
    matched = set().union(*files.values())
    if parts:
        missing = [split for split in SPLITS if split not in parts]
        if missing:
            warn_once(f"{folder} has a folder for {', '.join(parts)} only: there is no split {' or '.join(missing)}.")
        _warn_left_out(folder, set(find(folder)) - matched, f"not in {', '.join(parts)}")
    nearby = {path for part in parts.values() or [folder] for path in part.glob(others)}
    _warn_left_out(folder, nearby - matched, f"not {kind}")
    return {split: _visible_files(folder, paths) for split, paths in files.items()}


def _warn_left_out(folder, paths, reason):
    """Log the number of files that are left out, and the name of the first."""
    files = _visible_files(folder, paths)
    if files:
        name = files[0].relative_to(folder).as_posix()
        warn_once(f"{len(files)} of the files in {folder} are left out ({reason}), such as {name}.")


def _visible_files(folder, paths):
    return sorted(
        path
        for path in paths
        if path.is_file() and not any(part.startswith(".") for part in path.relative_to(folder).parts)
    )
