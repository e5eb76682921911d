"""Records of runs: values as files, checkpoints, run directories, and whether they are what was written."""
