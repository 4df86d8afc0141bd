"""Train many clients at once: stacked weights, hand-written gradients, a tile of clients per core.

``merged.engine_for`` picks an engine for a model. Each file is an engine or a part of one:
``chain`` (``Sequential`` of dense and convolution layers), ``text`` (next-word LSTM),
``functional`` (any module under ``torch.func``), ``per_client`` (the reference in threads).
"""
