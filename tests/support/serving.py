"""A server in a process of its own, as users start it."""

import os
import subprocess
import sys
from contextlib import contextmanager

from support.paths import SOURCE


@contextmanager
def serving(*arguments, folder=".", **environment):
    """Run `chatmill serve` with these arguments; yields its address."""
    with process(*arguments, folder=folder, **environment) as (address, _):
        yield address


@contextmanager
def process(*arguments, folder=".", **environment):
    """Run `chatmill serve` with these arguments; yields its address and process."""
    command = [sys.executable, "-m", "chatmill.app.cli", "serve", "--port", "0", *map(str, arguments)]
    variables = os.environ | {"PYTHONPATH": str(SOURCE)} | environment
    with subprocess.Popen(
        command, cwd=folder, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as server:
        try:
            first = server.stdout.readline()
            if not first.startswith("chatmill: http"):
                raise AssertionError(f"{first}{server.stderr.read()}")
            yield first.split()[1], server
        finally:
            server.terminate()
            try:
                server.communicate(timeout=30)
            except subprocess.TimeoutExpired:
                server.kill()
