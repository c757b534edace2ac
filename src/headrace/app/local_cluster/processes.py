"""Broker and metadata server processes of a local cluster: start, stop and kill.

A child ends with its parent, even if the parent is killed.
"""

import os
import signal
import subprocess
import sys
import tempfile

from headrace.config.settings import Settings
from headrace.process.child import kill_when_pipe_closes, readable_within

NODE_START_SECONDS_MAX = 30.0  # a start takes about 0.15 s; a host that needs this long is out of memory or stuck
NODE_STOP_SECONDS_MAX = 15.0  # a clean shutdown syncs every open file; after this the disk hangs


class BrokerProcess:
    """A running `python -m headrace.app.node`; the constructor returns when it serves."""

    def __init__(self, settings: Settings, output: int, stop_seconds_max: float = NODE_STOP_SECONDS_MAX) -> None:
        """The broker's output goes to the file `output`; the error of a failed start is read from it."""
        self._stop_seconds_max = stop_seconds_max
        self._said_before = os.fstat(output).st_size
        self._process, ready, self._alive = _spawn(settings, output)
        self.pid = self._process.pid
        try:
            self._wait_until_ready(ready, output)
        except BaseException:
            self.kill()
            raise
        finally:
            os.close(ready)

    def _wait_until_ready(self, ready: int, output: int) -> None:
        line = b""
        while not line.endswith(b"\n"):
            if not readable_within(ready, NODE_START_SECONDS_MAX):
                raise RuntimeError(f"the broker did not start within {NODE_START_SECONDS_MAX:.0f} s")
            chunk = os.read(ready, 4096)
            if not chunk:
                code = self._process.wait()
                said = os.pread(output, os.fstat(output).st_size, self._said_before).decode(errors="replace")
                raise RuntimeError(f"the broker ended with code {code} before it served:\n{said}")
            line += chunk

    def ended_by_itself(self) -> str | None:
        code = self._process.poll()
        return None if code is None else f"exit code {code}"

    def stop(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        try:
            code = self._process.wait(self._stop_seconds_max)
        except subprocess.TimeoutExpired:
            self.kill()
            raise RuntimeError(
                f"the broker did not stop within {self._stop_seconds_max:.0f} s and was killed"
            ) from None
        finally:
            self._let_go()
        if code > 0:
            raise RuntimeError(f"the broker stopped with exit code {code}")

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._let_go()

    def _let_go(self) -> None:
        if self._alive >= 0:
            os.close(self._alive)
            self._alive = -1


def _spawn(settings: Settings, output: int) -> tuple["subprocess.Popen[bytes]", int, int]:
    """Returns the child, the read end of its readiness pipe, and the write end of the pipe whose closing ends it."""
    ready_read, ready_write = os.pipe()
    alive_read, alive_write = os.pipe()
    command = [sys.executable, "-P", "-m", "headrace.app.node"]
    command += ["--settings-json", settings.to_json(), "--ready-fd", str(ready_write)]
    try:
        process = subprocess.Popen(
            command,
            stdin=alive_read,
            stdout=output,
            stderr=output,
            pass_fds=(ready_write,),
            process_group=0,  # Ctrl-C reaches the parent only, which stops the broker in its own order
        )
        kill_when_pipe_closes(alive_read, process.pid)
    except BaseException:
        os.close(ready_read)
        os.close(alive_write)
        raise
    finally:
        os.close(ready_write)
        os.close(alive_read)
    return process, ready_read, alive_write


METADATA_SERVER_START_SECONDS_MAX = 30.0
METADATA_SERVER_STOP_SECONDS_MAX = 15.0


class MetadataProcess:
    """A running `python -m headrace.app.metadata_server`; ends with its parent."""

    def __init__(self, socket_path: str, file: str | None) -> None:
        ready, ready_write = os.pipe()
        alive_read, self._alive = os.pipe()
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `stop`
        command = [sys.executable, "-P", "-m", "headrace.app.metadata_server"]
        command += ["--socket", socket_path, "--ready-fd", str(ready_write)]
        command += [] if file is None else ["--file", file]
        try:
            self._process = subprocess.Popen(
                command,
                stdin=alive_read,
                stdout=self._output,
                stderr=self._output,
                pass_fds=(ready_write,),
                process_group=0,
            )
            kill_when_pipe_closes(alive_read, self._process.pid)
        finally:
            os.close(ready_write)
            os.close(alive_read)
        self.pid = self._process.pid
        try:
            self._wait_until_ready(ready)
        finally:
            os.close(ready)

    def _wait_until_ready(self, ready: int) -> None:
        is_ready = readable_within(ready, METADATA_SERVER_START_SECONDS_MAX) and bool(os.read(ready, 64))
        if not is_ready:
            self._process.kill()
            self._process.wait()
            self._output.seek(0)
            said = self._output.read().decode(errors="replace")
            self._let_go()
            raise RuntimeError(f"the metadata server did not start:\n{said}")

    def ended_by_itself(self) -> str | None:
        code = self._process.poll()
        return None if code is None else f"exit code {code}"

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._let_go()

    def stop(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(METADATA_SERVER_STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._let_go()

    def _let_go(self) -> None:
        os.close(self._alive)
        self._output.close()
