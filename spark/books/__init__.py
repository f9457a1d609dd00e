"""The applications' own books, held against the coordinator's (rules R20 to R25).

A book is described by a TOML file (docs/how-to/reconcile-with-your-books.md). :func:`~spark.books.description.describe`
checks the file, :func:`~spark.books.rows.open_book` the data behind it, both before any work;
:func:`~spark.books.comparison.book_findings` compares a producer's,
:func:`~spark.books.consumption.consumer_findings` a consumer's.

**Which rows are judged.** A book's row belongs to the period by its ``time``; a message as everywhere
(:mod:`spark.period`). Each is looked for on the other side without regard to the period, so that no edge tears them
apart. Nothing younger than ``grace`` is reported.
"""
