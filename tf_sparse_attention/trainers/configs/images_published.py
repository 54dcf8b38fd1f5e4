"""Images, byte by byte, in the published sizes: Routing Transformers and Sparse Transformers.

Command:   tsa-train --config=images_published --config.data.tfds=cifar10 \
           --config.data.train_split=train[:96%] --config.data.validation_split=train[96%:] --workdir=runs/cifar10
           For ImageNet-64: --config=images_published:imagenet64_half_routing
           --config.data.tfds=downsampled_imagenet/64x64, whose images are 15.7 GB on the disk
           Other presets: :cifar10_local1d, :cifar10_local2d, :sparse_transformer_cifar10, :imagenet64_local1d,
           :imagenet64_local_cluster and :sparse_transformer_imagenet64
Hardware:  8 devices with 16 GB of memory or more, one image each
Time:      not run here
Score:     not run here; bits per dimension of the papers: 2.80 on CIFAR-10 (Sparse Transformer), 3.44 on ImageNet-64
           (Sparse Transformer) and 3.43 (Routing Transformer)
"""

import ml_collections

from tf_sparse_attention.trainers.configs import base

# The pixels of a side of the images of each preset.
SIZES = {
    "cifar10_local_cluster": 32,
    "cifar10_local1d": 32,
    "cifar10_local2d": 32,
    "sparse_transformer_cifar10": 32,
    "imagenet64_half_routing": 64,
    "imagenet64_local_cluster": 64,
    "imagenet64_local1d": 64,
    "sparse_transformer_imagenet64": 64,
}


def get_config(preset: str = "cifar10_local_cluster") -> ml_collections.ConfigDict:
    """Returns the configuration of a preset for images."""
    if preset not in SIZES:
        raise ValueError(f"`preset` must be one of {', '.join(SIZES)}. Received: preset={preset}.")
    config = base.get_config()
    config.task = "image"
    size = SIZES[preset]
    config.data.update(image_shape=(size, size, 3), sequence_length=size * size * 3, batch_size=8)
    if preset == "cifar10_local2d":
        config.data.update(image_order="blocks", image_block=(16, 16))
    config.model.update(preset=preset, remat=True)
    if preset.startswith("sparse_transformer"):  # Child et al. 2019, section 7
        config.optimizer.update(name="adamw", learning_rate=3.5e-4, schedule="cosine", warmup_steps=5000)
        config.optimizer.update(weight_decay=0.01, global_clipnorm=1.0)
    else:  # that of the published code; the paper has Adam of 2e-4 with moments .9 and .98 for CIFAR-10
        config.optimizer.update(learning_rate=0.01, schedule="rsqrt_normalized_decay", warmup_steps=10_000)
    config.train.update(num_steps=400_000, log_every=100, evaluate_every=5_000, checkpoint_every=1_000)
    config.train.update(evaluation_windows=128, dtype="mixed_bfloat16")
    config.generate.update(top_p=1.0)
    return config
