import json

import numpy as np
import pytest

import tf_sparse_attention as tsa
from tests.convert.gguf_files import TOKENS, make_backbone, tensors_of, write_file
from tf_sparse_attention.convert.gguf.models import ARCHITECTURES

keras_hub = pytest.importorskip("keras_hub")
gguf = pytest.importorskip("gguf")

TEXT = "low lower 1234, it's\n"
PIECES = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *"▁lower", "lo", "low", "▁low", "er"]


@pytest.fixture
def llama(tmp_path):
    backbone = make_backbone("llama", tie_word_embeddings=True)
    return backbone, write_file(tmp_path / "llama.gguf", "llama", tensors_of("llama", backbone))


@pytest.mark.parametrize("kind", ["llama", "gemma3"])
def test_a_decoder_computes_what_the_file_was_made_from(kind, tmp_path):
    backbone = make_backbone(kind)
    model = tsa.convert.from_gguf(write_file(tmp_path / "x.gguf", kind, tensors_of(kind, backbone)))
    ids = np.random.default_rng(0).integers(2, 100, (2, 12))
    inputs = {"token_ids": ids, "padding_mask": np.ones_like(ids)}
    np.testing.assert_allclose(model.backbone(inputs), backbone(inputs), atol=1e-5)
    assert type(model).__name__ == f"{ARCHITECTURES[kind].classes}CausalLM"


@pytest.mark.full
def test_a_decoder_generates_text_is_made_sparse_and_loads_from_a_preset(llama, tmp_path):
    model = tsa.convert.from_gguf(llama[1])
    assert model.backbone.tie_word_embeddings and model.preprocessor.sequence_length == 128
    model.compile(sampler="greedy")
    text = model.generate(TEXT, max_length=32)
    assert text.startswith(TEXT) and len(text) > len(TEXT)

    def make_layer(attention):
        return tsa.layers.LocalAttention(**tsa.convert.arguments_of(attention), window=128)

    sparse = tsa.convert.replace_attention(model, make_layer, print_fn=None)
    assert sparse.generate(TEXT, max_length=32) == text
    sparse.save_to_preset(tmp_path / "preset")  # KerasHub 0.32 forgets in the dense model that weights are tied
    loaded = keras_hub.models.CausalLM.from_preset(str(tmp_path / "preset"))
    loaded.compile(sampler="greedy")
    assert loaded.generate(TEXT, max_length=32) == text


def test_quantized_tensors_are_close(llama, tmp_path):
    backbone, _ = llama
    rows = tensors_of("llama", backbone)
    types = {name: gguf.GGMLQuantizationType.Q8_0 for name, x in rows.items() if x.ndim == 2}
    writer_rows = {name: gguf.quants.quantize(x, types[name]) if name in types else x for name, x in rows.items()}
    path = tmp_path / "q8.gguf"
    original = gguf.GGUFWriter.add_tensor

    def add(self, name, values):
        original(self, name, values, raw_dtype=types.get(name))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gguf.GGUFWriter, "add_tensor", add)
        write_file(path, "llama", writer_rows)
    kernel = tsa.convert.from_gguf(path).backbone.weights[3].numpy()
    np.testing.assert_allclose(kernel, backbone.weights[3].numpy(), atol=0.01)


@pytest.mark.parametrize(
    ("tokenizer", "text", "pieces"),
    [
        ({}, "low lower 123", ["low", "Ġ", "low", "er", "Ġ", "1", "2", "3"]),
        ({"pre": "default"}, "low 123", ["low", "Ġ", "12", "3"]),
        ({"pre": "llama-bpe"}, "low 123", ["low", "Ġ", "12", "3"]),
        ({"pre": "qwen2"}, "lower 12", ["low", "er", "Ġ", "1", "2"]),
        ({}, "<|start|>low", ["<|start|>", "low"]),
    ],
)
def test_text_is_split_as_the_file_says(tokenizer, text, pieces, llama, tmp_path):
    path = write_file(tmp_path / "x.gguf", "llama", tensors_of("llama", llama[0]), tokenizer=tokenizer)
    own = tsa.convert.from_gguf(path).preprocessor.tokenizer
    ids = own(text)
    assert [own.id_to_token(int(index)) for index in ids] == pieces
    assert own.detokenize(ids) == text


