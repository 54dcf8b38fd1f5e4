"""Makes the tiny Longformer and BigBird checkpoints of tests/golden/hugging_face and what torch computes with them.

Needs `pip install torch transformers safetensors`. Run: python -m tests.make_hugging_face [FOLDER]
"""

import pathlib
import sys

import numpy as np

FOLDER = pathlib.Path(__file__).parent / "golden" / "hugging_face"
COMMON = {"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
COMMON |= {"intermediate_size": 24, "type_vocab_size": 2}
LONGFORMER = {**COMMON, "attention_window": [4, 8], "max_position_embeddings": 64, "pad_token_id": 1}
BIG_BIRD = {**COMMON, "block_size": 4, "num_random_blocks": 2, "max_position_embeddings": 64, "sep_token_id": 3}
CASES = {  # class, settings, lengths of the rows, global positions of each row
    "longformer": ("LongformerModel", LONGFORMER, (23, 17), ((0, 5, 22), (3,))),
    "longformer_task": ("LongformerForMaskedLM", {**LONGFORMER, "hidden_act": "relu"}, (30, 30), ((), ())),
    "big_bird": ("BigBirdModel", BIG_BIRD, (46, 39), None),
    "big_bird_short": ("BigBirdModel", BIG_BIRD, (21, 13), None),
    "big_bird_task": (
        "BigBirdForPreTraining",
        {**BIG_BIRD, "rescale_embeddings": True, "use_bias": False, "num_random_blocks": 1},
        (44, 44),
        None,
    ),
}


def inputs_of(case, seed=0):
    """Return the inputs of a case as arrays: token ids, padding mask, segments and, for a Longformer, global marks."""
    name, settings, lengths, marks = CASES[case]
    rng = np.random.default_rng(seed)
    mask = (np.arange(max(lengths)) < np.array(lengths)[:, None]).astype("int64")
    ids = np.where(mask == 1, rng.integers(4, 40, mask.shape), settings.get("pad_token_id", 0))
    inputs = {"input_ids": ids, "attention_mask": mask, "token_type_ids": rng.integers(0, 2, mask.shape)}
    if name.startswith("Longformer"):
        inputs["global_attention_mask"] = np.zeros_like(mask)
        for row, positions in enumerate(marks):
            inputs["global_attention_mask"][row, list(positions)] = 1
    return inputs


def make(case, folder):
    """Write a checkpoint with random weights, and its inputs and outputs."""
    import torch
    import transformers

    name, settings, *_ = CASES[case]
    kind = getattr(transformers, name)
    torch.manual_seed(sorted(CASES).index(case))
    model = kind(kind.config_class(**settings)).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.normal_(std=0.3)
        inputs = inputs_of(case)
        encoder = getattr(model, model.base_model_prefix, model)
        results = encoder(**{name: torch.tensor(values) for name, values in inputs.items()})
    model.save_pretrained(folder / case)
    arrays = {"sequence_output": results.last_hidden_state.numpy()}
    if results.pooler_output is not None:
        arrays["pooled_output"] = results.pooler_output.numpy()
    np.savez_compressed(folder / case / "numbers.npz", **inputs, **arrays)


if __name__ == "__main__":
    for each in CASES:
        make(each, pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER)
