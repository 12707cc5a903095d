"""NumPy arrays to Arrow columns and back, as `datasets` lays them out in LeRobot's Parquet files.

Shape [1] is a plain column, [n] a fixed-size list, two to five dimensions nested lists that carry the name of the
`datasets` extension type, and a picture a struct of encoded bytes and a file name.
"""

from __future__ import annotations

import io
import json
import math
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rl_lab.buffers.datasets.files import one_line
from rl_lab.buffers.datasets.format import Array, DatasetError
from rl_lab.buffers.datasets.lerobot_format import Feature
from rl_lab.core.durable import reason
from rl_lab.core.errors import ConfigError

try:
    import pyarrow as pa
    import pyarrow.parquet as pq
    from PIL import Image
except ModuleNotFoundError as error:
    raise ConfigError(f"{error.name} is not installed: pip install 'rl-lab[lerobot-data]'") from error

_FORMATS = ("PNG", "JPEG")  # what is written, too; Pillow knows others that run programs
_MODES = {1: "L", 3: "RGB", 4: "RGBA"}


def arrow_schema(features: Mapping[str, Feature]) -> Any:
    """Return the schema of the data files, with what `datasets` wants to know in its metadata."""
    fields = [_arrow_field(name, feature) for name, feature in features.items() if feature.dtype != "video"]
    described = {name: _described(feature) for name, feature in features.items() if feature.dtype != "video"}
    return pa.schema(fields, metadata={"huggingface": json.dumps({"info": {"features": described}})})


def _arrow_field(name: str, feature: Feature) -> Any:
    if feature.dtype == "image":
        return pa.field(name, pa.struct([("bytes", pa.binary()), ("path", pa.string())]))
    kind = pa.from_numpy_dtype(np.dtype(feature.dtype))
    if feature.shape == (1,):
        return pa.field(name, kind)
    if len(feature.shape) == 1:
        return pa.field(name, pa.list_(kind, feature.shape[0]))
    for _ in feature.shape:
        kind = pa.list_(kind)
    metadata = {
        "ARROW:extension:name": f"datasets.features.features.Array{len(feature.shape)}DExtensionType",
        "ARROW:extension:metadata": json.dumps([list(feature.shape), feature.dtype]),
    }
    return pa.field(name, kind, metadata=metadata)


def _described(feature: Feature) -> dict[str, Any]:
    value = {"dtype": feature.dtype, "_type": "Value"}
    if feature.dtype == "image":
        return {"_type": "Image"}
    if feature.shape == (1,):
        return value
    if len(feature.shape) == 1:
        return {"feature": value, "length": feature.shape[0], "_type": "List"}
    return {"shape": list(feature.shape), "dtype": feature.dtype, "_type": f"Array{len(feature.shape)}D"}


def to_arrow(array: Array, feature: Feature) -> Any:
    """Return the column of an array [T, ...]; not for pictures."""
    flat = pa.array(np.ascontiguousarray(array).reshape(-1))
    if feature.shape == (1,):
        return flat
    if len(feature.shape) == 1:
        return pa.FixedSizeListArray.from_arrays(flat, feature.shape[0])
    for size in reversed(feature.shape):
        offsets = np.arange(0, len(flat) + 1, size, dtype=np.int32)
        flat = pa.ListArray.from_arrays(pa.array(offsets), flat)
    return flat


def from_arrow(where: str, column: Any, feature: Feature) -> Array:
    """Return a column as an array [T, *shape]; raises when a frame is missing or looks different."""
    values = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    steps = len(values)
    for size in feature.shape if feature.shape != (1,) else ():
        values = _open_list(where, values, size)
    if feature.shape == (1,) and _is_list(values.type):  # some writers keep a list of one number
        values = _open_list(where, values, 1)
    _reject_nulls(where, values)
    if isinstance(values, pa.ExtensionArray) or _is_list(values.type):
        raise DatasetError(f"{where} is {column.type} instead of {feature.dtype}{list(feature.shape)}")
    array = values.to_numpy(zero_copy_only=False)
    if str(array.dtype) != feature.dtype:
        raise DatasetError(f"{where} is {array.dtype} instead of {feature.dtype}")
    if len(array) != steps * math.prod(feature.shape):
        raise DatasetError(f"{where} has {len(array)} numbers instead of {steps} x {list(feature.shape)}")
    return array.reshape(steps, *feature.shape)


