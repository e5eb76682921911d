"""Records of runs: values as files, checkpoints, run directories, and the checks that they are intact."""
