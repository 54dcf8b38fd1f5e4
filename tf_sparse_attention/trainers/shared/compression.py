"""Compression rates of gzip and xz, a baseline for bits per byte."""

import lzma
import zlib
from collections.abc import Iterable
from typing import Any


def compressed_bits_per_byte(documents: Iterable[bytes]) -> dict[str, float | None]:
    """Compresses the documents, one after the other as one stream, with the programs' best settings.

    Args:
        documents: iterable of `bytes`; never all in memory.

    Returns:
        Dictionary with "gzip -9" and "xz -9", bits per byte; None for no bytes.
    """
    compressors: dict[str, Any] = {"gzip -9": zlib.compressobj(9, wbits=31), "xz -9": lzma.LZMACompressor(preset=9)}
    sizes = dict.fromkeys(compressors, 0)
    num_bytes = 0
    for document in documents:
        num_bytes += len(document)
        for name, compressor in compressors.items():
            sizes[name] += len(compressor.compress(document))
    for name, compressor in compressors.items():
        sizes[name] += len(compressor.flush())
    return {name: 8 * size / num_bytes if num_bytes else None for name, size in sizes.items()}
