"""What ``benchmarks/bench.py`` measures: a file per concern."""
