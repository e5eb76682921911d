"""Clients' data from a name or a folder: data sets, partitions over clients, and shifts between groups of clients."""
