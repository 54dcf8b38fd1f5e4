"""Sources of speech from files of features, WAV files and TFDS, and their errors."""

import math
import wave

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds

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


def test_log_mel_features_are_those_by_hand():
    samples = tone(440) + np.random.default_rng(0).integers(-200, 200, int(0.3 * RATE))
    for kind in (np.asarray, tf.constant):
        found = LogMel(RATE, 20)(kind(samples / 32768))
        assert found.dtype == "float32"
        np.testing.assert_allclose(found, frames_by_hand(samples), atol=2e-3)


@pytest.mark.parametrize("kind", [np.asarray, tf.constant])
def test_padding_does_not_change_frames(kind):
    log_mel, rows = LogMel(RATE, 20), np.random.default_rng(0).normal(size=(4, 700)).astype("float32")
    lengths = np.array([700, 280, 279, 90])  # 90 are less than a window
    found, counts = log_mel(kind(rows), lengths), log_mel.num_frames(kind(lengths))
    assert np.asarray(counts).tolist() == [7, 2, 1, 1] and counts.dtype == "int32"
    for row, features, length, count in zip(rows, found, lengths, counts, strict=True):
        np.testing.assert_allclose(features[:count], log_mel(kind(row[:length])), atol=1e-4)


def test_a_recording_shorter_than_a_window_is_one_frame():
    assert LogMel(RATE)(np.ones(10, "float32")).shape == (1, 40)
    assert LogMel(RATE)(np.ones((2, 280), "float32")).shape == (2, 2, 40)
    with pytest.raises(
        ValueError, match=r"`lowest` and `highest` must be in \[0, sample_rate / 2\], in this order\. Rec"
    ):
        LogMel(RATE, highest=5000)


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
@pytest.mark.parametrize("count", [3, 40])
def test_recordings_are_split_by_content_without_folders_of_splits(tmp_path, kind, count):
    make_recordings(tmp_path / "one", range(count))
    make_recordings(tmp_path / "other", reversed(range(count)))
    (tmp_path / "other" / "0.wav").rename(tmp_path / "other" / "zero.wav")
    (tmp_path / "other" / "0.txt").rename(tmp_path / "other" / "zero.txt")
    sources = [kind(path=tmp_path / name, data_dir=tmp_path, sample_rate=RATE) for name in ("one", "other")]
    found = []
    for source in sources:
        assert source.splits == ("train", "validation", "test")
        items = source.recordings if kind is open_audio else source.utterances
        recordings = {split: [getattr(item, "features", item) for item in items(split)] for split in source.splits}
        found.append({split: sorted(item.tobytes() for item in own) for split, own in recordings.items()})
        assert min(map(len, recordings.values())) > 0 and sum(map(len, recordings.values())) == count
        assert len(recordings["train"]) >= 0.8 * count - 2
    assert found[0] == found[1]


@pytest.mark.parametrize("kind", [open_audio, open_speech])
def test_fewer_than_three_different_recordings_are_too_few_to_split(tmp_path, kind):
    make_recordings(tmp_path / "few", range(2))
    make_recordings(tmp_path / "few" / "copies", range(2))
    with pytest.raises(ValueError, match=r"`path` must hold 3 or more different WAV files.*path=.*few with 2\."):
        kind(path=tmp_path / "few", data_dir=tmp_path, sample_rate=RATE)


