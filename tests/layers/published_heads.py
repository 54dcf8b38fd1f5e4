"""The multi-head attention of the published code, made of our layers.

The published kernels are cut into those of the parts while gradients are taken, so that these are by the published
variables: routed heads come first, the scale d^-1/2 of their queries goes into the kernel, and the matrix that all
heads go through into the output projection.
"""

from keras import ops

import tf_sparse_attention as tsa
from tests.patterns.small_cases import attend_pattern
from tf_sparse_attention.patterns import Stride

HEADS = "attention_nd/"
OF_KIND = {
    "top_k": HEADS + "cluster_attention/cluster_attention/",
    "strided": HEADS + "cluster_strided_attention/cluster_strided_attention/",
    "local": HEADS + "local_nd/",
}


class PublishedHeads:
    """One multi-head attention: a layer for each kind of its heads.

    Args:
        settings: dictionary of the published settings.
        state: dictionary of the published centroids and their averages, by the names of variables.
        size: channels of a head.
        query_shape: shape of the inputs that the layers are built for.
        across: whether keys are of another sequence.
    """

    def __init__(self, settings, state, size, query_shape, across=False):
        self.settings, self.state, self.size, self.across = settings, state, size, across
        kinds = [("top_k", "sparsity_cluster_num_heads"), ("strided", "sparsity_cluster_strided_num_heads")]
        kinds += [("strides", "sparsity_strided_num_heads"), ("local", "local_num_heads")]
        self.parts, first = [], 0
        for kind, setting in kinds:
            count = settings.get(setting, 0)
            if count:
                self.parts.append((kind, range(first, first + count), self._layer(kind, count, query_shape)))
            first += count

    def _layer(self, kind, count, query_shape):
        """Return the built layer of a part; None for the published strides, which are no layer by themselves."""
        settings = self.settings
        common = {"num_heads": count, "key_dim": self.size, "use_bias": False}
        prefix = "local" if kind == "local" else "sparsity_cluster"
        if settings.get(f"{prefix}_relative"):
            common |= {"position": "relative", "max_distance": settings["max_relative_position"]}
        if kind == "strides":
            return None
        if kind == "local":
            layer = tsa.layers.LocalAttention(**common, **self._blocks())
        else:
            layer = tsa.layers.RoutingAttention(
                **common,
                num_clusters=settings["sparsity_cluster_size"],
                cluster_size=settings["sparsity_cluster_attention_window"],
                selection=kind,
                share_qk=settings["share_qk"],
                # Strided clusters weigh their commitment by 1e-4 whatever was asked for.
                commitment_loss=settings["beta"] if kind == "top_k" else 1e-4,
                ema_decay=settings["decay"],
                reproduce_reference=True,
                revive_after=0,
            )
        layer.build(query_shape)
        return layer

    def _blocks(self):
        (block,), (flange,) = self.settings["query_shape"], self.settings["memory_flange"]
        (other,) = self.settings["memory_query_shape"] if self.across else (block,)
        blocks = {"block_size": block, "num_blocks_before": flange // other}
        return blocks | ({"key_block_size": other} if self.across else {})

    def run(self, variables, x, memory=None):
        """Return the output and the commitment loss.

        Args:
            variables: dictionary of tensors by the published names.
            x: float (B, T, D).
            memory: float (B, S, D), where keys are of another sequence.
        """
        output, loss = 0.0, 0.0
        for kind, heads, layer in self.parts:
            weights = self._weights(kind, heads, variables)
            if layer is None:
                output = output + self._strides(weights, x)
                continue
            # In training for the loss alone: nothing is dropped.
            trainable, rest = self._values(layer.trainable_variables, weights), self._state(kind, layer)
            others = {} if memory is None else {"value": memory}
            options = {"training": True, "use_causal_mask": self.settings["masked"], "return_losses": True, **others}
            result, rest, losses = layer.stateless_call(trainable, rest, x, **options)
            output, loss = output + result, loss + sum(losses)
            self.after = dict(zip((v.name for v in layer.non_trainable_variables), rest, strict=True))
        return output, loss

    def _weights(self, kind, heads, variables):
        """Return the weights of some heads, by our names."""
        size = self.size
        columns = slice(heads[0] * size, (heads[-1] + 1) * size)
        scale = size**-0.5 if kind in ("top_k", "strided") else 1.0

        def of_heads(name):
            return ops.reshape(variables[f"{name}/kernel"][:, columns], (-1, len(heads), size))

        output = ops.reshape(variables["output_transform/kernel"][columns], (len(heads), size, -1))
        output = ops.einsum("vw,nwd->nvd", variables[f"{HEADS}dense/kernel"], output)
        weights = {
            "query": of_heads("q") * scale,
            "key": of_heads("k"),
            "value": of_heads("v"),
            "attention_output": output,
        }
        for side in ("key", "value"):
            table = f"{OF_KIND.get(kind, '')}relative_positions_{side}s/embeddings"
            if table in variables:
                weights[f"relative_{side}"] = variables[table]
        return weights

    def _values(self, variables, weights):
        names = [variable.path.split("/") for variable in variables]
        return [weights[parts[-2] if parts[-1] == "kernel" else parts[-1]] for parts in names]

    def _state(self, kind, layer):
        """Return the values of the state of a layer: the published centroids and their averages."""
        published = {"centroids": "means", "sums": "ema_means", "counts": "ema_count"}
        arrays = {ours: self.state.get(f"{OF_KIND[kind]}{name}") for ours, name in published.items()}
        return [
            variable.value if arrays.get(variable.name) is None else arrays[variable.name]
            for variable in layer.non_trainable_variables
        ]

    def _strides(self, weights, x):
        query, key, value = (ops.einsum("btd,dnh->bnth", x, weights[side]) for side in ("query", "key", "value"))
        attended = attend_pattern(
            Stride(self.settings["query_shape"][0]), query * self.size**-0.5, key, value, causal=True
        )
        return ops.einsum("bnth,nhd->btd", attended.output, weights["attention_output"])