def _open_list(where: str, values: Any, size: int) -> Any:
    """Return the elements of a list column whose lists all have `size` of them."""
    if isinstance(values, pa.ExtensionArray):  # another library has registered the type
        values = values.storage
    _reject_nulls(where, values)
    if not _is_list(values.type):
        raise DatasetError(f"{where} has fewer dimensions than info.json says")
    lengths = values.value_lengths().to_numpy(zero_copy_only=False)
    if len(lengths) and not (lengths == size).all():
        raise DatasetError(f"{where} has a list of {int(lengths[lengths != size][0])} instead of {size}")
    return values.flatten()


def _is_list(kind: Any) -> bool:
    return pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)


def _reject_nulls(where: str, values: Any) -> None:
    if values.null_count:
        raise DatasetError(f"{where} lacks {values.null_count} values")


def pictures_to_arrow(frames: Array, *, jpeg_quality: int | None) -> Any:
    """Return pictures [T, C, H, W] as PNG, or as JPEG of a quality, embedded in a column."""
    name = "frame-{:06d}.png" if jpeg_quality is None else "frame-{:06d}.jpg"
    encoded = [_encode(frame, jpeg_quality) for frame in frames]
    paths = [name.format(number) for number in range(len(frames))]
    return pa.StructArray.from_arrays([pa.array(encoded, pa.binary()), pa.array(paths, pa.string())], ["bytes", "path"])


def _encode(frame: Array, jpeg_quality: int | None) -> bytes:
    image = Image.fromarray(frame[0] if len(frame) == 1 else np.ascontiguousarray(frame.transpose(1, 2, 0)))
    buffer = io.BytesIO()
    if jpeg_quality is None:
        image.save(buffer, "PNG", compress_level=1)
    else:
        image.save(buffer, "JPEG", quality=jpeg_quality)
    return buffer.getvalue()


def pictures_from_arrow(where: str, column: Any, feature: Feature, root: Path) -> Array:
    """Return embedded pictures as [T, C, H, W]; one that is only named is read from the dataset's directory."""
    height, width, channels = feature.shape
    if channels not in _MODES:
        raise DatasetError(f"{where} has {channels} channels; pictures have {', '.join(map(str, _MODES))}")
    frames = np.empty((0, channels, height, width), dtype=np.uint8)
    with warnings.catch_warnings():
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        for number, item in enumerate(column):
            at = f"{where}, row {number}"
            picture = _decode(at, _picture_bytes(at, item.as_py(), root), feature).transpose(2, 0, 1)
            if number == 0:  # only now: what info.json says of the size has been found to be true
                frames = np.empty((len(column), channels, height, width), dtype=np.uint8)
            frames[number] = picture
    return frames


def _picture_bytes(where: str, item: Any, root: Path) -> bytes:
    if not isinstance(item, dict) or (item.get("bytes") is None and item.get("path") is None):
        raise DatasetError(f"{where} has no picture")
    if item["bytes"] is not None:
        return item["bytes"]
    if "\0" in item["path"] or not (path := (root / item["path"]).resolve()).is_relative_to(root.resolve()):
        raise DatasetError(f"{where} names {item['path']!r}, which is outside the dataset")
    try:
        return path.read_bytes()
    except OSError as error:
        raise DatasetError(f"{where}: {path} cannot be read: {reason(error)}") from error


def _decode(where: str, data: bytes, feature: Feature) -> Array:
    height, width, channels = feature.shape
    try:
        with Image.open(io.BytesIO(data), formats=_FORMATS) as image:
            if image.size != (width, height):
                raise DatasetError(f"{where} is {image.size[1]} x {image.size[0]} instead of {height} x {width}")
            pixels = np.asarray(image if image.mode == _MODES[channels] else image.convert(_MODES[channels]))
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        if isinstance(error, DatasetError):
            raise
        raise DatasetError(f"{where} is not a picture ({one_line(error)})") from error
    return pixels.reshape(height, width, channels)


def open_parquet(path: Path) -> Any:
    """Open a Parquet file memory-mapped; one without its footer is named as what it is."""
    try:
        return pq.ParquetFile(path, memory_map=True)
    except FileNotFoundError as error:
        raise DatasetError(f"{path} is missing") from error
    except (pa.ArrowInvalid, OSError) as error:
        raise DatasetError(f"{path} is not whole: it has no Parquet footer ({one_line(error)})") from error


def read_table(path: Path, file: Any, **options: Any) -> Any:
    """Read from an open Parquet file; damage in the middle of it is an error of the dataset."""
    try:
        return file.read(**options) if "row_groups" not in options else file.read_row_groups(**options)
    except (pa.ArrowException, OSError) as error:
        raise DatasetError(f"{path} is damaged ({one_line(error)})") from error
