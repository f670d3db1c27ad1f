"""The devkit: which class each validation image is of. Its meta.mat is a MATLAB 5 file, read here without MATLAB or SciPy."""
import struct
import tarfile
import zlib

from .basics import BadData


def read_devkit(path):
    """(class of each validation image in order, all classes). meta.mat numbers the classes: ILSVRC2012_ID 1..1000."""
    synsets = labels = None
    with tarfile.open(path) as archive:
        for member in archive:
            if member.name.endswith("data/meta.mat"):
                synsets = read_meta(archive.extractfile(member).read(), f"{path}: meta.mat")
            elif member.name.endswith("data/ILSVRC2012_validation_ground_truth.txt"):
                labels = [int(word) for word in archive.extractfile(member).read().split()]
    if synsets is None or labels is None:
        raise BadData(f"{path}: no meta.mat or no ILSVRC2012_validation_ground_truth.txt in it")
    for number, label in enumerate(labels, 1):
        if label not in synsets:
            raise BadData(f"{path}: ground truth line {number}: class {label} is not in meta.mat")
    return [synsets[label] for label in labels], set(synsets.values())


def mat_elements(data, where):
    """MATLAB 5: elements of {type, bytes, payload padded to 8}; small ones have both in one word."""
    offset = 0
    while offset + 8 <= len(data):
        kind, size = struct.unpack_from("<II", data, offset)
        if kind >> 16:
            kind, size, begin, step = kind & 0xFFFF, kind >> 16, offset + 4, 8
        else:
            begin, step = offset + 8, 8 + (size if kind == 15 else (size + 7) // 8 * 8)
        if size > len(data) - begin:
            raise BadData(f"{where}: at byte {offset}: an element of {size} bytes goes past the end")
        payload = data[begin:begin + size]
        if kind == 15:  # compressed
            yield from mat_elements(zlib.decompress(payload), where)
        else:
            yield kind, payload
        offset += step


def mat_value(payload, where):
    """A number, a string, or (for the struct array) a list of fields: what meta.mat is made of."""
    parts = list(mat_elements(payload, where))
    if len(parts) < 4:
        return None
    array_class = parts[0][1][0]
    if array_class == 2:  # struct: flags, dimensions, name, field name length, field names, then the fields of each entry
        width = struct.unpack("<i", parts[3][1][:4])[0]
        names = [parts[4][1][i:i + width].split(b"\0")[0].decode() for i in range(0, len(parts[4][1]), width)]
        values = [part[1] for part in parts[5:]]
        return [dict(zip(names, values[i:i + len(names)])) for i in range(0, len(values), len(names))]
    kind, raw = parts[3]
    if array_class == 4:  # text, as 1- or 2-byte characters
        return raw.decode("utf-16-le" if kind in (4, 17) else "utf-8")
    form = {1: "b", 2: "B", 3: "h", 4: "H", 5: "i", 6: "I", 7: "f", 9: "d", 12: "q", 13: "Q"}.get(kind)
    return struct.unpack_from("<" + form, raw)[0] if form and raw else None


def read_meta(data, where):
    try:
        for kind, payload in mat_elements(data[128:], where):
            if kind == 14:
                entries = mat_value(payload, where)
                found = {}
                for entry in entries:
                    number, children = mat_value(entry["ILSVRC2012_ID"], where), mat_value(entry["num_children"], where)
                    if int(children) == 0:  # inner nodes of the hierarchy are no classes
                        found[int(number)] = mat_value(entry["WNID"], where)
                if found:
                    return found
    except (struct.error, KeyError, TypeError, IndexError, ValueError, zlib.error) as error:
        raise BadData(f"{where}: not the structure of the official devkit ({error!r})") from error
    raise BadData(f"{where}: no classes in it")
