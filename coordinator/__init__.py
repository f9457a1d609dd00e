"""The rules of the transactional coordinator; neither Proton nor SQL. ``__main__`` is the composition root."""
