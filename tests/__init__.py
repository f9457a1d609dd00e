"""Tests: unit (pure), integration (real PostgreSQL), acceptance (the service as a process), migration, benchmarks."""
