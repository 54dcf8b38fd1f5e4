"""Sources of speech from files of features, WAV files and TFDS, and their errors."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds

from tests.data.builders import RATE, as_wav, register, tone
from tf_sparse_attention.data import LogMel, open_audio, open_speech


def frames_by_hand(samples, bands=20):
    """Log-mel features at 8 kHz: windows of 25 ms every 10 ms, and triangular bands."""
    samples = samples.astype("float64") / 32768
    samples = np.append(samples[0], samples[1:] - 0.97 * samples[:-1])
    windows = [samples[begin : begin + 200] * np.hamming(200) for begin in range(0, len(samples) - 200 + 1, 80)]
    power = np.abs(np.fft.rfft(windows, 256)) ** 2 / 256
    low, high, bins = (1127 * np.log(1 + hertz / 700) for hertz in (20, RATE / 2, np.arange(129) * RATE / 256))
    points = np.linspace(low, high, bands + 2)[:, None]
    rising = (bins - points[:-2]) / (points[1:-1] - points[:-2])
    falling = (points[2:] - bins) / (points[2:] - points[1:-1])
    return np.log(power @ np.maximum(0, np.minimum(rising, falling)).T + 1e-8)


@pytest.mark.parametrize("kind", [np.asarray, tf.constant])
def test_log_mel_features_are_those_by_hand_with_and_without_padding(kind):
    random, log_mel = np.random.default_rng(0), LogMel(RATE, 20)
    samples = tone(440) + random.integers(-200, 200, int(0.3 * RATE))
    found = log_mel(kind(samples / 32768))
    assert found.dtype == "float32"
    np.testing.assert_allclose(found, frames_by_hand(samples), atol=2e-3)
    rows, lengths = random.normal(size=(4, 700)).astype("float32"), np.array([700, 280, 279, 90])
    found, counts = log_mel(kind(rows), lengths), log_mel.num_frames(kind(lengths))
    assert np.asarray(counts).tolist() == [7, 2, 1, 1] and counts.dtype == "int32"  # 90 are less than a window
    for row, features, length, count in zip(rows, found, lengths, counts, strict=True):
        np.testing.assert_allclose(features[:count], log_mel(kind(row[:length])), atol=1e-4)
    assert LogMel(RATE)(kind(np.ones(10, "float32"))).shape == (1, 40)


@pytest.fixture
def folder(tmp_path):
    for split, number, text in [("train", 0, "Two  words"), ("train", 1, ""), ("test", 2, "so")]:
        (tmp_path / "sounds" / split).mkdir(parents=True, exist_ok=True)
        file = tmp_path / "sounds" / split / f"{number}.wav"
        file.write_bytes(as_wav(tone(300 + 200 * number)))
        file.with_suffix(".txt").write_text(text, encoding="utf-8")
    return tmp_path / "sounds"


def test_a_folder_of_wav_files_has_characters(folder, tmp_path):
    source = open_speech(path=folder, data_dir=tmp_path, sample_rate=RATE, num_bands=20)
    first, empty = source.utterances("train")
    assert first.transcript == list("two words") and empty.transcript == []
    np.testing.assert_allclose(first.features, frames_by_hand(tone(300)), atol=2e-3)
    assert (source.unit, source.labels, source.splits) == ("character", None, ("train", "test"))
    (folder / "test" / "2.txt").write_text("other", encoding="utf-8")
    assert open_speech(path=folder, data_dir=tmp_path, sample_rate=RATE).fingerprint != source.fingerprint


def make_recordings(folder, numbers):
    folder.mkdir()
    for number in numbers:
        (folder / f"{number}.wav").write_bytes(as_wav(np.full(800, number + 1)))
        (folder / f"{number}.txt").write_text("a", encoding="utf-8")
    return folder


@pytest.mark.parametrize("kind", [open_audio, open_speech])
def test_recordings_are_split_by_content_without_folders_of_splits(tmp_path, kind):
    sources = []
    for name, numbers in (("one", range(40)), ("other", reversed(range(40)))):
        path = make_recordings(tmp_path / name, numbers)
        if name == "other":
            for suffix in (".wav", ".txt"):
                (path / f"0{suffix}").rename(path / f"zero{suffix}")
        sources.append(kind(path=path, data_dir=tmp_path, sample_rate=RATE))
    parts = [{split: recordings_of(source, split) for split in source.splits} for source in sources]
    assert parts[0] == parts[1] and list(parts[0]) == ["train", "validation", "test"]
    counts = [len(part) for part in parts[0].values()]
    assert min(counts) > 0 and sum(counts) == 40 and counts[0] >= 30
    few = make_recordings(tmp_path / "few", range(2))
    make_recordings(few / "copies", range(2))
    with pytest.raises(ValueError, match=r"`path` must hold 3 or more different WAV files.*few with 2"):
        kind(path=few, data_dir=tmp_path, sample_rate=RATE)


def recordings_of(source, split):
    items = source.recordings(split) if hasattr(source, "recordings") else source.utterances(split)
    return sorted(getattr(item, "features", item).tobytes() for item in items)


def test_the_error_names_an_invalid_wav_file(folder, tmp_path, subtests):
    options = {"path": folder, "data_dir": tmp_path}
    with pytest.raises(ValueError, match=r"`sample_rate` must be 8000, .*sample_rate=16000"):
        list(open_speech(**options).utterances("train"))
    options |= {"sample_rate": RATE}
    for content, message in [
        (as_wav(np.zeros((100, 2))), "one channel"),
        (as_wav(np.zeros(0)), "with samples"),
        (as_wav(np.zeros(100), width=1), "16 bits"),
    ]:
        (folder / "test" / "2.wav").write_bytes(content)
        with subtests.test(message), pytest.raises(ValueError, match=rf"{message}.*2\.wav"):
            list(open_speech(**options).utterances("test"))


def test_transcripts_are_files_in_utf8_next_to_recordings(folder, tmp_path, caplog):
    options = {"path": folder, "data_dir": tmp_path, "sample_rate": RATE}
    transcript = folder / "test" / "2.txt"
    transcript.write_bytes("so".encode("utf-8-sig"))
    (folder / "train" / "9.txt").write_text("left alone", encoding="utf-8")
    (one,) = open_speech(**options).utterances("test")
    assert one.transcript == ["s", "o"]
    assert f"1 of the files in {folder} are left out (not .wav with a transcript), such as train/9.txt." in caplog.text
    transcript.write_bytes("ä".encode("latin-1"))
    with pytest.raises(ValueError, match=r"UTF-8.*2\.txt, invalid at byte 0"):
        list(open_speech(**options).utterances("test"))
    transcript.unlink()
    with pytest.raises(ValueError, match=r"`path` .*NAME\.txt next to each NAME\.wav"):
        open_speech(**options)


ARRAYS = {
    "features": np.arange(24, dtype="uint8").reshape(8, 3),
    "scale": np.array([-1.0, 1.0], "float32"),
    "offsets": np.array([0, 3, 8]),
    "phonemes": np.array([1, 0, 1]),
    "phoneme_offsets": np.array([0, 2, 3]),
    "vocabulary": np.array(["a", "ʃ"]),
    "split": np.array(["train", "test"]),
}


def write_features(path, **changes):
    np.savez(path, **{name: value for name, value in {**ARRAYS, **changes}.items() if value is not None})
    return path


def test_a_file_of_features_has_phones(tmp_path, subtests):
    source = open_speech(path=write_features(tmp_path / "a.npz"), data_dir=tmp_path)
    (one,) = source.utterances("test")
    np.testing.assert_allclose(one.features, -1 + 2 * np.arange(9, 24).reshape(5, 3) / 255, rtol=1e-5)
    assert one.transcript == ["ʃ"] and source.labels == ("a", "ʃ") and source.unit == "phone"
    plain = open_speech(path=write_features(tmp_path / "b.npz", scale=None), data_dir=tmp_path)
    assert next(plain.utterances("train")).features[1].tolist() == [3, 4, 5]
    for message, changes in [
        ("without split", {"split": None}),
        ("`offsets`", {"offsets": np.array([0, 3, 7])}),
        ("`offsets`", {"offsets": np.array([1, 3, 8])}),
        ("`offsets`", {"offsets": np.array([0])}),
        ("3 `phoneme_offsets`", {"phoneme_offsets": np.array([0, 3])}),
        ("`offsets`", {"offsets": np.array([0, 9, 8], "uint64")}),
        ("`phonemes` must be indices", {"phonemes": np.array([1, 0, 2])}),
        ("`phonemes` as integers", {"phonemes": np.array([1, 0, np.nan])}),
        ("`features` as numbers", {"features": np.zeros(8)}),
        ("`vocabulary` .*'a' twice", {"vocabulary": np.array(["a", "b", "a"])}),
    ]:
        with subtests.test(message, changes=changes), pytest.raises(ValueError, match=message):
            open_speech(path=write_features(tmp_path / "c.npz", **changes))
    (tmp_path / "d.npz").write_bytes((tmp_path / "a.npz").read_bytes()[:-30])
    with pytest.raises(ValueError, match=r"`path` must be a complete file .*d\.npz"):
        open_speech(path=tmp_path / "d.npz")


def register_speech(name, dtype, factor, *numbers):
    features = {"speech": tfds.features.Audio(sample_rate=RATE, dtype=dtype), "text": tfds.features.Text()}
    examples = [
        {"speech": (tone(300 + 100 * number) * factor).astype(dtype), "text": "SAY " + "ABC"[number]}
        for number in numbers
    ]
    register(name, features, train=examples, test=examples[:1])


register_speech("Spoken", np.int16, 1, 0, 1, 2)
register_speech("Loud", np.int32, np.int32(65536), 0)
register_speech("InFractions", np.float32, 2.0**-15, 0)


def test_audio_and_text_of_a_data_set_of_tfds_are_read(tmp_path):
    options = {"tfds": "spoken", "data_dir": tmp_path}
    source = open_speech(**options, sample_rate=RATE, num_bands=20)
    found = list(source.utterances("train"))
    assert sorted("".join(each.transcript) for each in found) == ["say a", "say b", "say c"]
    first = next(each for each in found if each.transcript[-1] == "a")
    np.testing.assert_allclose(first.features, frames_by_hand(tone(300)), atol=2e-3)
    assert source.name == "spoken/1.0.0" and len(list(source.utterances("train[:2]"))) == 2
    with pytest.raises(ValueError, match=r"`sample_rate` must be 8000, the rate of .*sample_rate=16000"):
        open_speech(**options)


def test_invalid_arguments_are_errors(tmp_path, subtests):
    features = write_features(tmp_path / "a.npz")
    (tmp_path / "empty").mkdir()
    for message, options in [
        ("`path` and `tfds`", {}),
        ("`path` must be a file NAME.npz, or a folder", {"path": "nowhere"}),
        ("`path` must hold files .wav", {"path": tmp_path / "empty"}),
        ("`log_mel`", {"path": features, "num_bands": 80}),
        ("a recording in each example.* named 'audio'", {"tfds": "tiny_shakespeare", "data_dir": tmp_path}),
        (
            "16 bits.*of float32 instead of 16-bit integers",
            {"tfds": "in_fractions", "data_dir": tmp_path, "sample_rate": RATE},
        ),
    ]:
        with subtests.test(message), pytest.raises(ValueError, match=message):
            open_speech(**options)
    with pytest.raises(ValueError, match=r"16 bits.*recording 0 of train.* to \d{9}, beyond 16 bits"):
        list(open_speech(tfds="loud", data_dir=tmp_path, sample_rate=RATE).utterances("train"))
    with pytest.raises(ValueError, match="`lowest` and `highest`"):
        LogMel(RATE, highest=5000)
    source = open_speech(tfds="librispeech", data_dir=tmp_path)  # one feature of audio and one of text
    assert source.fingerprint.endswith("#speech,text") and source.num_features == 40
