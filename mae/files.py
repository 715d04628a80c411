"""Write files and folders so that they are either whole or not there.

Everything goes to a temporary name in the same directory, is flushed to the disk, and is renamed.
A crash leaves at most a hidden ``*.tmp`` beside the old file, never half a file under its name.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from mae.errors import OutputError

# A full disk is an OSError to Python, a RuntimeError of its zip writer to torch, and an error of
# its own to safetensors; these words tell them from defects.
_DISK_WORDS = ("PytorchStreamWriter", "inline_container", "iostream error", "I/O error")


def atomic_write(path: str | Path, writer: Callable[[Path], object]) -> Path:
    """Write one file through `writer` and put it in place in one step.

    Args:
        path: Final name; an older file there is replaced, missing folders are made.
        writer: Is called with the temporary path and writes the whole file there.

    Returns:
        The final path.

    Raises:
        OutputError: If the directory cannot be written or the disk is full; `path` is untouched.
    """
    final = Path(path)
    temporary = None
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{final.name}.", suffix=".tmp", dir=final.parent)
        os.close(handle)
        temporary = Path(name)
        writer(temporary)
        temporary.chmod(0o666 & ~_umask())  # mkstemp's own mode is for the owner alone
        _sync(temporary)
        temporary.replace(final)
        _sync(final.parent)
    except Exception as error:
        if not _of_the_disk(error):
            raise
        raise _cannot_write(final, error) from error
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)
    return final


@contextmanager
def atomic_folder(path: str | Path, *, overwrite: bool = False) -> Iterator[Path]:
    """Give a temporary folder beside `path` that takes its place when the block ends well.

    Args:
        path: Final name of the folder; missing parents are made.
        overwrite: Replace a folder that is already there.

    Yields:
        The empty folder to fill with files.

    Raises:
        OutputError: If `path` exists and is not to be replaced, or cannot be written.  If the
            block raises, nothing is left and an older folder stays.
    """
    final = Path(path)
    if final.exists() and not overwrite:
        raise OutputError(f"{final} exists already; choose another --out, or add --overwrite")
    temporary = None
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(
            tempfile.mkdtemp(prefix=f".{final.name}.", suffix=".tmp", dir=final.parent)
        )
        yield temporary
        _publish(temporary, final)
    except Exception as error:
        if not _of_the_disk(error):
            raise
        raise _cannot_write(final, error) from error
    finally:
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)


def _publish(temporary: Path, final: Path) -> None:
    """Sync a filled folder and rename it to `final`, in place of what is there."""
    # mkdtemp's own mode, and that of some libraries' files, is for the owner alone.
    temporary.chmod(0o777 & ~_umask())
    for file in temporary.iterdir():
        file.chmod(0o666 & ~_umask())
        _sync(file)
    _sync(temporary)
    if final.exists():  # a folder cannot be renamed over one that holds files
        old = Path(tempfile.mkdtemp(prefix=f".{final.name}.", suffix=".tmp", dir=final.parent))
        final.rename(old / final.name)
        try:
            temporary.rename(final)
        except OSError:
            (old / final.name).rename(final)
            raise
        shutil.rmtree(old, ignore_errors=True)
    else:
        temporary.rename(final)
    _sync(final.parent)


def _of_the_disk(error: Exception) -> bool:
    return isinstance(error, OSError) or any(word in str(error) for word in _DISK_WORDS)


def _cannot_write(path: Path, error: Exception) -> OutputError:
    return OutputError(
        f"cannot write {path}: {error}; free space on that disk, or choose a folder that you may "
        f"write to"
    )


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _umask() -> int:
    """Return the process's umask, which can only be read by setting it."""
    value = os.umask(0)
    os.umask(value)
    return value
