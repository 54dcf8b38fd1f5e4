"""Import of external checkpoints, and conversion of dense models to sparse attention."""

from tf_sparse_attention.convert.causal_routing import with_causal_routing
from tf_sparse_attention.convert.gguf.models import from_gguf
from tf_sparse_attention.convert.hugging_face import from_hugging_face
from tf_sparse_attention.convert.swap.dense_attention import arguments_of
from tf_sparse_attention.convert.swap.heal import Healing, heal
from tf_sparse_attention.convert.swap.make_sparse import make_sparse
from tf_sparse_attention.convert.swap.replace import register_presets, replace_attention
from tf_sparse_attention.convert.t2t.conversion import from_t2t_checkpoint, plan_t2t_checkpoint

__all__ = [
    "Healing",
    "arguments_of",
    "from_gguf",
    "from_hugging_face",
    "from_t2t_checkpoint",
    "heal",
    "make_sparse",
    "plan_t2t_checkpoint",
    "register_presets",
    "replace_attention",
    "with_causal_routing",
]
__dir__ = __all__.copy  # without the submodules
