# SPDX-License-Identifier: Apache-2.0

"""Renames the export _start of a module to _initialize, in place: a plugin is a library, and a command's start makes it ready.
Usage: python3 initialize.py FILE.wasm"""
import sys


def number(b, at):
    value = shift = 0
    while True:
        byte = b[at]
        at, value, shift = at + 1, value | (byte & 127) << shift, shift + 7
        if byte < 128:
            return value, at


def encoded(n):
    out = b""
    while n > 127:
        out, n = out + bytes([n & 127 | 128]), n >> 7
    return out + bytes([n])


def exports(b):
    count, at = number(b, 0)
    out = encoded(count)
    for _ in range(count):
        length, at = number(b, at)
        name, kind = b[at : at + length], b[at + length]
        index, at = number(b, at + length + 1)
        name = b"_initialize" if name == b"_start" else name
        out += encoded(len(name)) + name + bytes([kind]) + encoded(index)
    return out


with open(sys.argv[1], "rb") as f:
    module = f.read()
out, at = module[:8], 8
while at < len(module):
    section = module[at]
    length, at = number(module, at + 1)
    body = module[at : at + length]
    body = exports(body) if section == 7 else body
    out, at = out + bytes([section]) + encoded(len(body)) + body, at + length
with open(sys.argv[1], "wb") as f:
    f.write(out)
