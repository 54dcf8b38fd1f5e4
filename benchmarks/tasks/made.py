"""Synthetic data for all tasks: `python -m benchmarks.tasks.made --folder=runs/tasks/data`.

The data sets are small and random with fixed seeds: numbers in words and digits, questions about one of several facts,
words of three categories, images of colored boxes, tones, and letters encoded as tones.
"""

import argparse
import json
import pathlib
import wave
from collections.abc import Iterator
from typing import Any

import numpy as np

UNITS = [
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
    "thirteen",
    "fourteen",
    "fifteen",
    "sixteen",
]
UNITS += ["seventeen", "eighteen", "nineteen"]
TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
KINDS = {"fruit": ["apple", "pear", "plum"], "tool": ["saw", "nail", "drill"], "beast": ["cat", "cow", "hen"]}
THINGS, COLOURS = ["cat", "door", "hat", "bird", "ship"], ["red", "blue", "green", "white", "black"]
RATE = 8000  # samples per second
LETTERS = {"a": 400, "b": 800, "c": 1600, "d": 2800}  # hertz


def in_words(number: int) -> str:
    """Return a number from 0 to 999 in English words.

    Example:

    >>> in_words(342)
    'three hundred forty-two'
    """
    if number < len(UNITS):
        return UNITS[number]
    if number < 100:
        ten, unit = divmod(number, 10)
        return TENS[ten - 2] + (f"-{UNITS[unit]}" if unit else "")
    hundred, rest = divmod(number, 100)
    return f"{UNITS[hundred]} hundred" + (f" {in_words(rest)}" if rest else "")


def write_all(folder: pathlib.Path) -> None:
    """Write the data of all tasks to a folder; existing files are kept."""
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(0)
    _write_text(folder / "text", random)
    for name, rows in (("pairs", _pairs), ("questions", _questions), ("labeled", _labeled)):
        _write_once(folder / f"{name}.jsonl", "\n".join(map(json.dumps, rows(random))).encode())
    _write_arrays(folder / "images.npz", **{f"x_{name}": _boxes(count, random) for name, count in _splits(400)})
    sounds = [_tones(random.choice([300, 450, 600], 4), 0.05, random) for _ in range(60)]
    offsets, is_test = np.cumsum([0, *map(len, sounds)]), np.arange(60) >= 50
    _write_arrays(
        folder / "sounds.npz", audio=np.concatenate(sounds), offsets=offsets, sample_rate=RATE, is_test=is_test
    )
    _write_speech(folder / "spoken", random)


def _splits(number):
    """Return pairs of split name and its count out of `number` examples."""
    return ("train", number * 8 // 10), ("validation", number // 10), ("test", number // 10)


def _with_splits(rows):
    """Yield rows with the field "split"."""
    names = [name for name, count in _splits(len(rows)) for _ in range(count)]
    yield from ({**row, "split": name} for row, name in zip(rows, names, strict=True))


def _pairs(random) -> Iterator[dict[str, Any]]:
    numbers = random.permutation(1000)
    yield from _with_splits([{"words": in_words(int(n)), "digits": str(n)} for n in numbers])


def _questions(random) -> Iterator[dict[str, Any]]:
    rows = []
    for _ in range(600):
        things, colours = random.permutation(THINGS)[:3], random.choice(COLOURS, 3)
        passages = [f"The {thing} is {colour}." for thing, colour in zip(things, colours, strict=True)]
        asked = int(random.integers(3))
        rows.append({"question": f"And the {things[asked]}?", "passages": passages, "answer": passages[asked]})
    yield from _with_splits(rows)


def _labeled(random) -> Iterator[dict[str, Any]]:
    rows = []
    for number in range(600):
        label = list(KINDS)[number % 3]
        others = [word for words in KINDS.values() for word in words]
        words = [*random.choice(KINDS[label], 4), *random.choice(others, 3)]
        rows.append({"text": " ".join(random.permutation(words)), "label": label})
    yield from _with_splits(rows)


def _write_text(folder, random):
    for name, count in _splits(200):
        (folder / name).mkdir(parents=True, exist_ok=True)
        for number in range(count):
            first = int(random.integers(900))
            lines = [f"{n}: {in_words(n)}" for n in range(first, first + 20)]
            _write_once(folder / name / f"{number:03}.txt", "\n".join(lines).encode())


def _boxes(count, random):
    """Return images of a colored box on a gray background, uint8 (count, 8, 8, 3)."""
    images = np.full((count, 8, 8, 3), 96, np.uint8)
    for image in images:
        (top, left), (height, width) = random.integers(0, 5, 2), random.integers(2, 4, 2)
        image[top : top + height, left : left + width] = random.choice([0, 255], 3)
    return images


def _tones(pitches, seconds, random):
    """Return 16-bit samples of a sequence of decaying tones with some noise."""
    time = np.arange(int(RATE * seconds)) / RATE
    sound = np.concatenate([np.sin(2 * np.pi * pitch * time) * (1 - time / seconds) for pitch in pitches])
    return (8000 * sound + random.normal(0, 50, sound.shape)).astype(np.int16)


def _write_speech(folder, random):
    for name, count in _splits(200):
        (folder / name).mkdir(parents=True, exist_ok=True)
        for number in range(count):
            text = "".join(random.choice(list(LETTERS), random.integers(3, 9)))
            path = folder / name / f"{number:03}"
            _write_once(path.with_suffix(".txt"), text.encode())
            _write_sound(path.with_suffix(".wav"), _tones([LETTERS[letter] for letter in text], 0.12, random))


def _write_sound(path, samples):
    if path.exists():
        return
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE)
        file.writeframes(samples.astype("<i2").tobytes())


def _write_arrays(path, **arrays):
    if not path.exists():
        np.savez(path, **arrays)


def _write_once(path, content):
    if not path.exists():
        path.write_bytes(content)


def main(argv: list[str] | None = None) -> None:
    """Write the data."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--folder", type=pathlib.Path, default="runs/tasks/data", help="default: %(default)s")
    write_all(parser.parse_args(argv).folder)


if __name__ == "__main__":
    main()
