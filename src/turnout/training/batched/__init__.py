"""Training many clients at once: stacked weights, hand-written gradients, one client tile a core.

``fast.FastTrainer`` picks an engine for the model. Each file is one engine or one of its parts:
``chain`` (``Sequential`` of dense and convolution layers), ``text`` (next-word LSTM),
``functional`` (any module under ``torch.func``), ``copies`` (the reference in threads).
"""
