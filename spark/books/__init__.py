"""Compare the applications' own books with the store (rules R20 to R25).

A book is described by a TOML file (docs/how-to/reconcile-with-your-books.md). :func:`~spark.books.description.describe`
checks the file, :func:`~spark.books.rows.open_book` its data, both before any other work;
:func:`~spark.books.comparison.book_findings` compares a producer's book,
:func:`~spark.books.consumption.consumer_findings` a consumer's.

**Which rows are judged.** A book's row belongs to the period by its ``time``; a message as everywhere
(:mod:`spark.period`). Its counterpart is searched without regard to the period, so that no edge separates
them. Nothing younger than ``grace`` is reported.
"""
