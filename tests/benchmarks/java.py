"""The programs in Java: brokers that are measured beside the service, loads by Qpid JMS and by RocketMQ's clients."""

from __future__ import annotations

import shutil
import subprocess

from tests.benchmarks.generator import REPOSITORY, GeneratorFailed, Program

_SOURCE = REPOSITORY / "tests" / "benchmarks" / "java"
_BUILT = REPOSITORY / "build" / "peers"
_HEAP = "-Xmx2g"


def build() -> None:
    """Compile them with Maven, which fetches the brokers the first time.

    :raises GeneratorFailed: when there is no Maven, or it fails.
    """
    if shutil.which("mvn") is None or shutil.which("java") is None:
        raise GeneratorFailed("peers need a JDK 17 and Maven: .ci/bootstrap test installs them where root may")
    done = subprocess.run(
        ["mvn", "-q", "-B", f"-Dpeers.build={_BUILT}", "process-classes"],
        cwd=_SOURCE,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise GeneratorFailed(f"mvn in {_SOURCE.relative_to(REPOSITORY)} failed: {done.stdout[-2000:].strip()}")


def command(module: str, main: str) -> Program:
    """What starts a program; its arguments follow."""
    folder = _BUILT / module
    return (
        *("java", _HEAP, "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"),
        *("-cp", f"{folder / 'classes'}:{_BUILT / 'load' / 'classes'}:{folder / 'lib'}/*", main),
    )


#: Apache ActiveMQ Artemis.
ARTEMIS = command("artemis", "bench.Artemis")

#: Apache Qpid Broker-J.
BROKER_J = command("brokerj", "bench.BrokerJ")

#: Apache RocketMQ, and the load of its own clients: it does not speak AMQP 1.0.
ROCKETMQ = command("rocketmq", "bench.RocketMq")
ROCKETMQ_LOAD = command("rocketmq", "bench.RocketLoad")

#: A load as applications on Qpid JMS make it, with one transaction at a time on each connection.
JMS_LOAD = command("jms", "bench.JmsLoad")
