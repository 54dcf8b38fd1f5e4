"""Tiny models with random weights of every family that KerasHub has, and inputs for them.

A family is a class `keras_hub.models.NAMEBackbone`. Those with options that decide what becomes of their attention
have several entries, "NAME (option)".
"""

from collections.abc import Callable

import keras
import keras_hub
import numpy as np

from tests.convert.swap.decoder_models import FAMILIES as DECODERS

LENGTH, VOCABULARY, IMAGE = 16, 50, (32, 32, 3)
SAMPLES = 6400  # of audio
SIZES = {"hidden_dim": 32, "intermediate_dim": 48, "num_layers": 2}
HEADS = {**SIZES, "num_heads": 4}
TEXT = {**HEADS, "vocabulary_size": VOCABULARY}
GROUPED = {**SIZES, "vocabulary_size": VOCABULARY, "num_query_heads": 4, "num_key_value_heads": 2}
PLAIN = {"dropout": 0.0, "max_sequence_length": LENGTH}


def hub(name: str, /, *arguments, **options):
    """Return an object of `keras_hub.models` or `keras_hub.layers`."""
    module = keras_hub.models if hasattr(keras_hub.models, name) else keras_hub.layers
    return getattr(module, name)(*arguments, **options)


def without(arguments: dict, *names: str) -> dict:
    return {name: value for name, value in arguments.items() if name not in names}


def blip2(tokens: int):
    """Return a BLIP-2 with OPT that puts some tokens for an image in front of the text; with 0 it takes text alone."""
    parts = {"dropout": 0.0, "layer_norm_epsilon": 1e-6}
    if tokens:
        biases = dict.fromkeys(["use_patch_bias", "use_class_token", "use_mha_bias", "use_mlp_bias"], True)
        image = {"image_size": 32, "patch_size": 16, "dropout_rate": 0.0, "layer_norm_epsilon": 1e-6}
        encoder = hub("BLIP2VisionEncoder", **HEADS, **image, **biases, initializer_range=0.02)
        sizes = {"num_query_tokens": tokens, "vision_dim": 32, "cross_attention_frequency": 1}
        former = hub("BLIP2QFormer", **HEADS, **sizes, **parts)
    sizes = {"num_query_tokens": tokens, "qformer_hidden_dim": 32, "max_sequence_length": 32, "dropout": 0.0}
    model = hub("BLIP2CustomOPT", **TEXT, **sizes)
    encoders = {"vision_encoder": encoder, "qformer": former} if tokens else {"vision_encoder": None, "qformer": None}
    return hub("BLIP2Backbone", **encoders, language_model=model)


def two_towers(name: str, *arguments):
    image = hub(f"{name}VisionEncoder", **HEADS, patch_size=16, image_shape=IMAGE)
    text = hub(f"{name}TextEncoder", **TEXT, embedding_dim=32, max_sequence_length=LENGTH)
    return hub(f"{name}Backbone", image, text, *arguments)


def gemma3(vision: bool = False, **options):
    if vision:
        image = {"image_size": 32, "patch_size": 8, "pool_size": 2, "output_dim": 32}
        options["vision_encoder"] = hub("Gemma3VisionEncoder", **HEADS, **image)
    return hub("Gemma3Backbone", **{**DECODERS["gemma3"][1], "num_layers": 2, **options})


def t5gemma(name: str):
    sizes = {}
    for side in ("encoder", "decoder"):
        one = {"hidden_dim": 32, "intermediate_dim": 48, "num_layers": 2, "num_attention_heads": 4, "head_dim": 8}
        one |= {"num_key_value_heads": 2, "layer_types": ["sliding_attention", "full_attention"]}
        sizes |= {f"{side}_{key}": value for key, value in one.items()}
    return hub(name, VOCABULARY, **sizes, sliding_window=4, cross_attention_hidden_size=32)


def moonshine():
    heads = {f"{side}_{what}": 2 for side in ("encoder", "decoder") for what in ("num_heads", "num_layers")}
    return hub("MoonshineBackbone", VOCABULARY, **without(SIZES, "num_layers"), **heads, filter_dim=32)


