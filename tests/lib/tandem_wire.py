"""The client protocol in plain Python: frames, protobuf, fd passing.

The messages are read from proto/tandem.proto itself, so the tests follow the schema of the tree and a change of it
needs no change here. It knows the part of proto3 that the file uses (scalars, strings, bytes, enums,
messages, repeated, oneof) and nothing else: no maps, no groups, no services.
"""
import array
import os
import re
import select
import socket
import struct
import time

TREE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
SCALARS = {"uint32": VARINT, "uint64": VARINT, "bool": VARINT, "int32": VARINT, "int64": VARINT,
           "double": FIXED64, "float": FIXED32, "string": BYTES, "bytes": BYTES}


class Field:
    def __init__(self, name, kind, number, repeated):
        self.name, self.kind, self.number, self.repeated = name, kind, number, repeated


class Schema:
    """Messages and enums of one .proto file."""

    def __init__(self, path):
        with open(path, encoding="utf-8") as f:
            text = re.sub(r"//[^\n]*", "", f.read())
        self.messages, self.enums = {}, {}
        for kind, name, body in self._blocks(text):
            if kind == "enum":
                self.enums[name] = {int(n): k for k, n in re.findall(r"(\w+)\s*=\s*(\d+)\s*;", body)}
            else:
                self.messages[name] = self._fields(body)

    @staticmethod
    def _blocks(text):
        for m in re.finditer(r"\b(message|enum)\s+(\w+)\s*\{", text):
            depth, at = 1, m.end()
            while depth:
                depth += {"{": 1, "}": -1}.get(text[at], 0)
                at += 1
            yield m.group(1), m.group(2), text[m.end():at - 1]

    @staticmethod
    def _fields(body):
        body = re.sub(r"oneof\s+\w+\s*\{|\}", "", body)
        fields = [Field(n, k, int(num), bool(r))
                  for r, k, n, num in re.findall(r"(repeated\s+)?(\w+)\s+(\w+)\s*=\s*(\d+)\s*;", body)]
        return {f.name: f for f in fields}

    def encode(self, message, values):
        out = bytearray()
        fields = self.messages[message]
        for name, value in values.items():
            field = fields[name]
            if value is None:
                continue
            if field.repeated and field.kind in SCALARS and SCALARS[field.kind] == VARINT:
                out += varint(field.number << 3 | BYTES) + blob(b"".join(varint(int(v)) for v in value))
                continue
            for v in value if field.repeated else [value]:
                out += self._encode_one(field, v)
        return bytes(out)

    def _encode_one(self, field, v):
        if field.kind in self.messages:
            return varint(field.number << 3 | BYTES) + blob(self.encode(field.kind, v))
        wire = SCALARS.get(field.kind, VARINT)
        tag = varint(field.number << 3 | wire)
        if wire == VARINT:
            return tag + varint(int(v))
        if wire == FIXED64:
            return tag + struct.pack("<d", v)
        if wire == FIXED32:
            return tag + struct.pack("<f", v)
        return tag + blob(v.encode() if isinstance(v, str) else v)

    def decode(self, message, data):
        fields = {f.number: f for f in self.messages[message].values()}
        out = {f.name: [] for f in fields.values() if f.repeated}
        at = 0
        while at < len(data):
            key, at = read_varint(data, at)
            wire, field = key & 7, fields.get(key >> 3)
            if wire == VARINT:
                raw, at = read_varint(data, at)
            elif wire == FIXED64:
                raw, at = data[at:at + 8], at + 8
            elif wire == FIXED32:
                raw, at = data[at:at + 4], at + 4
            elif wire == BYTES:
                n, at = read_varint(data, at)
                raw, at = data[at:at + n], at + n
            else:
                raise ValueError(f"wire type {wire} in {message}")
            if field is None:
                continue
            for v in self._values(field, wire, raw):
                if field.repeated:
                    out[field.name].append(v)
                else:
                    out[field.name] = v
        return out

    def _values(self, field, wire, raw):
        kind = field.kind
        if kind in self.messages:
            yield self.decode(kind, raw)
        elif kind == "double":
            yield struct.unpack("<d", raw)[0]
        elif kind == "float" and wire == FIXED32:
            yield struct.unpack("<f", raw)[0]
        elif kind == "float":
            yield from struct.unpack(f"<{len(raw) // 4}f", raw)
        elif kind == "string":
            yield raw.decode()
        elif kind == "bytes":
            yield bytes(raw)
        elif wire == BYTES:
            at = 0
            while at < len(raw):
                v, at = read_varint(raw, at)
                yield v
        elif kind in self.enums:
            yield self.enums[kind].get(raw, raw)
        else:
            yield bool(raw) if kind == "bool" else raw


