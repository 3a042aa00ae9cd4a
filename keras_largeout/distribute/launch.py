"""A cluster on this machine: `python -m keras_largeout.distribute.launch --workers 2 --ps 2 script.py
[args]`.

It starts workers and parameter servers as processes of their own, on free ports of the loopback interface,
and runs the script as the chief, with `TF_CONFIG` set as it would be on a real cluster. What they print is
shown under their names and kept in one file each; a process that dies is named. When the script ends,
everything ends; nothing is left running, however this process ends itself.

Without `--ps` the workers are synchronous hosts: each of them runs the script.

TensorFlow's gRPC does what anyone tells it who reaches a port. Loopback keeps the network out, not the other
users of this machine.
"""

import argparse
import os
import sys

from keras_largeout.distribute.processes.heartbeat import add_heartbeat_option
from keras_largeout.distribute.processes.launcher import LOG_BYTES, HostLauncher, Launcher
from keras_largeout.distribute.processes.log_lines import FORMS
from keras_largeout.distribute.processes.metrics_page import add_metrics_options, prometheus


def main(arguments=None):
    parser = argparse.ArgumentParser(
        prog="python -m keras_largeout.distribute.launch",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--workers", type=int, default=2, help="beside a chief; without --ps: hosts")
    parser.add_argument(
        "--ps", type=int, default=0, help="parameter servers; 0: none, workers train synchronously"
    )
    parser.add_argument("--logs", default="cluster_logs", help="folder for the output of every process")
    parser.add_argument(
        "--max-restarts",
        type=int,
        default=0,
        metavar="N",
        help="how often in total what died is started again: a process, or all hosts together "
        "(default: %(default)s)",
    )
    parser.add_argument("--restarts", type=int, help="the earlier name of --max-restarts, until 0.3")
    parser.add_argument(
        "--log-bytes",
        type=int,
        default=LOG_BYTES,
        help="size at which a file of output becomes NAME.log.1; 0: no limit (default: %(default)s)",
    )
    parser.add_argument(
        "--log-format",
        choices=sorted(FORMS),
        default="text",
        help="json: an object of time, process, level and text a line, on the console and in the files",
    )
    add_heartbeat_option(parser)
    add_metrics_options(parser)
    parser.add_argument("script", help="runs as the chief")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="of the script")
    options = parser.parse_args(arguments)
    if options.restarts is not None:
        print(f"{parser.prog}: `--restarts` is now called `--max-restarts`", file=sys.stderr)
        options.max_restarts = options.restarts
    for name, least in (("workers", 1), ("ps", 0), ("log_bytes", 0), ("max_restarts", 0)):
        if getattr(options, name) < least:
            parser.error(
                f"`--{name.replace('_', '-')}` must be at least {least}. Received: {getattr(options, name)}"
            )
    if not os.path.exists(options.script):
        parser.error(f"`script` must be the path of a script. Received: {options.script}")
    script = [options.script, *options.arguments]
    names = "logs", "max_restarts", "log_bytes", "log_format", "heartbeat_timeout"
    common = {name: getattr(options, name) for name in names}
    if options.metrics_port is not None:
        try:
            prometheus("--metrics-port")
        except ImportError as error:
            parser.error(str(error))
        common["metrics"] = options.metrics_port, options.metrics_address
    if options.ps:
        return Launcher(script, options.workers, options.ps, **common).run()
    return HostLauncher(script, options.workers, **common).run()


if __name__ == "__main__":
    sys.exit(main())