def resnet(image_shape=IMAGE):
    sizes = {"input_conv_filters": [64], "input_conv_kernel_sizes": [3], "block_type": "basic_block"}
    stages = {"stackwise_num_filters": [64] * 4, "stackwise_num_blocks": [1] * 4, "stackwise_num_strides": [1, 2, 2, 2]}
    return hub("ResNetBackbone", **sizes, **stages, image_shape=image_shape)


def hgnet_v2(image_shape=IMAGE, **options):
    stages = [(8, 8, 16, 1, 1, 3), (16, 8, 16, 1, 1, 3), (16, 8, 16, 1, 1, 3), (16, 8, 16, 1, 1, 3)]
    flags = {"apply_downsample": [False, True, True, True], "use_lightweight_conv_block": [False] * 4}
    sizes = {"depths": [1] * 4, "embedding_size": 8, "hidden_sizes": [16] * 4, "stem_channels": [3, 8, 8]}
    flags |= {"hidden_act": "relu", "use_learnable_affine_block": False, "stackwise_stage_filters": stages}
    return hub("HGNetV2Backbone", **sizes, **flags, **options, image_shape=image_shape)


def d_fine():
    encoder = hgnet_v2((64, 64, 3), out_features=["stage3", "stage4"])
    sizes = dict.fromkeys(["hidden_dim", "encoder_hidden_dim", "encoder_ffn_dim", "decoder_ffn_dim"], 16)
    sizes |= {
        "decoder_in_channels": [16, 16],
        "encoder_in_channels": [16, 16],
        "lqe_hidden_dim": 8,
        "num_lqe_layers": 2,
    }
    counts = {"num_labels": 4, "num_denoising": 0, "num_queries": 8, "num_feature_levels": 2, "eval_idx": -1}
    counts |= {"num_attention_heads": 2, "decoder_attention_heads": 2, "decoder_n_points": [2, 2], "seed": 0}
    counts |= {"num_encoder_layers": 1, "num_decoder_layers": 2, "hidden_expansion": 1.0, "depth_multiplier": 0.5}
    places = {"anchor_image_size": (64, 64), "feat_strides": [16, 32], "encode_proj_layers": [1]}
    places |= {"learn_initial_query": False, "out_features": ["stage3", "stage4"], "image_shape": (64, 64, 3)}
    return hub("DFineBackbone", backbone=encoder, **sizes, **counts, **places)


def mit():
    stages = {"layerwise_depths": [1, 1], "layerwise_num_heads": [1, 2], "layerwise_sr_ratios": [2, 1]}
    stages |= {"layerwise_patch_sizes": [7, 3], "layerwise_strides": [4, 2], "hidden_dims": [8, 16]}
    return hub("MiTBackbone", **stages, num_layers=2, max_drop_path_rate=0.0, image_shape=IMAGE)


def mobile_net():
    stages = {"stackwise_expansion": [[8]], "stackwise_num_blocks": [1], "stackwise_num_filters": [[8]]}
    stages |= {"stackwise_kernel_size": [[3]], "stackwise_num_strides": [[2]], "stackwise_se_ratio": [[None]]}
    stages |= {"stackwise_activation": [["relu"]], "stackwise_padding": [[1]], "output_num_filters": 8}
    depthwise = {"depthwise_filters": 8, "depthwise_stride": 1, "depthwise_residual": False}
    return hub("MobileNetBackbone", **stages, **depthwise, last_layer_filter=8, image_shape=IMAGE)


