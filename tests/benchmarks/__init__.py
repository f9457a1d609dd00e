"""Figures: how fast, how late and at what cost. Not part of the tests; ``make bench`` runs them."""
