"""Small nets with BatchNorm and with an LSTM, for runs in which nobody differs."""

from functools import partial

from coterie.models.nets import Conv, convolutional, next_word

# 1,946 parameters on 8 x 8, BatchNorm after all layers but the last.
normed = partial(convolutional, convs=[Conv(8, 3, 1, True), Conv(16, 3, 1, True)], norm=True)

# CFL's two-layer LSTM with a quarter of its width: 155,368 parameters with 1,000 words.
words = partial(next_word, embedding=32, hidden=64)
