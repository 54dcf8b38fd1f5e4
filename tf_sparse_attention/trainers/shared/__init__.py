"""What the programs share: from a configuration to data, model and run, and the files of a work folder."""