def test_the_error_names_an_invalid_wav_file(folder, tmp_path, caplog):
    options = {"path": folder, "data_dir": tmp_path}
    with pytest.raises(ValueError, match=r"`sample_rate` must be 8000, the rate of .*0\.wav, .*sample_rate=16000"):
        list(open_speech(**options).utterances("train"))
    bad = folder / "test" / "2.wav"
    for content, message in [
        ({"samples": np.repeat(tone(300), 2), "channels": 2}, r"one channel.*2\.wav of shape \(2400, 2\)"),
        ({"samples": np.zeros(0)}, r"with samples\. Received: .*2\.wav"),
        ({"samples": np.zeros(100), "width": 1}, r"WAV files of 16 bits\. Received: .*2\.wav, which has 8 bits"),
    ]:
        write_wav(bad, **content)
        with pytest.raises(ValueError, match=message):
            list(open_speech(**options, sample_rate=RATE).utterances("test"))
    with pytest.raises(ValueError, match=r"`split` must be one of train, test in sounds, .* split=dev\."):
        list(open_speech(**options, sample_rate=RATE).utterances("dev"))
    bad.with_suffix(".txt").unlink()
    with pytest.raises(ValueError, match=r"`path` must hold a transcript NAME\.txt next to each NAME\.wav\."):
        open_speech(**options, sample_rate=RATE)
    write_wav(folder / "3.wav", tone(300))
    (folder / "3.txt").write_text("a", encoding="utf-8")
    bad.with_suffix(".txt").write_text("a", encoding="utf-8")
    assert open_speech(**options, sample_rate=RATE).splits == ("train", "test")
    assert "2 of the files" in caplog.text and "left out (not in train, test), such as 3.txt." in caplog.text


def test_a_warning_counts_transcripts_without_a_recording_and_the_error_names_invalid_text(folder, tmp_path, caplog):
    options = {"path": folder, "data_dir": tmp_path, "sample_rate": RATE}
    (folder / "train" / "9.txt").write_text("left alone", encoding="utf-8")
    (folder / "test" / "2.txt").write_bytes("so".encode("utf-8-sig"))
    (one,) = open_speech(**options).utterances("test")
    assert one.transcript == ["s", "o"]
    left_out = f"1 of the files in {folder} are left out (not .wav with a transcript), such as train/9.txt."
    assert left_out in caplog.text
    (folder / "test" / "2.txt").write_bytes("ä".encode("latin-1"))
    with pytest.raises(ValueError, match=r"transcripts in UTF-8\. Received: .*2\.txt, invalid at byte 0"):
        list(open_speech(**options).utterances("test"))


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


def test_a_file_of_features_has_phones(tmp_path):
    source = open_speech(path=write_features(tmp_path / "a.npz"), data_dir=tmp_path)
    (one,) = source.utterances("test")
    np.testing.assert_allclose(one.features, -1 + 2 * np.arange(9, 24).reshape(5, 3) / 255, rtol=1e-5)
    assert one.transcript == ["ʃ"] and source.labels == ("a", "ʃ") and source.unit == "phone"
    plain = open_speech(path=write_features(tmp_path / "b.npz", scale=None), data_dir=tmp_path)
    assert next(plain.utterances("train")).features[1].tolist() == [3, 4, 5]
    for changes, message in [
        ({"split": None}, r"`path` must hold the arrays .*\. Received: .*c\.npz, without split\."),
        (
            {"offsets": np.array([0, 3, 7])},
            r"`path` must hold 3 `offsets` that rise from 0 to 8, the length of `features`\. Received: 3 offsets",
        ),
        (
            {"phonemes": np.array([1, 0, 2])},
            r"`phonemes` must be indices into `vocabulary`, from 0 to 1\.",
        ),
        (
            {"phonemes": np.array([1, 0, np.nan])},
            r"`path` must hold `phonemes` as integers \(U,\)\. Received: .*c\.npz with float64 of shape \(3,\)",
        ),
        ({"offsets": np.array([0, 9, 8], "uint64")}, r"3 `offsets` that rise from 0 to 8, the length"),
        (
            {"features": np.zeros(8)},
            r"`path` must hold `features` as numbers \(T, F\)\. Received: .*c\.npz with float64 of shape \(8,\)",
        ),
        ({"vocabulary": np.array(["a", "b", "a"])}, r"`vocabulary` must have each label once\. Received: 'a' twice"),
    ]:
        with pytest.raises(ValueError, match=message):
            open_speech(path=write_features(tmp_path / "c.npz", **changes))
    with pytest.raises(ValueError, match=r"`split` must be one of train, test in a, .* split=dev\."):
        list(source.utterances("dev"))
    for content in (b"no", (tmp_path / "a.npz").read_bytes()[:-30]):
        (tmp_path / "d.npz").write_bytes(content)
        with pytest.raises(ValueError, match=r"`path` must be a complete file NAME\.npz\. Received: .*d\.npz"):
            open_speech(path=tmp_path / "d.npz")


