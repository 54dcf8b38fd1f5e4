"""PyTorch's attention and public packages on a GPU, for `python -m benchmarks.gpu --torch`.

Measures dense causal attention with fused kernels (`scaled_dot_product_attention`), a window with compiled
`flex_attention`, and installed packages: `local_attention.LocalAttention` (`exact_windowsize` gives the same window as
here) and `routing_transformer`'s `KmeansAttention`, whose clusters select their members among all positions. Cases with
", compiled" use `torch.compile`. Prints the rows as JSON.
"""

import argparse
import json
import sys
from typing import Any

SPAN, NUM_HEADS, HEAD_DIM = 256, 8, 64


def fused(length: int, dtype: Any) -> Any:
    """Return dense causal attention."""
    from torch.nn import functional

    return lambda query, key, value: functional.scaled_dot_product_attention(query, key, value, is_causal=True)


def flex_window(length: int, dtype: Any) -> Any:
    """Return sliding-window attention with `flex_attention`."""
    import torch
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    def sees(batch, head, query, key):
        return (key <= query) & (query - key < SPAN)

    mask = create_block_mask(sees, None, None, length, length, device="cuda")
    attend = torch.compile(flex_attention, dynamic=False)
    return lambda query, key, value: attend(query, key, value, block_mask=mask)


def local_attention(length: int, dtype: Any) -> Any:
    """Return `local_attention.LocalAttention` with the same window."""
    from local_attention import LocalAttention

    layer = LocalAttention(SPAN, causal=True, exact_windowsize=True, autopad=True, use_rotary_pos_emb=False)
    layer = layer.to("cuda", dtype)
    return lambda query, key, value: layer(query, key, value)


def kmeans_attention(length: int, dtype: Any) -> Any:
    """Return `routing_transformer`'s cluster attention with shared queries and keys."""
    from routing_transformer.routing_transformer import KmeansAttention

    layer = KmeansAttention(length // SPAN, SPAN, NUM_HEADS, HEAD_DIM, causal=True, shared_qk=True)
    layer = layer.to("cuda", dtype).eval()  # without centroid updates, as in the core here
    layer.kmeans.initted.fill_(1)
    layer.kmeans.means.normal_()
    return lambda query, key, value: layer(query, query, value)[0]


def compiled(make: Any) -> Any:
    """Return `make` with its result compiled by `torch.compile`."""

    def made(length, dtype):
        import torch

        return torch.compile(make(length, dtype), dynamic=False)

    return made


CASES = {
    "PyTorch dense, fused": fused,
    "PyTorch flex_attention, window": flex_window,
    "local_attention": local_attention,
    "local_attention, compiled": compiled(local_attention),
    "routing_transformer": kmeans_attention,
    "routing_transformer, compiled": compiled(kmeans_attention),
}


def programs_of(case: str, length: int, options: argparse.Namespace) -> dict[str, Any]:
    """Return blocking calls by pass: "forward", and "both" with the backward pass."""
    import torch

    torch.manual_seed(0)
    shape = max(options.tokens // length, 1), NUM_HEADS, length, HEAD_DIM
    dtype = getattr(torch, options.dtype)
    heads = [torch.randn(shape, device="cuda", dtype=dtype, requires_grad=True) for _ in range(3)]
    upstream = torch.randn(shape, device="cuda", dtype=dtype)
    attend = CASES[case](length, dtype)

    def both():
        output = attend(*heads)
        found = torch.autograd.grad(output, heads, upstream.to(output.dtype), allow_unused=True)
        torch.cuda.synchronize()
        return found

    def forward():
        with torch.no_grad():
            output = attend(*heads)
        torch.cuda.synchronize()
        return output

    return {"forward": forward, "both": both}


def rows_of(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return rows in the format of `benchmarks.gpu.rows_of`; "bytes" is the peak above the previous allocation."""
    import torch

    from benchmarks.gpu import median_seconds

    rows = []
    for length in options.lengths:
        for case in CASES:
            try:
                programs = programs_of(case, length, options)
                for run in programs.values():
                    run()
                for name, run in programs.items():
                    (seconds,) = median_seconds([run], options.repeats)
                    before = torch.cuda.memory_allocated()
                    torch.cuda.reset_peak_memory_stats()
                    run()
                    num_bytes = torch.cuda.max_memory_allocated() - before
                    rows.append({"case": case, "length": length, "pass": name, "seconds": seconds, "bytes": num_bytes})
            except Exception as error:  # a missing package or kernel skips only this case
                print(f"skipped: {case}, {length}: {str(error).splitlines()[:1]}", file=sys.stderr, flush=True)
    return rows


def main() -> None:
    """Measure and print the rows."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--lengths", type=int, nargs="+", required=True)
    parser.add_argument("--tokens", type=int, required=True)
    parser.add_argument("--dtype", required=True)
    parser.add_argument("--repeats", type=int, required=True)
    print(json.dumps(rows_of(parser.parse_args())))


if __name__ == "__main__":
    main()
