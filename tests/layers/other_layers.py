"""Public layers that are not attention layers, by name: functions of the arguments of every Keras layer."""

from tf_sparse_attention import layers

OTHER_LAYERS = {
    "AdaptiveEmbedding": lambda **common: layers.AdaptiveEmbedding(11, 8, cutoffs=(4,), div_value=2, **common),
    "AdaptiveSoftmax": lambda **common: layers.AdaptiveSoftmax(vocabulary_size=11, cutoffs=(4,), div_value=2, **common),
    "FeedForward": lambda **common: layers.FeedForward(16, **common),
    "FrameSubsampling": lambda **common: layers.FrameSubsampling(2, 6, **common),
    "GridEmbedding": lambda **common: layers.GridEmbedding((3, 4), **common),
    "SinusoidalEmbedding": lambda **common: layers.SinusoidalEmbedding(**common),
    "SoftmaxFeedForward": lambda **common: layers.SoftmaxFeedForward(16, **common),
    "TransformerBlock": lambda **common: layers.TransformerBlock(
        layers.LocalAttention(2, 4, window=4, **common), layers.FeedForward(16, **common), **common
    ),
}
