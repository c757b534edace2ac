"""Ports of REST and gRPC: chosen ones are taken or refused, others move to the next free one."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace

import pytest

from headrace.app import sidecars
from headrace.app.sidecars import PORT_RETRY_S, PORT_RETRY_S_MAX, bind_api_sockets, open_with_retries
from headrace.config.loader import load_settings
from headrace.config.settings import GatewaySettings
from headrace.process.sockets import LOOPBACK
from headrace.process.supervisor import PortTaken


@pytest.fixture
def row() -> Iterator[list[socket.socket]]:
    """Five neighboring ports, which listen."""
    with ExitStack() as held:
        while True:
            first = held.enter_context(socket.create_server((LOOPBACK, 0)))
            port = first.getsockname()[1]
            try:
                others = [held.enter_context(socket.create_server((LOOPBACK, port + more))) for more in range(1, 5)]
            except (OSError, OverflowError):
                continue
            yield [first, *others]
            return


def ports_of(row: list[socket.socket]) -> list[int]:
    return [one.getsockname()[1] for one in row]


def settings(port: int, **changes: object) -> GatewaySettings:
    return replace(GatewaySettings(port=port, grpc_port=0), **changes)


def test_a_port_that_no_setting_names_moves_past_those_in_use(row, caplog):
    ports = ports_of(row)
    row[3].close()
    caplog.set_level("INFO")
    doors = bind_api_sockets(settings(ports[0], port_moves=True))
    try:
        assert doors.addresses()["http"] == [LOOPBACK, ports[3]]
    finally:
        doors.close()
    assert f"Port {ports[0]} is in use; REST takes the next free one, {ports[3]}" in caplog.text


def test_a_moving_port_leaves_out_those_of_brokers(row):
    ports = ports_of(row)
    for one in row[2:4]:
        one.close()
    doors = bind_api_sockets(GatewaySettings(port=0, grpc_port=ports[0], grpc_port_moves=True), broker_ports={ports[2]})
    try:
        assert doors.addresses()["grpc"] == [LOOPBACK, ports[3]]
    finally:
        doors.close()


def test_a_chosen_port_that_is_in_use_is_refused(row, monkeypatch):
    monkeypatch.setattr(sidecars, "PORT_RETRY_S_MAX", 0.0)
    with pytest.raises(PortTaken, match="is taken by another program; choose another with --http"):
        bind_api_sockets(settings(ports_of(row)[0]))


def test_no_free_port_is_told_of_the_first(row, monkeypatch):
    monkeypatch.setattr(sidecars, "PORTS_TRIED", 4)
    with pytest.raises(PortTaken, match=f":{ports_of(row)[0]} is taken"):
        bind_api_sockets(settings(ports_of(row)[0], port_moves=True))


def test_ports_move_only_if_no_setting_names_them():
    assert load_settings(None, {}).settings.gateway.port_moves
    chosen = load_settings(None, {"HEADRACE_PORT": "8080"}, [("grpc.port", "9090", "--grpc: ")]).settings.gateway
    assert (chosen.port_moves, chosen.grpc_port_moves) == (False, False)


def test_grpc_makes_way_for_a_rest_port_that_was_chosen(row):
    _, port, _, free, _ = ports_of(row)
    row[1].close()
    row[3].close()
    doors = bind_api_sockets(GatewaySettings(port=port, grpc_port=port, grpc_port_moves=True))
    try:
        assert (doors.addresses()["http"][1], doors.addresses()["grpc"][1]) == (port, free)
    finally:
        doors.close()


def test_configured_port_of_a_killed_node_is_retried() -> None:
    slept: list[float] = []
    opened = socket.socket()

    def open_port() -> socket.socket:
        if len(slept) < 3:
            raise PortTaken("in use")
        return opened

    assert open_with_retries(open_port, slept.append) is opened
    assert slept == [PORT_RETRY_S] * 3
    opened.close()


def test_configured_port_in_use_is_reported_after_the_retries() -> None:
    slept: list[float] = []

    def open_port() -> socket.socket:
        raise PortTaken("in use")

    with pytest.raises(PortTaken):
        open_with_retries(open_port, slept.append)
    assert sum(slept) == pytest.approx(PORT_RETRY_S_MAX)
