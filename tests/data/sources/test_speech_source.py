"""Sources of speech from files of features, WAV files and TFDS, and their errors."""

import math
import wave

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds

from tests.data.builders import register
from tf_sparse_attention.data import LogMel, open_audio, open_speech

RATE = 8000


def write_wav(path, samples, rate=RATE, channels=1, width=2):
    with wave.open(str(path), "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(width)
        file.setframerate(rate)
        file.writeframes(np.asarray(samples, {1: "uint8", 2: "<i2"}[width]).tobytes())


def tone(frequency, seconds=0.3):
    return (8000 * np.sin(2 * np.pi * frequency * np.arange(int(seconds * RATE)) / RATE)).astype("int16")


def frames_by_hand(samples, bands=20):
    """Log-mel features at 8 kHz, computed in loops over windows and bands."""
    samples = samples.astype("float64") / 32768
    samples = np.append(samples[0], samples[1:] - 0.97 * samples[:-1])
    mel = lambda hertz: 1127 * math.log(1 + hertz / 700)  # noqa: E731  # a formula
    points = np.linspace(mel(20), mel(RATE / 2), bands + 2)
    rows = []
    for begin in range(0, len(samples) - 200 + 1, 80):
        window = samples[begin : begin + 200] * np.hamming(200)
        power = np.abs(np.fft.rfft(window, 256)) ** 2 / 256
        row = []
        for low, peak, high in zip(points, points[1:], points[2:], strict=False):
            weights = [
                max(0, min((mel(k * RATE / 256) - low) / (peak - low), (high - mel(k * RATE / 256)) / (high - peak)))
                if k
                else 0
                for k in range(129)
            ]
            row.append(math.log(np.dot(weights, power) + 1e-8))
        rows.append(row)
    return np.array(rows)


@pytest.mark.parametrize("kind", [np.asarray, tf.constant])
def test_log_mel_features_are_those_by_hand_with_and_without_padding(kind):
    samples = tone(440) + np.random.default_rng(0).integers(-200, 200, int(0.3 * RATE))
    log_mel = LogMel(RATE, 20)
    found = log_mel(kind(samples / 32768))
    assert found.dtype == "float32"
    np.testing.assert_allclose(found, frames_by_hand(samples), atol=2e-3)
    rows = np.random.default_rng(0).normal(size=(4, 700)).astype("float32")
    lengths = np.array([700, 280, 279, 90])  # 90 are less than a window
    found, counts = log_mel(kind(rows), lengths), log_mel.num_frames(kind(lengths))
    assert np.asarray(counts).tolist() == [7, 2, 1, 1] and counts.dtype == "int32"
    for row, features, length, count in zip(rows, found, lengths, counts, strict=True):
        np.testing.assert_allclose(features[:count], log_mel(kind(row[:length])), atol=1e-4)
    assert LogMel(RATE)(kind(np.ones(10, "float32"))).shape == (1, 40)


@pytest.fixture
def folder(tmp_path):
    for split, number, text in [("train", 0, "Two  words"), ("train", 1, ""), ("test", 2, "so")]:
        (tmp_path / "sounds" / split).mkdir(parents=True, exist_ok=True)
        file = tmp_path / "sounds" / split / f"{number}.wav"
        write_wav(file, tone(300 + 200 * number))
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
        write_wav(folder / f"{number}.wav", np.full(800, number + 1))
        (folder / f"{number}.txt").write_text("a", encoding="utf-8")


@pytest.mark.parametrize("kind", [open_audio, open_speech])
def test_recordings_are_split_by_content_without_folders_of_splits(tmp_path, kind, subtests):
    for count in (3, 40):
        parent = tmp_path / str(count)
        parent.mkdir()
        make_recordings(parent / "one", range(count))
        make_recordings(parent / "other", reversed(range(count)))
        (parent / "other" / "0.wav").rename(parent / "other" / "zero.wav")
        (parent / "other" / "0.txt").rename(parent / "other" / "zero.txt")
        found = []
        with subtests.test(count=count):
            for name in ("one", "other"):
                source = kind(path=parent / name, data_dir=tmp_path, sample_rate=RATE)
                assert source.splits == ("train", "validation", "test")
                items = source.recordings if kind is open_audio else source.utterances
                own = {split: [getattr(item, "features", item) for item in items(split)] for split in source.splits}
                found.append({split: sorted(item.tobytes() for item in part) for split, part in own.items()})
                assert min(map(len, own.values())) > 0 and sum(map(len, own.values())) == count
                assert len(own["train"]) >= 0.8 * count - 2
            assert found[0] == found[1]
    make_recordings(tmp_path / "few", range(2))
    make_recordings(tmp_path / "few" / "copies", range(2))
    with pytest.raises(ValueError, match=r"`path` must hold 3 or more different WAV files.*few with 2"):
        kind(path=tmp_path / "few", data_dir=tmp_path, sample_rate=RATE)


def test_the_error_names_an_invalid_wav_file(folder, tmp_path, subtests):
    options = {"path": folder, "data_dir": tmp_path}
    with pytest.raises(ValueError, match=r"`sample_rate` must be 8000, .*sample_rate=16000"):
        list(open_speech(**options).utterances("train"))
    options |= {"sample_rate": RATE}
    for content, message in [
        ({"samples": np.repeat(tone(300), 2), "channels": 2}, "one channel"),
        ({"samples": np.zeros(0)}, "with samples"),
        ({"samples": np.zeros(100), "width": 1}, "16 bits"),
    ]:
        write_wav(folder / "test" / "2.wav", **content)
        with subtests.test(message), pytest.raises(ValueError, match=rf"{message}.*2\.wav"):
            list(open_speech(**options).utterances("test"))
    with pytest.raises(ValueError, match="`split` must be one of train, test in sounds"):
        list(open_speech(**options).utterances("dev"))


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
    with pytest.raises(ValueError, match="`split` must be one of train, test in a"):
        list(source.utterances("dev"))
    for message, changes in [
        ("without split", {"split": None}),
        ("`offsets`", {"offsets": np.array([0, 3, 7])}),
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
    """Register recordings of tones of these numbers, multiplied by a factor, with transcripts."""
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
    with pytest.raises(ValueError, match=r"`split` must be one of train, test in spoken/1\.0\.0"):
        next(source.utterances("dev"))


def test_invalid_arguments_are_errors(tmp_path, subtests):
    features = write_features(tmp_path / "a.npz")
    (tmp_path / "empty").mkdir()
    for message, options in [
        ("`path` and `tfds`", {}),
        ("`path` must be a file NAME.npz, or a folder", {"path": "nowhere"}),
        ("`path` must hold files .wav", {"path": tmp_path / "empty"}),
        ("`log_mel`", {"path": features, "num_bands": 80}),
        ("a recording in each example.* named 'audio'", {"tfds": "tiny_shakespeare", "data_dir": tmp_path}),
        ("16-bit integers.*float32", {"tfds": "in_fractions", "data_dir": tmp_path, "sample_rate": RATE}),
    ]:
        with subtests.test(message), pytest.raises(ValueError, match=message):
            open_speech(**options)
    with pytest.raises(ValueError, match=r"16 bits.*a sample of \d{9} in train\[0\]"):
        list(open_speech(tfds="loud", data_dir=tmp_path, sample_rate=RATE).utterances("train"))
    with pytest.raises(ValueError, match="`lowest` and `highest`"):
        LogMel(RATE, highest=5000)
    source = open_speech(tfds="librispeech", data_dir=tmp_path)  # one feature of audio and one of text
    assert source.fingerprint.endswith("#speech,text") and source.num_features == 40
