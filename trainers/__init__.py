"""Programs around the library, run from the checkout: `python -m trainers.train`, evaluate, generate, export."""

import os

# Before TensorFlow starts: its C++ parts tell of the processor and of missing GPUs at length.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
