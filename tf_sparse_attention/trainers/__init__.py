"""The commands `tsa-train`, `tsa-evaluate`, `tsa-generate` and so on."""

import os

# Before TensorFlow is imported: its C++ code logs processor features and missing GPUs at length.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
