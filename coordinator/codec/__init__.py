"""Octets of AMQP values and messages, and selectors over them."""