def varint(v):
    out = bytearray()
    while v > 0x7F:
        out.append(v & 0x7F | 0x80)
        v >>= 7
    out.append(v)
    return bytes(out)


def read_varint(data, at):
    v = shift = 0
    while True:
        b = data[at]
        v |= (b & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if not b & 0x80:
            return v, at


def blob(data):
    return varint(len(data)) + data


SCHEMA = Schema(os.path.join(TREE, "proto", "tandem.proto"))


class Refused(Exception):
    """The daemon answered with an Error."""

    def __init__(self, error):
        self.code, self.message = error.get("code", ""), error.get("message", "")
        super().__init__(f"{self.code}: {self.message}")


class Closed(Exception):
    """The daemon hung up."""


class Wire:
    """One connection. Requests have numbers and replies are sorted by them, so many jobs can share it."""

    def __init__(self, path, timeout=60.0, hello=True, speaks_for=""):
        self.timeout = timeout
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.connect(path)
        self.buffer = bytearray()
        self.next_id = 1
        self.inbox = {}
        self.eof = False
        if hello:
            self.hello = self.call("hello", {"protocol": 1, "client": "test", "speaks_for": speaks_for})

    def close(self):
        self.socket.close()

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()

    # -- frames

    def send_bytes(self, data, fd=None):
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))] if fd is not None else []
        sent = self.socket.sendmsg([data], ancillary)
        self.socket.sendall(data[sent:])

    def send_frame(self, payload, fd=None):
        self.send_bytes(struct.pack("<I", len(payload)) + payload, fd)

    def send(self, kind, values, fd=None):
        rid = self.next_id
        self.next_id += 1
        self.inbox[rid] = []
        self.send_frame(SCHEMA.encode("Request", {"id": rid, kind: values}), fd)
        return rid

    def _pump(self, deadline):
        """Reads once from the socket and files whole frames. False at the end of the stream."""
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([self.socket], [], [], left)[0]:
            raise TimeoutError(f"no reply from tandemd within {self.timeout:.0f} s")
        try:
            data = self.socket.recv(1 << 20)
        except ConnectionResetError:
            data = b""
        if not data:
            self.eof = True
            return False
        self.buffer += data
        while len(self.buffer) >= 4:
            n = struct.unpack_from("<I", self.buffer)[0]
            if len(self.buffer) < 4 + n:
                break
            reply = SCHEMA.decode("Reply", bytes(self.buffer[4:4 + n]))
            del self.buffer[:4 + n]
            self.inbox.setdefault(reply.get("id", 0), []).append(reply)
        return True

    def receive(self, rid, timeout=None):
        """The next reply to this request as (kind, message)."""
        deadline = time.monotonic() + (timeout or self.timeout)
        while True:
            if self.inbox.get(rid):
                reply = self.inbox[rid].pop(0)
                kind = next((k for k in reply if k != "id"), "")
                return kind, reply.get(kind)
            if self.inbox.get(0):
                raise Refused(self.inbox[0].pop(0).get("error", {}))
            if self.eof or not self._pump(deadline):
                if self.inbox.get(rid) or self.inbox.get(0):
                    continue
                raise Closed("tandemd closed the connection")

    def call(self, kind, values, fd=None, timeout=None):
        """A request with one reply. Raises Refused if the reply is an Error."""
        rid = self.send(kind, values, fd)
        got, message = self.receive(rid, timeout)
        self.inbox.pop(rid, None)
        if got == "error":
            raise Refused(message)
        return message

    def wait_closed(self, timeout=None):
        """Seconds until the daemon hangs up."""
        begin = time.monotonic()
        deadline = begin + (timeout or self.timeout)
        while not self.eof:
            self._pump(deadline)
        return time.monotonic() - begin
