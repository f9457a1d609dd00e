"""A worker's life: become an instance of the store, serve until told to stop, and leave nothing held."""

from __future__ import annotations

import signal
import socket
import time
from collections.abc import Callable

import structlog

from coordinator.addresses import AddressPolicy
from coordinator.errors import Condition
from coordinator.service import Service
from coordinator.settings import Settings
from links.connection import Connection
from links.reactor import Reactor

log = structlog.get_logger(__name__)
