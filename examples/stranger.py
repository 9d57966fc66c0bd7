"""Write tensors to a topic with msgpack and struct alone: python stranger.py localhost:9092 weather.tensors"""

import struct
import sys

import msgpack
from confluent_kafka import Producer


def message(shape, numbers):
    """A tensor of doubles, given in C order, as bytes that stream_ocpdl reads."""
    header = msgpack.packb({"kind": "tensor", "dtype": "<f8", "shape": shape})
    prefix = struct.pack("<3sBI", b"OCT", 1, len(header)) + header
    return prefix.ljust(-(-len(prefix) // 16) * 16, b"\0") + struct.pack(f"<{len(numbers)}d", *numbers)


if __name__ == "__main__":
    servers, topic = sys.argv[1:]
    producer = Producer({"bootstrap.servers": servers})
    for k in range(10):
        producer.produce(topic, message([4, 3], [float(k + i) for i in range(12)]), key=b"stranger")
    if producer.flush(30) > 0:
        sys.exit("not everything was delivered")
