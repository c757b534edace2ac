"""The files of `deploy/` are kept in step with the command line: each command is parsed, each config is accepted."""

import shlex
from pathlib import Path

import pytest
import yaml

from headrace.cli.start import parser
from headrace.config.loader import load_settings

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
CONFIGS = sorted([*DEPLOY.glob("config/*.yaml"), *DEPLOY.glob("docker/node*.yaml")])
COMPOSE = yaml.safe_load((DEPLOY / "docker/docker-compose.yml").read_text())
SERVICES = sorted(COMPOSE["services"])


def parsed(words: list[str]) -> str | None:
    """The config file that a `headrace start …` names; a usage error ends the test."""
    assert words[0] == "start"
    config: str | None = parser().parse_args(words[1:]).config
    return config


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_a_node_would_start_with_this_config(path: Path) -> None:
    loaded = load_settings(str(path), {})
    assert loaded.remarks() == []


def test_the_unit_starts_a_node_with_the_config_that_the_page_names() -> None:
    lines = (DEPLOY / "systemd/headrace.service").read_text().splitlines()
    command = next(line for line in lines if line.startswith("ExecStart=")).removeprefix("ExecStart=")
    program, *words = shlex.split(command)
    assert program.endswith("/headrace")
    assert parsed(words) == "/etc/headrace/node.yaml"


def test_the_image_starts_a_node() -> None:
    steps = dict(
        line.split(maxsplit=1)
        for line in (DEPLOY / "docker/Dockerfile").read_text().splitlines()
        if line.startswith(("ENTRYPOINT", "CMD"))
    )
    assert yaml.safe_load(steps["ENTRYPOINT"]) == ["headrace"]
    assert parsed(yaml.safe_load(steps["CMD"])) is None


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_of_the_compose_file_is_a_node_of_one_cluster(name: str) -> None:
    service = COMPOSE["services"][name]
    config = parsed(service["command"])
    mounts = dict(volume.split(":")[:2] for volume in service["volumes"])
    mounted = {there: here for here, there in mounts.items()}
    assert config in mounted
    settings = load_settings(str(DEPLOY / "docker" / mounted[str(config)]), {}).settings
    members = settings.cluster.initial_members
    assert [one.api_addr for one in members] == [f"{other}:9092" for other in SERVICES]
    assert settings.node_id == SERVICES.index(name) + 1
    assert settings.data_dir in mounted, "what it keeps outlives the container"
    gateway = settings.gateway
    doors = {gateway.port: gateway.host, gateway.grpc_port: gateway.grpc_host} if name == "node1" else {}
    published = {int(port.split(":")[-1]) for port in service["ports"]}
    assert published == {*doors, *(one.port for one in settings.listeners if one.name == "OUTSIDE")}
    assert all(host == "0.0.0.0" for host in doors.values()), "loopback is the container's own: nobody gets in there"
    assert service["hostname"] == name


def test_health_is_asked_at_the_address_that_everybody_knows_and_from_this_machine_only() -> None:
    published = [port.split(":") for port in COMPOSE["services"]["node1"]["ports"]]
    (rest,) = [words for words in published if words[-1] == "8080"]
    assert rest == ["127.0.0.1", "8080", "8080"]
    page = (ROOT / "docs/operations/deploy.md").read_text()
    assert "$ curl http://localhost:8080/health" in page
