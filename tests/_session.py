"""What the processes of one session (pytest-xdist) share."""

import fcntl


def once(config, name, make):
    """Return a folder of the session into which `make(folder)` has written.

    The first process that asks calls `make`; the others wait for it. If `make` fails, the next one tries.
    """
    base = config._tmp_path_factory.getbasetemp()
    # Processes of one session have folders side by side.
    folder = (base.parent if hasattr(config, "workerinput") else base) / name
    made = folder.with_name(f"{name}.made")
    with open(folder.with_name(f"{name}.lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            folder.mkdir(exist_ok=True)
            make(folder)
            made.touch()
    return folder
