# SPDX-License-Identifier: Apache-2.0
"""The glue between a plugin and the world "plugin" of sdk/wit: it loads the author's module when the plugin is built, and
makes of exceptions what the host shows."""

import importlib.util
import json
import os
import sys
import traceback

import componentize_py_types
import wit_world
from wit_world.imports import host as wit_host

import wasmplane

HERE = os.path.dirname(os.path.abspath(__file__))
spec = importlib.util.find_spec("main")
if spec is None or spec.origin is None:
    raise ImportError("the plugin has no main.py")
ROOT = os.path.dirname(os.path.abspath(spec.origin))
SOURCES = {}  # lines by file, as the files are out of reach later


def place(filename):
    """The name of a file of the author's, or None."""
    path = os.path.abspath(filename)
    if os.path.dirname(path) == HERE or not path.startswith(ROOT + "/"):
        return None
    return path[len(ROOT) + 1:]


def line_of(file, number):
    """A line of a file of the author's."""
    if file not in SOURCES:
        try:
            with open(os.path.join(ROOT, file), encoding="utf-8") as f:
                SOURCES[file] = f.read().splitlines()
        except OSError:
            SOURCES[file] = []
    lines = SOURCES[file]
    return lines[number - 1].strip() if number and 0 < number <= len(lines) else ""


def told(error):
    """An exception, and the author's lines that led to it, the last one first."""
    if isinstance(error, SyntaxError) and error.filename and (file := place(error.filename)):
        lines = [f"{type(error).__name__}: {error.msg}", f"  at {file}:{error.lineno}:{error.offset}: {line_of(file, error.lineno)}"]
    else:
        lines = ["".join(traceback.format_exception_only(error)).strip()]
    for frame, number in reversed(list(traceback.walk_tb(error.__traceback__))):
        if (file := place(frame.f_code.co_filename)) is not None:
            lines.append(f"  at {file}:{number} in {frame.f_code.co_name}: {line_of(file, number)}")
    return "\n".join(lines[:12])


def host_call(name, input):
    try:
        return wit_host.call(name, input)
    except componentize_py_types.Err as e:
        raise wasmplane.HostError(e.value.value, isinstance(e.value, wit_host.CallError_Refused)) from None


# A line is one line of the log: this Python would write its parts one by one.
for stream in (sys.stdout, sys.stderr):
    stream.reconfigure(line_buffering=True, write_through=False)
wasmplane.on_call(host_call)
try:
    import main  # the author's, after its host

    plugin = getattr(main, "plugin", None)
    if not isinstance(plugin, wasmplane.Plugin):
        raise TypeError('main.py has no variable plugin: plugin = Plugin("my-plugin", "0.1.0")')
    wasmplane.dumps(plugin.manifest())  # what is wrong with it is said now
except BaseException as e:
    raise ImportError("\n" + told(e) + "\n;") from None

for module in list(sys.modules.values()):
    if (path := getattr(module, "__file__", None)) and (name := place(path)):
        line_of(name, 1)


decode = json.JSONDecoder().decode


class WitWorld(wit_world.WitWorld):
    def describe(self):
        return wasmplane.dumps(plugin.manifest())

    def call(self, operation, input):
        try:
            answer = plugin.ask(operation, decode(str(input, "utf-8")) if input else None)
            return None if answer is None else wasmplane.dumps(answer).encode()
        except wasmplane.Failure as e:
            message = str(e)
        except BaseException as e:  # an exit, too, is an error of this call
            message = told(e)
        finally:
            sys.stdout.flush()  # what has no line end
        raise componentize_py_types.Err(message)
