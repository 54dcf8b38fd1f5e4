"""The commands `tsa-train`, `tsa-evaluate`, `tsa-generate` and so on."""

import os

# Set before the import of TensorFlow, whose C++ code logs processor features and missing GPUs.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
