"""The group commit: units, the batch they fill, the statement it becomes, and who sends it."""
