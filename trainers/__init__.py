"""Programs around the library, run from the checkout: `python -m trainers.train`, evaluate, generate, export."""
