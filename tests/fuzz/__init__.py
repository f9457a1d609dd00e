"""Fuzzing of the wire (rules S6, P14): octets no client sends, and whether anybody but their sender notices."""
