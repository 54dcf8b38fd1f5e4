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


def test_the_error_names_the_file_and_an_invalid_or_missing_array(tmp_path, subtests):
    path = tmp_path / "a.npz"
    for name, arrays in [
        ("the arrays sound", {"sound": None}),
        ("`sound` as int16", {"sound": SOUND.astype("int32")}),
        ("`sound` as int16", {"sound": SOUND[None]}),
        ("`scale` as numbers", {"scale": np.zeros(3)}),
        ("`scale` as numbers", {"scale": np.zeros(2, bool)}),
        ("complete file", {"scale": np.array([None, 1])}),
        ("`labels` as strings", {"labels": np.array([b"a"])}),
        ("`rate` as a scalar", {"rate": np.array([8000])}),
        ("`x_two` as uint8", {"x_two": np.zeros((2, 2))}),
    ]:
        given = {key: array for key, array in ({"sound": SOUND} | arrays).items() if array is not None}
        np.savez(path, **given)
        with subtests.test(arrays=arrays), pytest.raises(ValueError, match=rf"`prompt` must .*{name}.*a\.npz"):
            read_arrays(path, FORMS, "prompt")
    np.save(tmp_path / "b.npy", SOUND)
    (tmp_path / "b.npy").rename(tmp_path / "unnamed.npz")
    for name in ("unnamed", "missing"):
        with subtests.test(name), pytest.raises(ValueError, match=f"complete file.*{name}"):
            read_arrays(tmp_path / f"{name}.npz", FORMS)


@pytest.mark.parametrize("save", [np.savez_compressed, pytest.param(np.savez, marks=pytest.mark.full)])
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


def test_offsets_rise_from_zero_to_the_end(subtests):
    for dtype in ("int32", "uint64"):
        right = np.array([0, 7, 7, 40], dtype)
        found = checked_offsets({"sound": SOUND, "at": right}, "at", "sound", "a.npz", num_parts=3)
        assert found.dtype == "int64" and found.tolist() == [0, 7, 7, 40]
        for offsets, num_parts in [
            ([0, 30, 20, 40], None),
            ([1, 40], None),
            ([0, 39], None),
            ([0], None),
            ([0, 40], 2),
        ]:
            arrays = {"sound": SOUND, "at": np.array(offsets, dtype)}
            with subtests.test(offsets=offsets, dtype=dtype), pytest.raises(ValueError, match="`at` that rise"):
                checked_offsets(arrays, "at", "sound", "a.npz", num_parts=num_parts)
