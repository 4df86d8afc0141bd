"""Federated training of real models (extra ``torch``)."""
