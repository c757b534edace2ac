"""The embedded metadata of a cluster on one machine, in a process of its own: started, stopped."""

import os
import subprocess
import sys
import tempfile

from headrace.app.child import end_with_writer, readable_within

START_SECONDS_MAX = 30.0
STOP_SECONDS_MAX = 15.0


class MetadataProcess:
    """`python -m headrace.app.metadata_server`, from the moment it serves. It ends with its parent."""

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
            end_with_writer(alive_read, self._process.pid)
        finally:
            os.close(ready_write)
            os.close(alive_read)
        self.pid = self._process.pid
        try:
            self._wait_until_ready(ready)
        finally:
            os.close(ready)

    def _wait_until_ready(self, ready: int) -> None:
        is_ready = readable_within(ready, START_SECONDS_MAX) and bool(os.read(ready, 64))
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
            self._process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._let_go()

    def _let_go(self) -> None:
        os.close(self._alive)
        self._output.close()
