"""Launch configurations and kernel choices, read from the JSON files in configs/: the first call never searches.

A file holds for each kernel a list of rules, for each stage of the encoder that can be computed in several ways a list
of choices, and for each way to compute attention a list of tile sizes. The first rule that fits counts. A rule fits
where the number of rows is at most its `max_rows`, the width (head size, columns) at most its `max_width`, and the
dtype is its `dtype` ("half" for float16 and bfloat16); a key that is missing or null fits everything. The rows of an
attention kernel are the tokens of its tiles.
"""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

CONFIG_DIR = Path(__file__).parent / "configs"

#: File for a GPU, by a part of its name; everything else gets "default".
_FILES_BY_NAME = {"H100": "h200", "H200": "h200", "GH200": "h200"}


@dataclass(frozen=True)
class Tuning:
    """One file of configs/.

    Attributes:
        name: of the file.
        measured: when and on what the choices were measured; None where nobody has.
        kernels, choices, tiles: the rules, see the module.
    """

    name: str
    measured: str | None
    kernels: dict[str, list[dict[str, Any]]]
    choices: dict[str, list[dict[str, Any]]]
    tiles: dict[str, list[dict[str, Any]]]

    def config(self, kernel: str, dtype: torch.dtype, rows: int, width: int = 0) -> dict[str, Any]:
        """Block sizes, num_warps, num_stages and the like for a launch of `kernel`.

        Raises:
            LookupError: no rule fits.
        """
        return dict(self._first(self.kernels, kernel, dtype, rows, width)["config"])

    def choice(self, stage: str, dtype: torch.dtype, rows: int, width: int = 0) -> str:
        """The way to compute `stage` ("fused", "triton", "cublas"; what each means is the backend's matter).

        Raises:
            LookupError: no rule fits.
        """
        return self._first(self.choices, stage, dtype, rows, width)["use"]

    def tile_tokens(self, way: str, dtype: torch.dtype, rows: int, head_size: int) -> int:
        """Tokens of the largest tile for attention computed in this `way` ("fused", "split").

        Raises:
            LookupError: no rule fits.
        """
        return self._first(self.tiles, way, dtype, rows, head_size)["tokens"]

    def _first(
        self, table: dict[str, list[dict[str, Any]]], key: str, dtype: torch.dtype, rows: int, width: int
    ) -> dict[str, Any]:
        family = "float32" if dtype == torch.float32 else "half"
        for rule in table.get(key, ()):
            if (
                rule.get("dtype") in (None, family)
                and rows <= (rule.get("max_rows") or rows)
                and width <= (rule.get("max_width") or width)
            ):
                return rule
        raise LookupError(f"{self.name}.json has no rule for {key} in {dtype} with {rows} rows and width {width}")


@functools.cache
def load(name: str) -> Tuning:
    """The file ``configs/{name}.json``."""
    return read(CONFIG_DIR / f"{name}.json")


def read(path: Path) -> Tuning:
    """A file like those of configs/."""
    content = json.loads(path.read_text(encoding="utf-8"))
    parts = {part: content[part] for part in ("measured", "kernels", "choices", "tiles")}
    return Tuning(name=path.stem, **parts)


@functools.cache
def tuning_for(device: torch.device) -> Tuning:
    """The configurations for a device. A CPU (Triton's interpreter) gets the default ones."""
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
        for part, file in _FILES_BY_NAME.items():
            if part in name:
                return load(file)
    return load("default")
