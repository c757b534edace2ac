"""A simulated disk copied as it is: what a cloned virtual machine starts with."""

from headrace.model.errors import MissingFile
from headrace.testing.simulation.files import SimFiles


def copied(files: SimFiles) -> SimFiles:
    copy = SimFiles()
    for name in files.list("/"):
        _copy(files, copy, f"/{name}")
    copy.sync_dir("/")
    copy.operations.clear()
    return copy


def _copy(files: SimFiles, copy: SimFiles, path: str) -> None:
    try:
        names = files.list(path)
    except MissingFile:
        file = copy.open(path, create=True)
        file.append(files.read(path))
        file.sync()
        return
    copy.make_dir(path)
    for name in names:
        _copy(files, copy, f"{path}/{name}")
    copy.sync_dir(path)
