"""The tests of the client library for Java (clients/java) run against a service of ours."""

from __future__ import annotations

import json
import subprocess
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from store.embedded.running import ROLE, running_url
from tests.fix_clients import maven
from tests.fix_night import by_night
from tests.fix_proxy import Proxy
from tests.fix_service import REPOSITORY, Service
from tests.fix_wire import BeginAt
from tests.readme import blocks


@pytest.mark.rule("X2", "X4", "H8")
@pytest.mark.parametrize("tests", ["SqlTest", by_night("CheckerTest")])
def test_the_client_library_for_java(service: Service, tests: str) -> None:
    with closing(Proxy(running_url(service.data_dir))) as proxy:  # the driver of Java knows no unix sockets
        store = f"jdbc:postgresql://{proxy.url.rpartition('@')[2]}&user={ROLE}"
        place = [f"-Dcoordinator.url={service.url}", f"-Dcoordinator.jdbc={store}"]
        done = maven(REPOSITORY / "clients" / "java", "test", f"-Dtest={tests}", *place)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.night
@pytest.mark.rule("X2")
def test_the_programs_of_the_pages(
    own_service: Service, begin_at: BeginAt, orders_java_classpath: str, tmp_path: Path
) -> None:
    """All are compiled. The one that sells runs, with the table that it takes to be there."""
    store = running_url(own_service.data_dir)
    own_service.cli("address", "add", "orders")
    for page in ("clients/java/README.md", "docs/how-to/post-from-sql.md"):
        for block in blocks((REPOSITORY / page).read_text("utf-8")):
            if block.language == "java":
                name = block.text.split("public class ", 1)[1].split()[0]
                (tmp_path / f"{name}.java").write_text(block.text)
    with closing(Proxy(store)) as proxy, psycopg.connect(store, autocommit=True) as looks:
        looks.execute("create table sale (order_id int primary key, cents int not null)")
        sell = tmp_path / "Sell.java"
        place = f"jdbc:postgresql://{proxy.url.rpartition('@')[2]}&user={ROLE}"
        sell.write_text(sell.read_text().replace("jdbc:postgresql://db.example/coordinator?user=shop", place))
        sources = sorted(path.name for path in tmp_path.glob("*.java"))
        assert sources == ["Answers.java", "Sales.java", "Sell.java"]
        subprocess.run(["javac", "-cp", orders_java_classpath, *sources], cwd=tmp_path, check=True)
        subprocess.run(["java", "-cp", f"{tmp_path}:{orders_java_classpath}", "Sell"], cwd=tmp_path, check=True)
        assert looks.execute("select * from sale").fetchall() == [(4713, 9900)]
    (body,) = begin_at(own_service).receiver("orders", credit=10).bodies()
    assert json.loads(body) == {"order": 4713}
