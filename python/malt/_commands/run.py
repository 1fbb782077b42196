"""`malt run`: start the ranks of a job on one host or on several, without MPI."""

from __future__ import annotations

import argparse
import errno
import os
import shutil
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

from malt._arguments import variable
from malt._commands import run_options
from malt._errors import ConfigError
from malt._launch import kubernetes
from malt._launch.launcher import Launcher
from malt._launch.options import Options
from malt._recording.recorder_memory import check_writable
from malt._rendezvous import wire
from malt._rendezvous.exposure import exposure

_PYTHON_SUFFIXES = (".py", ".pyw", ".pyc", ".pyz")


def command_line(program: Sequence[str]) -> list[str]:
    """Return the command to execute for `script.py ...`, `-m module ...` or `executable ...`.

    Raises:
        malt.ConfigError: there is no such script, module name or executable.
    """
    name = program[0]
    if name == "-m":
        if len(program) < 2:
            raise ConfigError("-m needs the name of a module")
        return [sys.executable, *program]
    path = Path(name)
    if name.endswith(_PYTHON_SUFFIXES):
        if not path.is_file():
            raise ConfigError(f"there is no script {name}")
        return [sys.executable, *program]
    found = shutil.which(name)
    if found is None and path.is_file():
        if not os.access(path, os.X_OK):
            raise ConfigError(f"{name} is neither a .py file nor executable (chmod +x {name})")
        found = str(path.absolute())
    if found is None:
        raise ConfigError(f"there is no script or executable {name}")
    return [found, *program[1:]]


def _set_recording(options: Options, parsed: argparse.Namespace) -> None:
    """Open what is asked for now, so that a mistake shows before the ranks run."""
    trace = parsed.trace or variable("MALT_TRACE")
    if parsed.otel:
        from malt._watching import opentelemetry  # only here: to start soon otherwise

        opentelemetry.check()
        options.otel = True
    asked = (parsed.record, trace, parsed.report, parsed.metrics, parsed.otel, parsed.tensorboard)
    options.record = any(asked) or parsed.dashboard is not None
    if parsed.tensorboard:
        options.environ["MALT_TENSORBOARD"] = str(Path(parsed.tensorboard).absolute())
    if trace:
        _own_file(trace, "--trace" if parsed.trace else "MALT_TRACE", options.node)
        options.trace = str(Path(trace).absolute())
    if parsed.report:
        options.report = _own_file(parsed.report, "--report", options.node)
    if parsed.metrics is not None:
        options.metrics = _listen("--metrics", parsed.metrics)
    if parsed.dashboard is not None:
        options.dashboard = (
            _listen("--dashboard", parsed.dashboard)
            if parsed.dashboard
            else socket.create_server(("127.0.0.1", 0))
        )


def _own_file(name: str, asked: str, node: int) -> str:
    """Return the node's own file: nodes may share the folder."""
    path = Path(name).absolute()
    if node > 0:
        path = path.with_name(f"{path.stem}.node{node}{path.suffix}")
    check_writable(path, asked)
    return str(path)


def _listen(option: str, address: str) -> socket.socket:
    full = address if address.rpartition(":")[0] else f"127.0.0.1:{address.lstrip(':')}"
    try:
        host, port = wire.parse_address(full, option)
    except ConfigError:
        raise ConfigError(
            f"{option} {address} is not [HOST:]PORT with a port of 1 to 65535, and brackets around "
            "an IPv6 address"
        ) from None
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family)
    except OSError as error:
        reason = (error.strerror or str(error)).partition(" (while")[0]
        hint = {
            errno.EADDRINUSE: "take another port, or end the program that has it",
            errno.EACCES: "take a port of 1024 or more",
        }.get(error.errno or 0, "give an address of this host")
        raise ConfigError(f"{option} {address}: cannot listen there ({reason}); {hint}") from error


