"""AMQP's values and messages in their octets: without SQL, at the bottom, for all packages."""
