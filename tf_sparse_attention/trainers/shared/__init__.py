"""Code that the commands share: data, model and run of a configuration, and the files of a run directory."""
