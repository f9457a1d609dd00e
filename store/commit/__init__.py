"""The group commit: units, the batch they fill, the statement it becomes, and the driver that sends it."""
