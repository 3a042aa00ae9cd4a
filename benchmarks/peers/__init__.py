"""One library a file: functions `f(config, data) -> Step`, each timed by `_worker.py` in its own process."""