def mobile_net_v5():
    # An edge residual, an inverted bottleneck and attention with one head of keys.
    names = ["num_heads", "key_dims", "value_dims", "kv_strides"]
    stages = {f"stackwise_{name}": [[0], [0, size]] for name, size in zip(names, [2, 8, 8, 1], strict=True)}
    stages |= {"stackwise_block_types": [["er"], ["uir", "mqa"]], "stackwise_num_blocks": [1, 2]}
    stages |= {"stackwise_num_filters": [[8], [16, 16]], "stackwise_strides": [[2], [2, 1]]}
    stages |= {"stackwise_act_layers": [["relu"], ["relu"] * 2], "stackwise_exp_ratios": [[2.0], [2.0] * 2]}
    stages |= {"stackwise_se_ratios": [[0.0], [0.0] * 2], "stackwise_use_cpe": [[False], [False] * 2]}
    kernels = {"dw": [[0], [5, 5]], "dw_start": [[0], [0, 0]], "dw_end": [[0], [0, 0]]}
    kernels |= {"exp": [[3], [0, 0]], "pw": [[1], [0, 0]]}
    stages |= {f"stackwise_{name}_kernel_sizes": sizes for name, sizes in kernels.items()}
    return hub("MobileNetV5Backbone", **stages, use_msfa=False, image_shape=IMAGE)


def efficient_net():
    stages = {"kernel_sizes": [3], "num_repeats": [1], "input_filters": [8], "output_filters": [8]}
    stages |= {"expansion_ratios": [1], "squeeze_and_excite_ratios": [0.25], "strides": [2], "block_types": ["v1"]}
    stages = {f"stackwise_{name}": values for name, values in stages.items()}
    factors = {"stackwise_width_coefficients": [1.0], "stackwise_depth_coefficients": [1.0]}
    return hub("EfficientNetBackbone", **stages, **factors, input_shape=IMAGE)


def csp_net():
    stages = {"stackwise_depth": [1], "stackwise_strides": [2], "stackwise_num_filters": [16]}
    stem = {
        "stem_filters": 8,
        "stem_kernel_size": 3,
        "stem_strides": 1,
        "block_type": "dark_block",
        "stage_type": "dark",
    }
    return hub("CSPNetBackbone", **stages, **stem, image_shape=IMAGE)


def sam():
    encoder = vit_det()
    prompts = {"image_embedding_size": (4, 4), "input_image_size": (32, 32), "mask_in_channels": 4}
    prompts = hub("SAMPromptEncoder", hidden_size=16, **prompts)
    heads = {"num_multimask_outputs": 2, "iou_head_depth": 1, "iou_head_hidden_dim": 8, "embedding_dim": 16}
    decoder = hub("SAMMaskDecoder", num_layers=1, hidden_size=16, intermediate_dim=32, num_heads=2, **heads)
    return hub("SAMBackbone", encoder, prompts, decoder)


def vit_det():
    sizes = {"hidden_size": 32, "num_layers": 2, "intermediate_dim": 48, "num_heads": 4, "patch_size": 8}
    places = {"global_attention_layer_indices": [1], "window_size": 2, "num_output_channels": 16}
    return hub("ViTDetBackbone", **sizes, **places, image_shape=IMAGE)


def sam3():
    shape = (112, 112, 3)
    fpn = {"fpn_hidden_dim": 32, "fpn_scale_factors": [4.0, 2.0, 1.0, 0.5], "pretrain_image_shape": shape}
    encoder = {"image_shape": shape, "patch_size": 14, "window_size": 2, "global_attn_indexes": [1]}
    return hub(
        "SAM3PromptableConceptBackbone",
        vision_encoder=hub("SAM3VisionEncoder", **HEADS, **encoder, **fpn),
        text_encoder=hub("SAM3TextEncoder", **TEXT, embedding_dim=32),
        geometry_encoder=hub("SAM3GeometryEncoder", **HEADS, roi_size=7),
        detr_encoder=hub("SAM3DetrEncoder", **HEADS),
        detr_decoder=hub("SAM3DetrDecoder", **HEADS, image_shape=shape, patch_size=14, num_queries=4),
        mask_decoder=hub("SAM3MaskDecoder", num_upsampling_stages=3, hidden_dim=32, num_heads=4),
    )


