"""Recordings of TFDS, folders and files of arrays: each once, in a fixed order, and errors name invalid recordings."""

import numpy as np
import pytest
import tensorflow_datasets as tfds

from tests.data.builders import as_wav, register
from tf_sparse_attention.data import AudioCodec, open_audio, open_token_store

RANDOM = np.random.default_rng(0)


def drawn(*shape):
    return RANDOM.integers(-30000, 30000, size=shape).astype(np.int16)


RECORDINGS = {"train": [drawn(length) for length in (30, 7, 25)], "validation": [drawn(9)], "test": [drawn(12)]}


@pytest.fixture
def folder(tmp_path):
    for split, own in RECORDINGS.items():
        (tmp_path / "sounds" / split / "deep").mkdir(parents=True)
        for number, samples in enumerate(own):
            (tmp_path / "sounds" / split / "deep" / f"{number}.wav").write_bytes(as_wav(samples))
    return tmp_path / "sounds"


def assert_equal_recordings(found, expected):
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


def test_folders_of_splits_are_the_splits(folder, tmp_path):
    source = open_audio(path=folder, data_dir=tmp_path / "data")
    assert source.splits == ("train", "validation", "test") and source.sample_rate == 8000
    for split, own in RECORDINGS.items():
        assert_equal_recordings(source.recordings(split), own)
    assert_equal_recordings(source.recordings("train[34%:]+test"), RECORDINGS["train"][1:] + RECORDINGS["test"])
    # Several channels are mixed down; 2.5 is rounded to 2.
    (folder / "test" / "deep" / "0.wav").write_bytes(as_wav(np.array([[1, 4], [-7, 7], [32767, 32767]])))
    assert_equal_recordings(open_audio(path=folder).recordings("test"), [[2, 0, 32767]])


def test_the_error_names_an_invalid_recording_and_nothing_is_written(folder, tmp_path, subtests):
    whole = as_wav(drawn(50))
    for content, message in [
        (as_wav(drawn(5), rate=11025), "of 11025 samples"),
        (as_wav(drawn(0)), "without samples"),
        (b"", "cannot be read: it is incomplete"),
        (b"RIFF or so, but nothing", "cannot be read: "),
        (whole[:17] + b"\xff" * 3 + whole[20:], "cannot be read: it is incomplete"),
        (whole[:100], "cannot be read: it has 28 of 50 samples"),
        (as_wav(np.arange(9), width=1), "8 bits per sample, not 16"),
    ]:
        (folder / "train" / "deep" / "1.wav").write_bytes(content)
        source = open_audio(path=folder)
        with subtests.test(message):
            with pytest.raises(ValueError, match=rf"1 of 3 .*1\.wav, .*{message}"):
                open_token_store(source, AudioCodec(source.sample_rate), "train", tmp_path / "stores")
            assert not list((tmp_path / "stores").iterdir())
            assert_equal_recordings(source.recordings("test"), RECORDINGS["test"])
    with pytest.raises(ValueError, match=r"of 16000 samples per second.* 3 of 3 are invalid, the first"):
        list(open_audio(path=folder, sample_rate=16000).recordings("train"))
    (folder / "train" / "deep" / "0.wav").write_bytes(b"nothing")
    with pytest.raises(ValueError, match=r"`path`.*0\.wav"):
        _ = open_audio(path=folder).sample_rate


ARRAYS = {"audio": drawn(20), "offsets": np.array([0, 5, 12, 20]), "sample_rate": np.int32(8000)}


def test_arrays_of_a_file_are_recordings(tmp_path):
    np.savez(tmp_path / "digits.npz", **ARRAYS, is_test=np.array([False, True, False]), label=np.arange(3))
    source = open_audio(path=tmp_path / "digits.npz")
    assert source.splits == ("train", "test") and source.sample_rate == 8000 and source.name == "digits"
    assert_equal_recordings(source.recordings("test"), [ARRAYS["audio"][5:12]])
    found = sorted(source.recordings("train"), key=len)
    assert_equal_recordings(found, [ARRAYS["audio"][:5], ARRAYS["audio"][12:]])
    np.savez(tmp_path / "all.npz", **ARRAYS)
    assert open_audio(path=tmp_path / "all.npz").splits == ("train",)


def test_invalid_arrays_and_arguments_are_errors(tmp_path, subtests):
    for name, arrays in [
        ("`audio`", {"audio": np.zeros(20)}),
        ("`offsets`", {"offsets": np.array([0, 12, 5, 20], "uint64")}),
        ("`offsets`", {"offsets": np.array([0, 5])}),
        ("`is_test`", {"is_test": np.zeros(2, bool)}),
        ("without sample_rate", {"sample_rate": None}),
    ]:
        given = {key: array for key, array in {**ARRAYS, **arrays}.items() if array is not None}
        np.savez(tmp_path / "a.npz", **given)
        with subtests.test(name, arrays=arrays), pytest.raises(ValueError, match=f"`path`.*{name}"):
            open_audio(path=tmp_path / "a.npz")
    for name, options in [
        ("`tfds` and `path`", {}),
        ("`path` must be an existing", {"path": "no_such"}),
        ("`path` must hold files .wav", {"path": tmp_path}),
        ("a recording in each example", {"tfds": "tiny_shakespeare", "data_dir": tmp_path}),
    ]:
        with subtests.test(name, options=options), pytest.raises(ValueError, match=name):
            open_audio(**options)


def open_sounds(name, folder, recordings, dtype=np.int64, recorded_rate=8000):
    audio = tfds.features.Audio(dtype=dtype, sample_rate=recorded_rate)
    register(f"{name}Sounds", {"audio": audio}, train=[{"audio": samples.astype(dtype)} for samples in recordings])
    return open_audio(tfds=f"{name.lower()}_sounds", data_dir=folder)


def test_a_data_set_of_tfds_has_its_recordings_and_needs_a_sample_rate_and_16_bits(tmp_path):
    recordings = [drawn(length) for length in (4, 9, 6)]
    source = open_sounds("Tiny", tmp_path, recordings)
    assert source.splits == ("train",) and source.sample_rate == 8000
    assert sorted(map(bytes, source.recordings("train"))) == sorted(map(bytes, recordings))
    source = open_sounds("Fraction", tmp_path, [np.array([0.5])], np.float32)
    with pytest.raises(ValueError, match=r"recording 0 .*of float32 instead of 16-bit"):
        list(source.recordings("train"))
    with pytest.raises(ValueError, match="`sample_rate`"):
        open_sounds("Unrated", tmp_path, [np.array([0, 40000])], recorded_rate=None)
    source = open_audio(tfds="unrated_sounds", data_dir=tmp_path, sample_rate=8000)
    with pytest.raises(ValueError, match=r"recording 0 .*from 0 to 40000, beyond 16 bits"):
        list(source.recordings("train"))
