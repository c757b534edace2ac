"""MemoryFiles is used by the event loop and by threads at once."""

import threading

import pytest

from headrace.storage.io.memory_file_system import MemoryFiles


class PausingDict(dict[str, object]):
    """Lets the other thread change the directories between two steps of an iteration, as the interpreter may."""

    def __init__(self, lock: threading.Lock, reached: threading.Event, changed: threading.Event) -> None:
        super().__init__()
        self.lock, self.reached, self.changed = lock, reached, changed

    def __iter__(self):  # type: ignore[no-untyped-def]  # as dict's
        for at, key in enumerate(super().__iter__()):
            if at == 1 and not self.reached.is_set():
                self.reached.set()
                if not self.lock.locked():
                    self.changed.wait()
            yield key


CHANGES = {
    "make_dir": lambda files: files.make_dir("/data/new"),
    "replace": lambda files: files.replace("/other/new", b""),
    "open": lambda files: files.open("/fresh/new", create=True),
    "rename": lambda files: files.rename("/data/t-3", "/data/t-3.x-delete"),
    "remove_tree": lambda files: files.remove_tree("/data/t-3"),
}
WALKS = {
    "list": lambda files: files.list("/data"),
    "remove_tree": lambda files: files.remove_tree("/data/t-1"),
}


@pytest.mark.parametrize("walk", WALKS)
@pytest.mark.parametrize("change", CHANGES)
def test_change_by_another_thread_waits_for_a_walk_over_the_directories(walk: str, change: str) -> None:
    files, reached, changed = MemoryFiles(), threading.Event(), threading.Event()
    files._dirs = PausingDict(files._lock, reached, changed)  # type: ignore[assignment]
    for index in range(5):
        files.make_dir(f"/data/t-{index}")

    def change_now() -> None:
        reached.wait()
        CHANGES[change](files)
        changed.set()

    thread = threading.Thread(target=change_now)
    thread.start()
    try:
        WALKS[walk](files)
    finally:
        reached.set()
        thread.join()
    assert changed.is_set()
