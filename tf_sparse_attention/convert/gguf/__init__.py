"""Decoders in GGUF files, the format of llama.cpp."""