class Spoken(tfds.core.GeneratorBasedBuilder):
    """A data set of TFDS with transcripts."""

    VERSION = tfds.core.Version("1.0.0")
    sample_rate = RATE

    def _info(self):
        audio = tfds.features.Audio(sample_rate=self.sample_rate, dtype=np.int16)
        return tfds.core.DatasetInfo(
            builder=self, features=tfds.features.FeaturesDict({"speech": audio, "text": tfds.features.Text()})
        )

    def _split_generators(self, dl_manager):
        return {"train": self._generate_examples(3), "test": self._generate_examples(1)}

    def _generate_examples(self, count):
        for number in range(count):
            yield number, {"speech": tone(300 + 100 * number), "text": "SAY " + "ABC"[number]}


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


class Loud(Spoken):
    """A data set with samples of more than 16 bits."""

    def _info(self):
        audio = tfds.features.Audio(sample_rate=self.sample_rate, dtype=np.int32)
        return tfds.core.DatasetInfo(
            builder=self, features=tfds.features.FeaturesDict({"speech": audio, "text": tfds.features.Text()})
        )

    def _split_generators(self, dl_manager):
        return {"train": self._generate_examples(1)}

    def _generate_examples(self, count):
        yield 0, {"speech": tone(300).astype("int32") * 65536, "text": "SAY"}


class InFractions(Spoken):
    """A data set with samples between -1 and 1."""

    def _info(self):
        audio = tfds.features.Audio(sample_rate=self.sample_rate, dtype=np.float32)
        return tfds.core.DatasetInfo(
            builder=self, features=tfds.features.FeaturesDict({"speech": audio, "text": tfds.features.Text()})
        )


def test_audio_of_tfds_must_have_16_bits(tmp_path):
    with pytest.raises(
        ValueError, match=r"`tfds` must have samples of 16 bits\. Received: a sample of \d{9} in train\[0\]\."
    ):
        list(open_speech(tfds="loud", data_dir=tmp_path, sample_rate=RATE).utterances("train"))
    with pytest.raises(
        ValueError, match=r"as 16-bit integers\. Received: in_fractions/1\.0\.0 with float32 of shape \(None,\)"
    ):
        open_speech(tfds="in_fractions", data_dir=tmp_path, sample_rate=RATE)


def test_librispeech_has_one_audio_and_one_text_feature(tmp_path):
    source = open_speech(tfds="librispeech", data_dir=tmp_path)
    assert source.fingerprint.endswith("#speech,text") and source.num_features == 40


def test_invalid_sources_of_speech_are_an_error(tmp_path):
    with pytest.raises(ValueError, match=r"One of `path` and `tfds` must be given\. Received: path=None, t"):
        open_speech()
    with pytest.raises(ValueError, match=r"`path` must be a file NAME\.npz, or a folder of WAV files\. Rec"):
        open_speech(path="nowhere")
    with pytest.raises(ValueError, match=r"`path` must hold files \.wav\. Received"):
        open_speech(path=tmp_path)
    with pytest.raises(ValueError, match=r"`log_mel` must be empty for a file of features\. Received: num_bands\."):
        open_speech(path=write_features(tmp_path / "a.npz"), num_bands=80)
    with pytest.raises(ValueError, match=r"with a recording in each example\. .* named 'audio'"):
        open_speech(tfds="tiny_shakespeare", data_dir=tmp_path)
