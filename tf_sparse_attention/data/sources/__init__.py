"""Data sets of text, pairs, labels, speech, images and audio: TFDS, folders and files."""
