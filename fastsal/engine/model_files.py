"""Where fastsal's own model is, where models of the Hub are, and what is wrong with a model's files."""

from __future__ import annotations

import json
from pathlib import Path

from safetensors import SafetensorError, safe_open

#: Modules without files of their own, which older versions of sentence-transformers saved no folder for.
_WITHOUT_FILES = ("Normalize",)

#: Modules whose folder holds weights.
_WITH_WEIGHTS = ("CNN", "Dense", "LayerNorm", "LSTM")
_WEIGHT_FILES = ("model.safetensors", "pytorch_model.bin")

#: What the engine reads of a Hub repository.
_HUB_PATTERNS = ["*.json", "*.safetensors"]
_HUB_EXPORTS = ["onnx/*", "openvino/*"]


def default_model_folder() -> Path:
    """SALBERT-mini, which comes with fastsal; its README.md says what it can do."""
    return Path(__file__).parents[1] / "models" / "salbert-mini"


def find_model_folder(model: str) -> Path:
    """A folder as it is; a Hub id (a name without owner is sentence-transformers', as there) from the Hub's cache, or
    downloaded into it.

    Raises:
        OSError: there is neither, or it cannot be downloaded.
    """
    folder = Path(model)
    if folder.is_dir():
        return folder
    if folder.is_absolute() or model.startswith("."):
        raise FileNotFoundError(f"there is no folder {model}")
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import HfHubHTTPError, HFValidationError
    except ImportError:
        raise OSError(
            f"{model!r} is no folder, and to get it from the Hub needs the package huggingface_hub: pip install it"
        ) from None
    owned = "/" in model or model.startswith(("bert-", "albert-"))
    repository = model if owned else f"sentence-transformers/{model}"
    try:
        return Path(snapshot_download(repository, allow_patterns=_HUB_PATTERNS, ignore_patterns=_HUB_EXPORTS))
    except (OSError, ValueError, HFValidationError, HfHubHTTPError) as error:
        raise OSError(f"{model!r} is no folder, and the Hub does not give it: {error}") from error


def find_damage(folder: Path) -> str | None:
    """The first damaged or missing file of a sentence-transformers or Hugging Face model folder, if there is one."""
    for path in sorted(folder.rglob("*.json")):
        try:
            json.loads(path.read_text(encoding="utf-8"))
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            return f"{path} is not valid JSON ({error}): it is truncated or damaged"
    for path in sorted(folder.rglob("*.safetensors")):
        try:
            with safe_open(path, framework="np"):
                pass
        except SafetensorError as error:
            return f"{path} is not a whole safetensors file ({error}): it is truncated or damaged"
    return _find_missing(folder)


def _find_missing(folder: Path) -> str | None:
    modules_file = folder / "modules.json"
    if not modules_file.is_file():
        return None if (folder / "config.json").is_file() else f"{folder / 'config.json'} is missing"
    for module in json.loads(modules_file.read_text(encoding="utf-8")):
        path, name = module.get("path", ""), module.get("type", "").rsplit(".", 1)[-1]
        missing = None
        if name == "Transformer" and not (folder / path / "config.json").is_file():
            missing = "config.json"
        elif not path or name in _WITHOUT_FILES:
            continue
        elif not any((folder / path).glob("*config.json")):
            missing = "configuration file"
        elif name in _WITH_WEIGHTS and not any((folder / path / file).is_file() for file in _WEIGHT_FILES):
            missing = f"weights ({' or '.join(_WEIGHT_FILES)})"
        if missing:
            return f"modules.json names a {name} module, but {folder / path} holds no {missing}"
    return None
