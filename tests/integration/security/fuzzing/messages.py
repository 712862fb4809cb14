"""Random messages: made from descriptors, with values at every edge, and sometimes broken."""

import random
import string
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from google.protobuf.struct_pb2 import Struct

TEXTS = (
    "", "a", "run", "f", "t1", "noop", "rollout", "../x", "/etc/passwd", "a/b", "\u00b2", "9" * 5000, "-1", "\x00",
    "\x1b[2J", "\u202e", "x" * 20_000, "nan", "1e999", "virtual_nodes", "\U0010ffff", "%s%n", "{}", "null",
)  # fmt: skip
FLOATS = (0.0, 1.0, -1.0, 0.5, float("nan"), float("inf"), float("-inf"), 1e308, -1e308, 5e-324, 1e18)
DEPTH = 4
_SIGNED = frozenset(
    {
        FieldDescriptor.CPPTYPE_INT32,
        FieldDescriptor.CPPTYPE_INT64,
    }
)
_BITS = {
    FieldDescriptor.CPPTYPE_INT32: 32,
    FieldDescriptor.CPPTYPE_UINT32: 32,
    FieldDescriptor.CPPTYPE_INT64: 64,
    FieldDescriptor.CPPTYPE_UINT64: 64,
}


class Fuzzer:
    """The same seed makes the same messages."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def encoded(self, descriptor: Descriptor) -> bytes:
        """A message of that type as bytes; one in five is broken."""
        data = self.message(descriptor).SerializeToString()
        return self.broken(data) if self.random.random() < 0.2 else data

    def message(self, descriptor: Descriptor, depth: int = DEPTH) -> Message:
        message = GetMessageClass(descriptor)()
        if isinstance(message, Struct):
            message.update(self.json_object(depth))
            return message
        for field in descriptor.fields:
            if self.random.random() < 0.6:
                self._fill(message, field, depth)
        return message

    def _fill(self, message: Any, field: FieldDescriptor, depth: int) -> None:
        kind = field.message_type
        if kind is not None and depth == 0:
            return
        if kind is not None and kind.GetOptions().map_entry:
            self._fill_map(getattr(message, field.name), kind, depth)
        elif field.is_repeated:
            for _ in range(self.random.choice((0, 1, 1, 2, 3, 50))):
                values = getattr(message, field.name)
                if kind is not None:
                    values.add().CopyFrom(self.message(kind, depth - 1))
                else:
                    values.append(self.scalar(field))
        elif kind is not None:
            getattr(message, field.name).CopyFrom(self.message(kind, depth - 1))
        else:
            setattr(message, field.name, self.scalar(field))

    def _fill_map(self, values: Any, entry: Descriptor, depth: int) -> None:
        key, value = entry.fields_by_name["key"], entry.fields_by_name["value"]
        for _ in range(self.random.choice((0, 1, 3, 100))):
            if value.message_type is not None:
                values[self.scalar(key)].CopyFrom(self.message(value.message_type, depth - 1))
            else:
                values[self.scalar(key)] = self.scalar(value)

    def scalar(self, field: FieldDescriptor) -> Any:
        kind = field.cpp_type
        if kind == FieldDescriptor.CPPTYPE_STRING:
            return self.octets() if field.type == FieldDescriptor.TYPE_BYTES else self.text()
        if kind == FieldDescriptor.CPPTYPE_BOOL:
            return self.random.random() < 0.5
        if kind == FieldDescriptor.CPPTYPE_ENUM:
            return self.random.choice((0, 1, 2, 3, 8, 99, 1 << 30))
        if kind in _BITS:
            return self.integer(_BITS[kind], signed=kind in _SIGNED)
        number = self.random.choice(FLOATS)
        # A float field does not accept a double beyond its range.
        return number if kind == FieldDescriptor.CPPTYPE_DOUBLE or abs(number) < 1e38 else float("inf")

    def integer(self, bits: int, *, signed: bool) -> int:
        least, most = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if signed else (0, (1 << bits) - 1)
        edges = (0, 1, 2, 3, 10, 1000, -1, 1 << 31, 1 << 53, least, most)
        chosen = self.random.choice((*edges, self.random.getrandbits(bits)))
        return min(max(chosen, least), most)

    def text(self) -> str:
        if self.random.random() < 0.7:
            return self.random.choice(TEXTS)
        return "".join(self.random.choices(string.printable, k=self.random.randrange(20)))

    def octets(self) -> bytes:
        return self.random.randbytes(self.random.choice((0, 1, 4, 16, 32, 1000)))

    def json_object(self, depth: int) -> dict[str, Any]:
        names = (*TEXTS[:6], "task", "rounds", "quorum", "training", "environment", "id", "hidden", "algorithm", "seed")
        return {self.random.choice(names): self.json(depth - 1) for _ in range(self.random.randrange(6))}

    def json(self, depth: int) -> Any:
        if depth > 0 and self.random.random() < 0.3:
            return self.json_object(depth)
        if depth > 0 and self.random.random() < 0.2:
            return [self.json(depth - 1) for _ in range(self.random.randrange(5))]
        usual = ("CartPole-v1", "drift", [100_000, 100_000])
        return self.random.choice((None, True, 0, 1, -1, 1e308, 100_000, self.text(), *usual))

    def broken(self, data: bytes) -> bytes:
        """Cut, flipped, repeated, or with something inserted."""
        damaged = bytearray(data)
        for _ in range(self.random.randrange(1, 4)):
            place = self.random.randrange(len(damaged) + 1)
            way = self.random.randrange(4)
            if way == 0:
                del damaged[place:]
            elif way == 1 and place < len(damaged):
                damaged[place] ^= 1 << self.random.randrange(8)
            elif way == 2:
                damaged[place:place] = self.random.randbytes(self.random.randrange(1, 9))
            elif len(damaged) < 1 << 20:
                damaged += damaged[:place]
        return bytes(damaged)
