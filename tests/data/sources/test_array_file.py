"""Files of arrays: selected arrays are read, and errors have one line that names the file."""

import numpy as np
import pytest

from tf_sparse_attention.data.sources.array_file import ArraySpec, checked_offsets, read_arrays

FORMS = {
    "sound": ArraySpec("int16", "S"),
    "scale": ArraySpec("numbers", "2", is_needed=False),
    "labels": ArraySpec("strings", "V", is_needed=False),
    "rate": ArraySpec("integers", is_needed=False),
    "x_*": ArraySpec("uint8", "HW", is_needed=False),
}
SOUND = np.arange(40, dtype="int16")


def test_arrays_are_read_by_name_or_pattern(tmp_path):
    arrays = {"sound": SOUND, "x_one": np.ones((2, 3), "uint8"), "rate": np.int64(8000), "other": np.array([None])}
    np.savez(tmp_path / "a.npz", **arrays)
    found = read_arrays(tmp_path / "a.npz", FORMS)
    assert set(found) == {"sound", "x_one", "rate"} and int(found["rate"]) == 8000
    np.testing.assert_array_equal(found["sound"], SOUND)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"sound": None}, r"`prompt` must hold the arrays sound\. Received: .*a\.npz, without sound\."),
        (
            {"sound": SOUND.astype("int32")},
            r"`sound` as int16 \(S,\)\. Received: .*a\.npz with int32 of shape \(40,\)\.",
        ),
        ({"sound": SOUND[None]}, r"`sound` as int16 \(S,\)\. Received: .*a\.npz with int16 of shape \(1, 40\)\."),
        ({"scale": np.zeros(3)}, r"`scale` as numbers \(2,\)\. Received: .*a\.npz with float64 of shape \(3,\)\."),
        ({"scale": np.zeros(2, bool)}, r"`scale` as numbers \(2,\)\. Received: .*a\.npz with bool of shape \(2,\)\."),
        ({"labels": np.array([b"a"])}, r"`labels` as strings \(V,\)\. Received: .*a\.npz with \|S1 of shape \(1,\)\."),
        (
            {"rate": np.array([8000])},
            r"`rate` as a scalar of integers\. Received: .*a\.npz with int64 of shape \(1,\)",
        ),
        (
            {"x_two": np.zeros((2, 2))},
            r"`x_two` as uint8 \(H, W\)\. Received: .*a\.npz with float64 of shape \(2, 2\)\.",
        ),
        (
            {"scale": np.array([None, 1])},
            r"`prompt` must be a complete file NAME\.npz\. Received: .*a\.npz: Object arrays",
        ),
    ],
)
def test_the_error_names_a_missing_or_invalid_array(tmp_path, arrays, message):
    np.savez(
        tmp_path / "a.npz", **{name: array for name, array in ({"sound": SOUND} | arrays).items() if array is not None}
    )
    with pytest.raises(ValueError, match=message):
        read_arrays(tmp_path / "a.npz", FORMS, "prompt")


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_the_error_for_a_damaged_file_has_one_line(tmp_path, save):
    path, random = tmp_path / "a.npz", np.random.default_rng(0)
    save(path, sound=random.integers(100, size=400).astype("int16"))
    whole, damaged = path.read_bytes(), 0
    contents = [b"", b"no", whole[:-30], whole[: len(whole) // 2]]
    for place in random.integers(len(whole), size=100):
        contents.append(whole[:place] + bytes([whole[place] ^ 255]) + whole[place + 1 :])
    for content in contents:
        path.write_bytes(content)
        try:
            read_arrays(path, FORMS)  # a change of the stored time is not damage
        except ValueError as error:
            assert str(path) in str(error) and "\n" not in str(error)
            damaged += 1
    assert damaged > 60


def test_a_missing_file_or_an_array_without_a_name_is_an_error(tmp_path):
    np.save(tmp_path / "b.npy", SOUND)
    (tmp_path / "b.npy").rename(tmp_path / "b.npz")
    with pytest.raises(
        ValueError, match=r"must be a complete file NAME\.npz\. Received: .*b\.npz: one array without a name"
    ):
        read_arrays(tmp_path / "b.npz", FORMS)
    with pytest.raises(ValueError, match=r"must be a complete file NAME\.npz\. Received: .*c\.npz: .*No such file"):
        read_arrays(tmp_path / "c.npz", FORMS)


@pytest.mark.parametrize(
    ("offsets", "num_parts", "message"),
    [
        (
            [0, 30, 20, 40],
            None,
            r"`path` must hold `at` that rise from 0 to 40, the length of `sound`\. Received: 4 offsets",
        ),
        ([1, 40], None, r"Received: 2 offsets, which begin with \[1, 40\], in a\.npz"),
        ([0, 39], None, r"Received: 2 offsets, which begin with \[0, 39\], in a\.npz"),
        ([0], None, r"Received: 1 offsets, which begin with \[0\], in a\.npz"),
        ([0, 40], 2, r"must hold 3 `at` that rise from 0 to 40, .* Received: 2 offsets"),
    ],
)
@pytest.mark.parametrize("dtype", ["int32", "uint64"])
def test_offsets_rise_from_zero_to_the_end(offsets, num_parts, message, dtype):
    arrays = {"sound": SOUND, "at": np.array(offsets, dtype)}
    with pytest.raises(ValueError, match=message):
        checked_offsets(arrays, "at", "sound", "a.npz", num_parts=num_parts)
    right = checked_offsets({**arrays, "at": np.array([0, 7, 7, 40], dtype)}, "at", "sound", "a.npz", num_parts=3)
    assert right.dtype == "int64" and right.tolist() == [0, 7, 7, 40]
