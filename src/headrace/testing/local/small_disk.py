"""A small disk that tests can fill up: a tmpfs, which only root may mount."""

import os
import subprocess

BALLAST = "ballast"
CHUNK = bytes(1024 * 1024)


def mount_small_disk(folder: str, size_bytes: int) -> None:
    os.makedirs(folder, exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", folder]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise PermissionError(f"a small disk needs the right to mount a tmpfs: {done.stderr.strip()}")


def unmount(folder: str) -> None:
    if os.path.ismount(folder):
        subprocess.run(["umount", "--lazy", folder], check=True)


def fill_disk(folder: str) -> None:
    """Fills the disk to the last byte."""
    with open(os.path.join(folder, BALLAST), "wb", buffering=0) as file:
        try:
            while True:
                file.write(CHUNK)
        except OSError:
            return


def free_disk(folder: str) -> None:
    os.remove(os.path.join(folder, BALLAST))
