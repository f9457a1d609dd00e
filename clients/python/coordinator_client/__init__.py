"""For applications of the transaction coordinator: it needs neither the service nor Spark.

:mod:`coordinator_client.sql` has what an application calls in its own SQL transaction.
:mod:`coordinator_client.checker` answers the checks of a producer group, and needs Qpid Proton.
"""
