"""Reports: pure functions of run directories, made again at any time without training."""