def stable_diffusion_3():
    from keras_hub.src.models.vae.vae_backbone import VAEBackbone  # which KerasHub does not export

    stages = {
        f"{side}_num_{what}": [n] * 4 for side in ("encoder", "decoder") for what, n in (("filters", 32), ("blocks", 1))
    }
    clip = {**TEXT, "embedding_dim": 32, "max_sequence_length": LENGTH, "intermediate_output_index": 0}
    texts = [hub("CLIPTextEncoder", **clip, name=name) for name in "lg"]
    sizes = {"patch_size": 2, "hidden_dim": 32, "num_layers": 2, "num_heads": 2, "position_size": 16}
    sizes |= {"qk_norm": None, "dual_attention_indices": None}
    sizes = {f"mmdit_{name}": value for name, value in sizes.items()}
    parts = {"vae": VAEBackbone(**stages), "clip_l": texts[0], "clip_g": texts[1]}
    return hub("StableDiffusion3Backbone", **sizes, **parts, image_shape=(64, 64, 3))


def flux():
    shapes = {"image_shape": (16, 8), "text_shape": (16, 8), "y_shape": (8,)}
    shapes |= {"image_ids_shape": (16, 3), "text_ids_shape": (16, 3)}
    sizes = {"input_channels": 8, "hidden_size": 32, "num_heads": 2, "depth": 1, "depth_single_blocks": 1}
    rotary = {"axes_dim": [4, 6, 6], "theta": 1e4, "mlp_ratio": 2.0, "use_bias": True}
    return hub("FluxBackbone", **sizes, **rotary, **shapes)


def depth_anything():
    encoder = dino_v2((64, 64, 3), num_layers=4)
    sizes = {"neck_hidden_dims": [8, 8, 8, 8], "fusion_hidden_dim": 8, "head_hidden_dim": 8, "head_in_index": -1}
    stages = {"reassemble_factors": [4, 2, 1, 0.5], "feature_keys": ["stage1", "stage2", "stage3", "stage4"]}
    return hub("DepthAnythingBackbone", encoder, **sizes, **stages)


def dino_v2(shape=IMAGE, **options):
    return hub("DINOV2Backbone", 8, **{**HEADS, **options}, image_shape=shape, position_embedding_shape=shape)


def swin():
    return hub("SwinTransformerBackbone", IMAGE, 16, depths=(1, 1), num_heads=(2, 2), window_size=4, drop_path=0.0)


def deep_lab_v3():
    keys = {"spatial_pyramid_pooling_key": "P5", "low_level_feature_key": "P2", "upsampling_size": 8}
    return hub("DeepLabV3Backbone", resnet(), **keys, dilation_rates=[1, 2, 3], projection_filters=8, image_shape=IMAGE)


def video_prism():
    layers = {f"num_{kind}_layers": 1 for kind in ("spatial", "temporal", "auxiliary", "text")}
    sizes = without(HEADS, "num_layers")
    return hub("VideoPrismBackbone", 2, 16, **sizes, **layers, vocabulary_size=VOCABULARY, image_shape=IMAGE)


def pali_gemma():
    image = {"image_size": 32, "vit_patch_size": 16, "vit_num_layers": 2, "vit_num_heads": 2}
    image |= {"vit_hidden_dim": 16, "vit_intermediate_dim": 32}
    return hub("PaliGemmaBackbone", **GROUPED, **image, head_dim=8)


def parseq():
    encoder = hub("ViTBackbone", IMAGE, 8, 2, 4, 32, 48, use_class_token=False)
    return hub("PARSeqBackbone", encoder, VOCABULARY, LENGTH, 32, 2, 4, 48)


def vit(name: str):
    return hub(name, IMAGE, 8, 2, 4, 32, 48)


def decoder(family: str, **options):
    name, arguments = DECODERS[family]
    return hub(f"{name}Backbone", **{**arguments, **options})


TIED = {"tie_word_embeddings": True}
SHARED_3N = {"num_hidden_layers": 6, "intermediate_size": [48] * 6, "num_kv_shared_layers": 2}
SHARED_3N |= {"layer_types": ["sliding_attention", "full_attention"] * 3}
BOTH_WAYS = {"use_bidirectional_attention": True, "is_embedding_model": True, "pooling_intermediate_dim": 16}
RWKV = {"hidden_size": 32, "num_layers": 2, "head_size": 8, "intermediate_dim": 48}
RWKV |= dict.fromkeys(["gate_lora", "mv_lora", "aaa_lora", "decay_lora"], 4)
EDREC = {"num_layers_enc": 2, "num_layers_dec": 2, "vocab_size": VOCABULARY}
WHISPER = {"max_encoder_sequence_length": 16, "max_decoder_sequence_length": 16}

