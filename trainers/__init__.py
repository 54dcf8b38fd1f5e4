"""Programs around the library, run from the checkout: `python -m trainers.train`, evaluate, generate, export."""

import os

# Before TensorFlow is imported: its C++ code logs processor features and missing GPUs at length.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