def _set_node(options: Options, parsed: argparse.Namespace) -> None:
    """Copy the settings of a job over several hosts; with one host there is nothing to copy."""
    given = {
        name: value
        for name in ("--node-rank", "--rendezvous", "--key-file")
        if (value := getattr(parsed, name[2:].replace("-", "_"))) is not None
    }
    if parsed.nnodes is None and given:
        raise ConfigError(f"{next(iter(given))} is for a job over several hosts: add --nnodes M")
    nodes = range(parsed.nnodes or 1)
    if "--node-rank" in given and given["--node-rank"] not in map(str, nodes):
        raise ConfigError(
            f"--node-rank {given['--node-rank']} is not a node of {len(nodes)}: 0 to {nodes[-1]}"
        )
    if len(nodes) == 1:
        return
    if given.get("--rendezvous", "").partition(":")[0] == "auto":
        _find_node(given, len(nodes))
        options.awaits_name = True
    for name, what in (("--node-rank", "K, 0 to M - 1,"), ("--rendezvous", "HOST:PORT of node 0")):
        if name not in given:
            raise ConfigError(f"--nnodes {len(nodes)} needs {name} {what} too")
    options.nnodes = len(nodes)
    options.node = int(given["--node-rank"])
    options.rendezvous = given["--rendezvous"]
    options.key = _key(given.get("--key-file"))
    if parsed.timeout is not None:
        options.start_seconds = parsed.timeout


def _find_node(given: dict[str, str], nnodes: int) -> None:
    """Put the pod's number, and node 0's address, in the place of `--rendezvous auto`."""
    if "--node-rank" in given:
        raise ConfigError("--rendezvous auto finds the number of the node: leave --node-rank out")
    node, given["--rendezvous"] = kubernetes.find_node(given["--rendezvous"], os.environ)
    if node >= nnodes:
        raise ConfigError(
            f"JOB_COMPLETION_INDEX={node} is not a node of --nnodes {nnodes}: give as many nodes "
            "as the job has completions"
        )
    given["--node-rank"] = str(node)


def _key(path: str | None) -> bytes:
    if path is not None:
        try:
            with Path(path).open("rb") as file:
                text = file.read(1024).decode(errors="replace")
            warning = exposure(path)
        except OSError as error:
            raise ConfigError(f"--key-file {path} cannot be read: {error.strerror}") from error
        key = wire.parse_key(text.strip(), f"--key-file {path}")
        if warning is not None:
            print(f"malt run: warning: {warning}", file=sys.stderr)
        return key
    if not variable("MALT_JOB_KEY"):
        raise ConfigError(
            "several nodes need a key that they share, in MALT_JOB_KEY or --key-file PATH; "
            f"`openssl rand -hex {wire.KEY_BYTES}` makes one"
        )
    return wire.parse_key(variable("MALT_JOB_KEY"), "MALT_JOB_KEY")


def main(arguments: Sequence[str]) -> int:
    """Run the command `malt run` with these arguments; return its exit code."""
    own, program = run_options.split(arguments)
    parsed = run_options.parse(own)
    if parsed.ranks is None:
        run_options.fail("how many ranks? -n N is missing")
    if not program:
        run_options.fail("what to run is missing: a script, -m module or an executable")
    environ = {"PYTHONUNBUFFERED": "1"}
    if not os.environ.get("OMP_NUM_THREADS"):
        environ["OMP_NUM_THREADS"] = str(max(1, len(os.sched_getaffinity(0)) // parsed.ranks))
    if parsed.verbose and not variable("MALT_LOG"):
        environ["MALT_LOG"] = "info"
    if parsed.timeout is not None:
        environ["MALT_TIMEOUT"] = f"{parsed.timeout:g}"
    least, most = (parsed.elastic[0], parsed.elastic[-1]) if parsed.elastic else (1, parsed.ranks)
    if parsed.ranks > most or (parsed.ranks < least and (parsed.nnodes or 1) == 1):
        run_options.fail(f"-n {parsed.ranks} is not within --elastic {least}:{most}")
    options = Options(
        ranks=parsed.ranks,
        keep_going=parsed.keep_going,
        restarts=0 if parsed.elastic and parsed.respawn is None else parsed.respawn,
        elastic=parsed.elastic,
        preload=parsed.preload,
        prefix=parsed.prefix,
        grace_seconds=parsed.grace,
        environ=environ,
        verbose=parsed.verbose,
    )
    try:
        _set_node(options, parsed)
        _set_recording(options, parsed)
        return Launcher(command_line(program), options).run()
    except (ConfigError, OSError) as error:
        run_options.fail(str(error))
    except KeyboardInterrupt:  # while the launcher waited for the other nodes
        return 128 + signal.SIGINT