MODELS: dict[str, Callable[[], keras.Model]] = {
    "Albert": lambda: hub("AlbertBackbone", **TEXT, **PLAIN, embedding_dim=16),
    "BASNet": lambda: hub("BASNetBackbone", resnet((None, None, 3)), 1, image_shape=(64, 64, 3)),
    "BLIP2 (text alone)": lambda: blip2(0),
    "BLIP2 (with images)": lambda: blip2(4),
    "Bart": lambda: hub("BartBackbone", **TEXT, **PLAIN),
    "Bert": lambda: hub("BertBackbone", **TEXT, **PLAIN),
    "Bloom": lambda: decoder("bloom"),
    "CLIP": lambda: two_towers("CLIP", 16),
    "CSPNet": csp_net,
    "DFine": d_fine,
    "DINOV2": dino_v2,
    "DINOV3": lambda: hub("DINOV3Backbone", 8, **HEADS, image_shape=IMAGE),
    "DebertaV3": lambda: hub("DebertaV3Backbone", **TEXT, **PLAIN, bucket_size=8),
    "DeepLabV3": deep_lab_v3,
    "DeiT": lambda: vit("DeiTBackbone"),
    "DenseNet": lambda: hub("DenseNetBackbone", [1, 1], image_shape=IMAGE, growth_rate=8),
    "DepthAnything": depth_anything,
    "DistilBert": lambda: hub("DistilBertBackbone", **TEXT, **PLAIN),
    "ESM": lambda: hub("ESMBackbone", **TEXT, **PLAIN),
    "EdRec": lambda: hub("EdRecBackbone", **without(HEADS, "num_layers"), **EDREC),
    "EfficientNet": efficient_net,
    "Electra": lambda: hub("ElectraBackbone", VOCABULARY, **HEADS, **PLAIN, embedding_dim=16),
    "FNet": lambda: hub("FNetBackbone", VOCABULARY, **SIZES, **PLAIN),
    "Falcon": lambda: decoder("falcon"),
    "Flux": flux,
    "GPT2": lambda: hub("GPT2Backbone", **TEXT, **PLAIN),
    "GPTNeoX": lambda: decoder("gpt_neo_x"),
    "Gemma": lambda: decoder("gemma"),
    "Gemma (2)": lambda: decoder("gemma2"),
    "Gemma3 (text alone)": gemma3,
    "Gemma3 (with a vision encoder)": lambda: gemma3(True, image_size=32),
    "Gemma3 (both ways, EmbeddingGemma)": lambda: gemma3(**BOTH_WAYS, embedding_dim=8),
    "Gemma3n": lambda: decoder("gemma3n"),
    "Gemma3n (shared keys)": lambda: decoder("gemma3n", **SHARED_3N),
    "Gemma4": lambda: decoder("gemma4"),
    "Gemma4 (shared keys)": lambda: decoder("gemma4", num_layers=6, num_kv_shared_layers=2),
    "GptOss": lambda: decoder("gpt_oss"),
    "HGNetV2": hgnet_v2,
    "Llama": lambda: decoder("llama"),
    "Llama (tied)": lambda: decoder("llama", **TIED),
    "Llama3": lambda: decoder("llama3"),
    "Llama3 (tied, 3.2)": lambda: decoder("llama3", **TIED),
    "MetaCLIP2": lambda: two_towers("MetaCLIP2", 16),
    "MiT": mit,
    "Mistral": lambda: decoder("mistral"),
    "Mixtral": lambda: decoder("mixtral"),
    "MobileNet": mobile_net,
    "MobileNetV5": mobile_net_v5,
    "Moonshine": moonshine,
    "OPT": lambda: hub("OPTBackbone", **TEXT, **PLAIN),
    "PARSeq": parseq,
    "PaliGemma": pali_gemma,
    "Phi3": lambda: decoder("phi3"),
    "Phi3 (su scaling)": lambda: decoder("phi3_su"),
    "Qwen": lambda: decoder("qwen2"),
    "Qwen3": lambda: decoder("qwen3"),
    "Qwen3Moe": lambda: decoder("qwen3_moe"),
    "Qwen3_5": lambda: decoder("qwen3_5"),
    "Qwen3_5Moe": lambda: decoder("qwen3_5_moe"),
    "QwenMoe": lambda: decoder("qwen_moe"),
    "RWKV7": lambda: hub("RWKV7Backbone", vocabulary_size=VOCABULARY, **RWKV),
    "ResNet": resnet,
    "RetinaNet": lambda: hub("RetinaNetBackbone", resnet(), 3, 5, use_p5=True, image_shape=IMAGE),
    "Roberta": lambda: hub("RobertaBackbone", **TEXT, **PLAIN),
    "RoformerV2": lambda: hub("RoformerV2Backbone", **TEXT, dropout=0.0, head_size=8),
    "SAM": sam,
    "SAM3PromptableConcept": sam3,
    "SegFormer": lambda: hub("SegFormerBackbone", mit(), 8),
    "SigLIP": lambda: two_towers("SigLIP"),
    "SmolLM3": lambda: decoder("smol_lm3"),
    "StableDiffusion3": stable_diffusion_3,
    "SwinTransformer": swin,
    "T5": lambda: hub("T5Backbone", **TEXT, dropout=0.0),
    "T5Gemma": lambda: t5gemma("T5GemmaBackbone"),
    "T5Gemma2": lambda: t5gemma("T5Gemma2Backbone"),
    "VGG": lambda: hub("VGGBackbone", [1, 1], [8, 8], image_shape=IMAGE),
    "ViT": lambda: vit("ViTBackbone"),
    "ViTDet": vit_det,
    "VideoPrism": video_prism,
    "Whisper": lambda: hub("WhisperBackbone", **TEXT, dropout=0.0, **WHISPER),
    "XLMRoberta": lambda: hub("XLMRobertaBackbone", **TEXT, **PLAIN),
    "XLNet": lambda: hub("XLNetBackbone", **TEXT),
    "Xception": lambda: hub("XceptionBackbone", [[8, 8]], [True], image_shape=IMAGE),
}
ABSTRACT = {"", "FeaturePyramid"}


