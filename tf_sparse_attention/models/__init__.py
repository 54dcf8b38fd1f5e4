"""Models built from the layers, and the presets they are made from."""
