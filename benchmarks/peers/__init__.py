"""One library a file: functions `f(config, data) -> Step` that `_worker.py` times in a process of their own."""