def families() -> dict[str, list[str]]:
    """Return the families that KerasHub exports: by the class of the backbone, all names of the family."""
    found: dict[type, list[str]] = {}
    for name in dir(keras_hub.models):
        family = name.removesuffix("Backbone")
        if name.endswith("Backbone") and family not in ABSTRACT:
            found.setdefault(getattr(keras_hub.models, name), []).append(family)
    return {kind.__name__.removesuffix("Backbone"): names for kind, names in found.items()}


def inputs_of(model: keras.Model, seed: int = 0) -> dict[str, np.ndarray]:
    """Return random inputs of a functional model, two rows of `LENGTH` tokens, the second row padded."""
    rng = np.random.default_rng(seed)
    is_audio = isinstance(model.input, dict) and "encoder_input_values" in model.input

    def draw(tensor):
        length = 1 if "box" in tensor.name else SAMPLES if is_audio and "encoder" in tensor.name else LENGTH
        shape = (2, *(length if size is None else size for size in tensor.shape[1:]))
        if "padding_mask" in tensor.name:
            return np.broadcast_to(np.arange(shape[1]) < np.array([[shape[1]], [shape[1] - 3]]), shape).astype("int32")
        if "position_ids" in tensor.name:
            return np.broadcast_to(np.arange(shape[1]), shape)
        if "segment" in tensor.name or "box" in tensor.name:
            return np.zeros(shape, tensor.dtype)
        if "int" in tensor.dtype:
            return rng.integers(1, VOCABULARY, shape)
        return rng.normal(size=shape).astype("float32")

    return keras.tree.map_structure(draw, model.input)


def model_of(label: str) -> keras.Model:
    """Return the model of an entry of `MODELS`; its trainable weights are random, also those that start with zeros."""
    rng, model = np.random.default_rng(0), MODELS[label]()
    for weight in model.trainable_weights:
        weight.assign(rng.normal(size=weight.shape) * 0.1)
    return model
