"""The archive: whole days of ``half`` and ``op`` as Parquet, copied before retention drops them (R35).

A day of a table is a folder, ``half/2026-11-01``, with a manifest that counts and sums its files. The order of steps
makes it safe to stop at any of them: the files are written into a folder with another name, read back and compared with
the table, synced, and renamed; then the store notes it (table ``archived_day``); and only a day that the
store has noted is dropped, if its partition still has the rows that were copied and no others
(:mod:`store.archive.days`).

Rows that retention keeps of a dropped day (messages that were not delivered yet) are in the store and in the copy:
halves and ops never change, so both are equal, and a reader counts such a row once.
"""
