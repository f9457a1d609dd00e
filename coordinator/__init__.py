"""The rules of the transactional coordinator, without Proton and without SQL. ``__main__`` is the composition root."""

from store.compiled import choose

choose()