def test_sentencepiece_tokens_merge_by_score_and_fall_back_to_bytes(tmp_path):
    backbone = make_backbone("llama")
    scores = [0.0] * (len(PIECES) - 4) + [-1.0, -2.0, -3.0, -4.0]
    words = {"model": "llama", "tokens": PIECES, "scores": scores, "merges": None, "pre": None}
    words |= {"token_type": [2, 3, 3, *[6] * 256, *[1] * (len(PIECES) - 259)], "eos_token_id": 2, "bos_token_id": 1}
    tensors = tensors_of("llama", backbone)
    for name in ("token_embd.weight", "output.weight"):
        tensors[name] = np.resize(tensors[name], (len(PIECES), 32))
    model = tsa.convert.from_gguf(write_file(tmp_path / "x.gguf", "llama", tensors, tokenizer=words))
    own = model.preprocessor.tokenizer
    assert [own.id_to_token(int(index)) for index in own("lower é")] == ["▁low", "er", "▁", "<0xC3>", "<0xA9>"]
    assert own.detokenize(own("lower é")) == "lower é"
    assert own.start_token_id == 1  # SentencePiece models begin with a start token


@pytest.mark.parametrize(
    ("received", "settings", "tokenizer", "dropped"),
    [
        ("block_count=None", {"block_count": None}, {}, ""),
        ("block_count='2'", {"block_count": "2"}, {}, ""),
        ("head_count=0", {"attention.head_count": 0}, {}, ""),
        ("head_count=\\[4, 4\\]", {"attention.head_count": [4, 4]}, {}, ""),
        ("freq_base=0.0", {"rope.freq_base": 0.0}, {}, ""),
        ("key_length", {"attention.key_length": 4}, {}, ""),
        ("instead of 6.4", {"attention.head_count": 5}, {}, ""),
        ("yarn", {"rope.scaling.type": "yarn"}, {}, ""),
        ("experts", {"expert_count": 4}, {}, ""),
        ("embedding", {"embedding_length": 64}, {}, ""),
        ("wordpiece", {}, {"model": "wordpiece"}, ""),
        ("'viking'", {}, {"pre": "viking"}, ""),
        ("KeyError: 'tokenizer.ggml.merges'", {}, {"merges": None}, ""),
        ("Token `l` out of vocabulary", {}, {"tokens": TOKENS[:3], "token_type": None}, ""),
        ("zip", {}, {"token_type": [1, 2]}, ""),
        ("KeyError: 'tokenizer.ggml.scores'", {}, {"model": "llama"}, ""),
        ("bos_token_id .*not None", {}, {"add_bos_token": True}, ""),
        ("eos_token_id .*not 1000", {}, {"eos_token_id": 1000}, ""),
        ("blk.1.attn_q.weight", {}, {}, "blk.1.attn_q.weight"),
        ("blk.1", {"block_count": 1}, {}, ""),
    ],
)
def test_files_that_do_not_fit_are_refused(received, settings, tokenizer, dropped, llama, tmp_path):
    tensors = {name: x for name, x in tensors_of("llama", llama[0]).items() if name != dropped}
    path = write_file(tmp_path / "x.gguf", "llama", tensors, settings, tokenizer)
    with pytest.raises(ValueError, match=f"`path` must .*{received if received != 'embedding' else 'Received'}"):
        tsa.convert.from_gguf(path)


def test_damaged_and_unknown_files_are_refused(llama, tmp_path):
    whole = llama[1].read_bytes()
    for name, content in {"empty": b"", "text": b"hello", "cut": whole[: len(whole) // 2]}.items():
        path = tmp_path / name
        path.write_bytes(content)
        with pytest.raises(ValueError, match="`path` must be a complete GGUF file"):
            tsa.convert.from_gguf(path)
    with pytest.raises(ValueError, match="not a file"):
        tsa.convert.from_gguf(tmp_path)
    other = write_file(tmp_path / "other.gguf", "mamba", {})
    with pytest.raises(ValueError, match=r"architecture among .*'mamba'"):
        tsa.convert.from_gguf(other)


def test_rotary_factors_of_llama_3_become_arguments(llama, tmp_path):
    wavelengths = 2 * np.pi * 500000.0 ** (np.arange(0, 8, 2) / 8)
    share = np.clip((8192 / wavelengths - 1) / 3, 0, 1)
    tensors = tensors_of("llama", llama[0]) | {"rope_freqs.weight": (1 / ((1 - share) / 32 + share)).astype("float32")}
    path = write_file(tmp_path / "x.gguf", "llama", tensors, {"rope.freq_base": 500000.0})
    config = tsa.convert.from_gguf(path).backbone.get_config()
    assert json.dumps([config["rope_frequency_adjustment_factor"], config["rope_low_freq_factor"]]) == "[32.0, 1.0]"
    tensors["rope_freqs.weight"] *= 2
    with pytest.raises(ValueError, match="rotary factors of Llama 3"):
        tsa.convert.from_gguf(write_file(tmp_path / "y.gguf", "llama", tensors, {"rope.freq_base": 500000.0}))
