"""``coterie data``: data sets of the Hugging Face hub as files that Coterie reads, later also without a network.

``copying.py`` reads a data set through flwr-datasets (``pip install 'coterie[hub]'``) and writes the
files; ``command.py`` is the command. This module imports nothing, so that help appears immediately.
"""
