"""Programs around the library: `python -m trainers.train`, evaluate, generate and so on; installed, `tsa-train`."""

import os

# Before TensorFlow is imported: its C++ code logs processor features and missing GPUs at length.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
