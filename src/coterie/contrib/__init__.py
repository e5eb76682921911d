"""Extensions that come with Coterie: each registers by entry points, as those of other packages do.

Nothing outside of this folder imports it. :mod:`coterie.extensions` finds what is registered.
"""
