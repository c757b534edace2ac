"""A JVM that runs on while a test does other things: what it says is awaited, and it may be killed."""

import json
import subprocess
import threading
from collections.abc import Callable
from tempfile import TemporaryFile
from types import TracebackType
from typing import Any

from tests.interop.apache_kafka import SHORT_LIVED_JVM, TOOL_SECONDS_MAX, ToolFailed


class Background:
    """`with Background(classpath, main_class, …) as running:`; killed at the end unless it ended by itself."""

    def __init__(self, classpath: str, main_class: str, *arguments: str) -> None:
        self.name = main_class.rpartition(".")[2]
        command = ["java", *SHORT_LIVED_JVM, "-cp", classpath, main_class, *arguments]
        self._errors = TemporaryFile()  # noqa: SIM115 - closed with the process
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=self._errors)
        self._lines: list[str] = []
        self._events: list[dict[str, Any]] = []
        self._said_more = threading.Condition()
        self._ended = False
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        try:
            for line in self._process.stdout:
                event = self._event(line)
                with self._said_more:
                    self._lines.append(line.decode().rstrip("\n"))
                    self._events += event
                    self._said_more.notify_all()
        finally:
            with self._said_more:
                self._ended = True
                self._said_more.notify_all()

    @staticmethod
    def _event(line: bytes) -> list[dict[str, Any]]:
        """What a line of JSON says, if it is one. A kill may cut off the last line: nothing was said by that."""
        return [json.loads(line)] if line.startswith(b"{") and line.endswith(b"\n") else []

    @property
    def lines(self) -> list[str]:
        with self._said_more:
            return list(self._lines)

    @property
    def events(self) -> list[dict[str, Any]]:
        """The lines of a tool that speaks JSON. Each was parsed when it came: who waits looks at all of them often."""
        with self._said_more:
            return list(self._events)

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def wait_for(self, said: Callable[[], bool], timeout: float = TOOL_SECONDS_MAX) -> None:
        """Until `said()`, asked again after each line; ToolFailed if the process ends or time is up before."""
        with self._said_more:
            if self._said_more.wait_for(lambda: self._ended or said(), timeout) and said():
                return
        raise ToolFailed(f"{self.name} did not say it:\n" + "\n".join(self.lines[-50:]) + "\n" + self._error_text())

    def wait(self, timeout: float = TOOL_SECONDS_MAX) -> None:
        """Until it ends by itself, with success."""
        code = self._process.wait(timeout)
        self._reader.join(timeout)
        if code != 0:
            raise ToolFailed(f"{self.name} ended with {code}:\n" + "\n".join(self.lines[-50:]) + self._error_text())

    def terminate(self) -> None:
        """SIGTERM, at which Kafka's tools close their clients in order, and wait for the end."""
        self._process.terminate()
        self._process.wait(TOOL_SECONDS_MAX)
        self._reader.join(TOOL_SECONDS_MAX)

    def kill(self) -> None:
        """kill -9: whatever it had open stays open."""
        self._process.kill()
        self._process.wait()
        self._reader.join(TOOL_SECONDS_MAX)

    def pause(self, seconds: float) -> None:
        """Let it work for a while; ToolFailed if it ends meanwhile."""
        with self._said_more:
            if not self._said_more.wait_for(lambda: self._ended, seconds):
                return
        raise ToolFailed(f"{self.name} ended by itself:\n" + "\n".join(self.lines[-50:]) + "\n" + self._error_text())

    def close(self) -> None:
        """Killed, unless it ended by itself, and its pipes given back."""
        if self.running:
            self.kill()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._errors.close()

    def _error_text(self) -> str:
        self._errors.seek(0)
        return self._errors.read().decode(errors="replace")[-4000:]

    def __enter__(self) -> "Background":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            error.add_note(f"--- {self.name} ---\n" + "\n".join(self.lines[-50:]) + "\n" + self._error_text())
        self.close()
