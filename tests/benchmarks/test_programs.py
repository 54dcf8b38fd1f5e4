"""Benchmarks at sizes that take seconds, and what their data are."""

import itertools
import json
import sys

import numpy as np
import pytest

from benchmarks import decoders, decoding, gpu, images, long_context, memory, recall, streaming, tokenizers
from tf_sparse_attention.data import ImageCodec
from tf_sparse_attention.patterns import First, RetrievedClusters, Window


@pytest.mark.full
@pytest.mark.parametrize(
    "family",
    [pytest.param(name, marks=[] if name in ("Llama", "Gemma3") else pytest.mark.large) for name in decoders.FAMILIES],
)
def test_a_sparse_decoder_keeps_only_the_window(family):
    pytest.importorskip("keras_hub")
    sizes = ["--position", "28", "--window", "4", "--layers", "2", "--width", "64", "--steps", "4", "--repeats", "1"]
    headings, row = decoders.table(decoders.parser().parse_args([family, *sizes]))
    assert len(headings) == len(row)
    heads = 64 if "head_dim" in decoders.FAMILIES[family] else 8
    assert row[1] == f"{32 * 2 * 2 * 2 * heads * 4 / 2**20:.2f}"  # positions, layers, keys and values, heads
    assert 4 / 32 <= float(row[3]) < 0.2
    assert all(float(cell) >= 0 for cell in row[1:])


@pytest.mark.large
def test_both_tables_of_decoding_have_their_rows():
    arguments = ["--positions", "8", "12", "--keys", "4", "--steps", "2", "--repeats", "1", "--layers", "1"]
    given = decoding.parser().parse_args([*arguments, "--heads", "2"])
    headings, *rows = decoding.by_position(given, prompt=16)
    assert [row[0] for row in rows] == list(decoding.KINDS)
    assert all(len(row) == len(headings) and all(float(cell) > 0 for cell in row[1:-1]) for row in rows)
    # A row, a block, two heads of keys and values of 64 numbers each, on 14 places.
    assert dict(zip(headings, rows[-1], strict=True))["cache MiB"] == f"{14 * 2 * 2 * 64 * 4 / 2**20:.2f}"
    headings, *rows = decoding.by_size(given)
    assert [row[:2] for row in rows] == [["4", "local"], ["4", "local and routed"]]


@pytest.mark.full
def test_memory_and_speed_of_unbounded_decoding_are_flat(monkeypatch):
    small = streaming.build(window=16)
    monkeypatch.setattr(streaming, "build", lambda: small)
    tokens, speeds, sizes, peaks = zip(*streaming.run(6_000, num_rows=4), strict=True)
    assert tokens[-1] == 6_500 and len(set(sizes)) == 1
    assert peaks[-1] - peaks[0] < 8  # megabytes; keys of 4,500 tokens would be 9
    assert speeds[-1] > 0.5 * speeds[0]  # other programs may run beside


@pytest.mark.full
def test_the_table_of_tokenizers_has_a_row_per_tokenizer(tmp_path, capsys):
    (tmp_path / "text.txt").write_text("Some words.\n\nSome other words, and more of them.\n\n" * 20, encoding="utf-8")
    tokenizers.main(["--path", str(tmp_path), "--size", "80", "--repeats", "1"])
    assert capsys.readouterr().out.count("MB/s") == 5


@pytest.mark.full
def test_programs_are_measured_on_jax_without_missing_kernels(run_python, tmp_path):
    arguments = ["--lengths", "512", "--tokens", "512", "--repeats", "2", "--cases", "local", gpu.WINDOW]
    path = str(tmp_path / "found.json")
    code = f"from benchmarks import gpu; gpu.main({[*arguments, '--json', path]})"
    said = run_python(code, KERAS_BACKEND="jax", JAX_PLATFORMS="cpu")
    with open(path, encoding="utf-8") as file:
        rows = json.load(file)["rows"]
    assert [(row["case"], row["pass"]) for row in rows] == [("local", "forward"), ("local", "both")]
    assert "| 512 | local |" in said and gpu.WINDOW not in said


@pytest.mark.full
@pytest.mark.skipif(not memory.can_measure(), reason="this system does not let the peak be reset")
def test_the_peak_is_the_largest_memory_of_a_call_even_if_it_is_freed():
    held = np.ones(50_000_000, "float32")  # 200 MB, which do not count

    def take_and_give_back():
        np.ones(30_000_000, "float32")  # 120 MB
        np.ones(10_000_000, "float32")

    assert 115e6 < memory.peak_above_now(take_and_give_back) < 160e6
    assert held.size


def test_the_order_of_images_depends_on_the_seed_and_every_epoch_has_each_once():
    codec = ImageCodec(2, 2)
    pictures = np.random.default_rng(0).integers(256, size=(4, 2, 2, 3), dtype=np.uint8)

    def drawn(seed):
        batches = itertools.islice(images.endless(pictures, codec, 2, seed), 6)
        return codec.decode(np.concatenate([ids for _, ids in batches]))

    np.testing.assert_array_equal(drawn(0), drawn(0))
    assert not np.array_equal(drawn(0), drawn(1))
    for epoch in drawn(0).reshape(3, 4, 2, 2, 3):
        found = [{(image == picture).all() for image in (one, one[:, ::-1])} for picture in pictures for one in epoch]
        assert sum(True in each for each in found) == 4


@pytest.mark.full
def test_a_long_context_has_time_and_bytes_per_pattern(monkeypatch, capsys):
    options = ["--lengths=1024", "--steps=2", "--prefill=1024", "--patterns", "dense", "clusters", "clusters, nodes"]
    monkeypatch.setattr(sys, "argv", ["", *options])
    long_context.main()
    rows = [
        line.strip("| ").split(" | ") for line in capsys.readouterr().out.splitlines() if line.startswith("| 1,024")
    ]
    assert [row[1] for row in rows] == ["dense", "clusters", "clusters, nodes"]
    assert all(float(number) > 0 for row in rows for number in row[2:])


def test_a_token_reads_rows_of_keys_values_and_means():
    pattern = Window(64) | First(4) | RetrievedClusters(55)
    selected, means, slots = 2 * 9 * 56 * 8, 3 * (64 + 2 * 1024), 3 * 8192 // 64
    assert long_context.rows_read(pattern, 8192, 9, 3) == 2 * 3 * (64 + 4) + selected + means + slots
    assert long_context.rows_read(None, 8192, 9, 3) == 2 * 3 * 8192


def pairs_of(task):
    return task.token_ids[:, 0::2], task.token_ids[:, 1::2]


def test_the_target_of_a_repeated_key_is_its_value_at_the_distance_to_the_last_one():
    task = recall.draw(20, seed=1)
    keys, values = pairs_of(task)
    for row in range(20):
        last = {}
        for index, (key, value) in enumerate(zip(keys[row], values[row], strict=True)):
            assert task.targets[row, 2 * index] == (value if key in last else 0)
            assert task.distances[row, 2 * index] == (2 * (index - last[key]) if key in last else 0)
            last[key] = index
    assert not task.targets[:, 1::2].any() and not task.distances[:, 1::2].any()


@pytest.mark.large
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_routing_recalls_values_beyond_the_window_and_local_attention_does_not(seed):
    assert recall.train("local + nearest", seed)[-1][1] >= 0.9
    assert recall.train("local", seed)[-1][1] < 2 * recall.CHANCE
