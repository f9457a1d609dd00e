"""A cluster and Compose know what the manifests of examples/ ask of them, and the service has what these name."""

from __future__ import annotations

import http.client
import json
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urlsplit

import pytest

from coordinator.settings import AMQP, HTTP, PREFIX, Settings, endpoint, load
from tests.fix_service import PATIENCE, running_service
from tests.rules import ROOT

CONTAINER = ROOT / "examples" / "container"
OWN = ROOT / "examples" / "kubernetes" / "own-database"
GIVEN = ROOT / "examples" / "kubernetes" / "given-database"
# Their validators are fetched by their lock file.
pytestmark = [pytest.mark.night, pytest.mark.rule("S12")]

Document = dict[str, Any]


def _with_tools(*arguments: str, given: str = "") -> str:
    """What a command says in an environment of requirements/manifests.txt."""
    uv = str(Path(sys.executable).with_name("uv"))
    options = ["--quiet", "--no-project", "--no-config", "--python", sys.executable]
    command = [uv, "run", *options, "--with-requirements", "requirements/manifests.txt", *arguments]
    done = subprocess.run(command, cwd=ROOT, input=given, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def _parsed(text: str) -> list[Document]:
    program = "import json, sys, yaml; print(json.dumps(list(yaml.safe_load_all(sys.stdin))))"
    found: list[Document] = json.loads(_with_tools("python", "-c", program, given=text))
    return found


def _built(folder: Path) -> str:
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not there")
    return subprocess.run(["kubectl", "kustomize", folder], capture_output=True, text=True, check=True).stdout


def _of_kind(kind: str, documents: list[Document]) -> Document:
    (found,) = (each for each in documents if each["kind"] == kind)
    return found


@pytest.fixture(scope="module", params=[OWN, GIVEN], ids=lambda folder: folder.name)
def built(request: pytest.FixtureRequest) -> str:
    return _built(request.param)


@pytest.fixture(scope="module")
def documents(built: str) -> list[Document]:
    return _parsed(built)


def test_a_cluster_takes_them(built: str, tmp_path: Path) -> None:
    file = tmp_path / "built.yaml"
    file.write_text(built)
    said = _with_tools("kubernetes-validate", "--strict", str(file))
    assert "passed for resource statefulset/coordinator" in said


def test_no_process_is_root_or_writes_outside_of_its_volumes(documents: list[Document]) -> None:
    pods = [each["spec"]["template"]["spec"] for each in documents if each["kind"] in ("StatefulSet", "Job")]
    assert pods
    for pod in pods:
        assert pod["securityContext"]["runAsNonRoot"]
        assert not pod["automountServiceAccountToken"]
        for container in pod["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "capabilities": {"drop": ["ALL"]},
                "readOnlyRootFilesystem": True,
            }


@pytest.mark.parametrize("name", [OWN.name, GIVEN.name])
def test_every_pod_has_the_image_that_is_written_into_its_form(name: str, tmp_path: Path) -> None:
    """A tag that looks like a number is one of text, in quotes."""
    folder = shutil.copytree(OWN.parent, tmp_path / "kubernetes") / name
    file = folder / "kustomization.yaml"
    text = file.read_text("utf-8").replace("newName: registry.example/coordinator", "newName: ours.example/amqp")
    file.write_text(text.replace('newTag: "0.1.0"', 'newTag: "9.9"'), "utf-8")
    images = re.findall(r"\bimage: (\S+)", _built(folder))
    assert images
    assert set(images) == {"ours.example/amqp:9.9"}


def test_its_ports_probes_and_files_are_those_of_its_settings(documents: list[Document]) -> None:
    settings = load(config=OWN / "coordinator.toml")
    pod = _of_kind("StatefulSet", documents)["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    ports = {each["name"]: each["containerPort"] for each in container["ports"]}
    assert settings.metrics.listen is not None
    metrics = endpoint(settings.metrics.listen, HTTP)
    assert ports == {"amqps": endpoint(settings.listen[0], AMQP).port, "metrics": metrics.port}
    probes = {name: container[name]["httpGet"] for name in ("startupProbe", "livenessProbe", "readinessProbe")}
    assert {(each["port"], each["scheme"].lower()) for each in probes.values()} == {("metrics", metrics.scheme)}
    served = {each["targetPort"] for each in _all_ports(documents)}
    assert served == set(ports)
    mounts = [PurePosixPath(each["mountPath"]) for each in container["volumeMounts"]]
    for file in (settings.tls.certificate, settings.tls.key, settings.metrics.token):
        assert any(PurePosixPath(str(file)).is_relative_to(each) for each in mounts), file
    for variable in container.get("env", ()):
        assert variable["name"].removeprefix(PREFIX).lower() in Settings.model_fields
        assert any(PurePosixPath(variable["value"]).is_relative_to(each) for each in mounts)
    text = (CONTAINER / "Containerfile").read_text("utf-8")
    for name in ("COORDINATOR_CONFIG", "VOLUME"):
        found = re.search(rf"{name}[= ](\S+)", text)
        assert found is not None
        assert any(PurePosixPath(found[1]).is_relative_to(each) for each in mounts), found[1]


def _all_ports(documents: list[Document]) -> list[Document]:
    return [port for each in documents if each["kind"] == "Service" for port in each["spec"]["ports"]]


def test_a_running_service_answers_the_probes() -> None:
    (statefulset,) = _parsed((OWN / "statefulset.yaml").read_text("utf-8"))
    (container,) = statefulset["spec"]["template"]["spec"]["containers"]
    paths = {container[name]["httpGet"]["path"] for name in ("startupProbe", "livenessProbe", "readinessProbe")}
    assert paths == {"/healthz", "/readyz"}
    with running_service({"metrics.listen": "http://127.0.0.1:0"}) as service:
        place = urlsplit(service.wait_for(lambda line: line.get("event") == "metrics")["listen"][0])
        for path in sorted(paths):
            deadline = time.monotonic() + PATIENCE
            while (status := _status(place.port or 0, path)) != 200:
                assert (path, status) == ("/readyz", 503)
                assert time.monotonic() < deadline
                time.sleep(0.2)


def _status(port: int, path: str) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    finally:
        connection.close()


def test_the_service_may_be_disrupted_where_another_is_ready() -> None:
    documents = _parsed(_built(GIVEN))
    statefulset, budget = _of_kind("StatefulSet", documents), _of_kind("PodDisruptionBudget", documents)
    assert budget["spec"]["selector"] == statefulset["spec"]["selector"]
    assert 0 < budget["spec"]["minAvailable"] < statefulset["spec"]["replicas"]
    assert "volumeClaimTemplates" not in statefulset["spec"]


@pytest.mark.skipif(shutil.which("podman") is None, reason="podman is not there")
def test_compose_takes_its_files_and_they_fit_its_settings() -> None:
    files = [f"--file={CONTAINER / name}" for name in ("compose.yaml", "compose.database.yaml")]
    (composed,) = _parsed(_with_tools("podman-compose", *files, "config"))
    service = composed["services"]["coordinator"]
    settings = load(config=CONTAINER / "coordinator.toml")
    port = endpoint(settings.listen[0]).port
    assert service["ports"] == [f"{port}:{port}"]
    secrets = {f"/run/secrets/{name}" for name in composed["secrets"]}
    variables = dict(service["environment"])
    assert secrets == {str(settings.tls.certificate), str(settings.tls.key), *variables.values()}
    assert [name.removeprefix(PREFIX).lower() for name in variables] == ["database_url_file"]
    assert f"'{settings.metrics.listen}/healthz'" in service["healthcheck"]["test"][-1]
