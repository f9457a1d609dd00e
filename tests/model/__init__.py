"""Random histories against a small model: in one process on a real store, and again through the wire."""
