"""Makes the data set that ships with Outboard: a class-balanced subset of Fashion-MNIST.

    python make.py /usr/share/datasets/fashion-mnist          (Debian package dataset-fashion-mnist)

For each split, the first N images of each class, in the order in which they stand in the original. Fashion-MNIST is
Copyright (c) 2017 Zalando SE, under the MIT licence in LICENSE-fashion-mnist beside this file.
"""

import gzip
import pathlib
import struct
import sys

CLASSES = 10
source, here = pathlib.Path(sys.argv[1]), pathlib.Path(__file__).parent

for split, per_class in [("train", 200), ("t10k", 50)]:
    images = gzip.decompress((source / f"{split}-images-idx3-ubyte.gz").read_bytes())
    labels = gzip.decompress((source / f"{split}-labels-idx1-ubyte.gz").read_bytes())
    magic, count, height, width = struct.unpack(">4I", images[:16])
    assert magic == 0x803 and struct.unpack(">2I", labels[:8]) == (0x801, count)
    taken, kept = [0] * CLASSES, []
    for index, label in enumerate(labels[8:]):
        if taken[label] < per_class:
            taken[label] += 1
            kept.append(index)
    size = height * width
    pixels = b"".join(images[16 + i * size:16 + (i + 1) * size] for i in kept)
    files = {
        f"{split}-images-idx3-ubyte.gz": struct.pack(">4I", 0x803, len(kept), height, width) + pixels,
        f"{split}-labels-idx1-ubyte.gz": struct.pack(">2I", 0x801, len(kept)) + bytes(labels[8 + i] for i in kept),
    }
    for name, data in files.items():
        # Without a time stamp, so that the same input gives the same bytes.
        (here / name).write_bytes(gzip.compress(data, 9, mtime=0))
