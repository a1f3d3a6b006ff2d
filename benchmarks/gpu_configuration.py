"""A configuration file from what gpu_sweep measured, and the configurations that measuring starts from."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
from gpu_timing import Clock

from fastsal.kernels.triton.tuning import CONFIG_DIR, Tuning, load, read, tuning_for

#: Python's part of a layer's launches. A graph, which calls no cuBLAS, saves it.
LAUNCH_SECONDS = 120e-6

#: Products of a layer. `down` comes last: of those with as many columns it takes longest.
_STAGES = ("qkv", "up", "attention_output", "down")


def shipped_tuning(clock: Clock) -> Tuning:
    """The file for this GPU; a rehearsal's is the H200's."""
    return load("h200") if clock.rehearses else tuning_for(torch.device("cuda", torch.cuda.current_device()))


def chosen_tuning(configuration: Path | None, clock: Clock) -> Tuning:
    """The configuration given, or else the shipped one."""
    return shipped_tuning(clock) if configuration is None else read(configuration)


def measured_configuration(ended: dict[str, dict[str, Any]], name: str, measured: str) -> dict[str, Any]:
    """The content of a configuration file.

    Args:
        ended: rows of gpu_rows.RowFile; the sweep's that failed leave the shipped rules in their place.
        name: of the shipped file.
        measured: when and on what.

    Rules for half precision are new, each with its time; those of float32, and of kernels that the sweep does not try,
    stay as they are.
    """
    content = json.loads((CONFIG_DIR / f"{name}.json").read_text(encoding="utf-8"))
    sweep = _Sweep(ended)
    kernels, choices, tiles = content["kernels"], content["choices"], content["tiles"]
    for kernel, rules in (
        ("linear", sweep.linear_rules()),
        ("project_norm", sweep.project_norm_rules()),
        ("residual_norm", sweep.norm_rules("residual_norm")),
        ("bias_activation", sweep.norm_rules("bias_activation")),
        ("qkv_attention", sweep.tile_rules(sweep.fused)),
        ("attention", sweep.tile_rules(sweep.split)),
    ):
        kernels[kernel] = _before(rules, kernels[kernel])
    for stage, rules in sweep.choices().items():
        choices[stage] = _before(rules, choices[stage])
    tiles["fused"] = _before(sweep.fused_tiles(), tiles["fused"])
    tiles["split"] = _before(sweep.split_tiles(), tiles["split"])
    content["measured"] = measured
    return content


def dumps(content: dict[str, Any]) -> str:
    """JSON with a rule per line."""
    lines = ["{", f'  "measured": {json.dumps(content["measured"])},']
    parts = ("tiles", "kernels", "choices")
    for part in parts:
        tables = [
            f'    "{key}": [\n' + ",\n".join(f"      {json.dumps(rule)}" for rule in rules) + "\n    ]"
            for key, rules in content[part].items()
        ]
        lines += [f'  "{part}": {{', ",\n".join(tables), "  }" + ("," if part != parts[-1] else "")]
    return "\n".join([*lines, "}"]) + "\n"


def _before(rules: list[dict[str, Any]], shipped: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """New rules for half precision in front of the shipped ones, which hold for what was not measured."""
    return [{"dtype": "half", **rule} for rule in rules] + shipped


def _best(candidates: list[dict[str, Any]]) -> dict[str, Any] | None:
    """The fastest of those that ran."""
    return min((c for c in candidates if "seconds" in c), key=lambda c: c["seconds"], default=None)


def _seconds(candidate: dict[str, Any] | None) -> float:
    return float("inf") if candidate is None else candidate.get("seconds", float("inf"))


def _rules(found: dict[int, dict[int, dict[str, Any]]], open_width: bool) -> list[dict[str, Any]]:
    """Rules from what was found by width and number of rows; neighbours that say the same are one.

    The largest number of rows stands for all larger ones, and with `open_width` the largest width.
    """
    rules: list[dict[str, Any]] = []
    for width in sorted(found):
        of_width: list[dict[str, Any]] = []
        for rows in sorted(found[width]):
            rule = found[width][rows]
            same = of_width and all(of_width[-1].get(key) == rule.get(key) for key in ("config", "use", "tokens"))
            if same:
                of_width[-1]["max_rows"] = rows
            else:
                of_width.append({"max_rows": rows, "max_width": width, **rule})
        of_width[-1].pop("max_rows")
        rules += of_width
    if open_width:
        for rule in rules:
            if rule["max_width"] == max(found):
                del rule["max_width"]
    return rules


class _Sweep:
    """The sweep's results, by kernel."""

    def __init__(self, ended: dict[str, dict[str, Any]]) -> None:
        self.linear: dict[tuple[int, int], dict[str, Any]] = {}
        self.norm: dict[tuple[int, int], dict[str, Any]] = {}
        self.fused: dict[tuple[int, int], dict[str, Any]] = {}
        self.split: dict[tuple[int, int], dict[str, Any]] = {}
        for name, line in ended.items():
            if name.startswith("sweep ") and "result" in line:
                _, family, hidden, rows = name.split()
                getattr(self, family)[int(hidden), int(rows)] = line["result"]

    def linear_rules(self) -> list[dict[str, Any]]:
        """By the columns of the result; `down` counts where two products have as many."""
        found: dict[int, dict[int, dict[str, Any]]] = defaultdict(dict)
        for (_, rows), stages in self.linear.items():
            for stage in _STAGES:
                best = _best(stages[stage]["candidates"])
                if best is not None:
                    found[stages[stage]["width"]][rows] = _timed_rule(best)
        return _rules(found, open_width=True) if found else []

    def project_norm_rules(self) -> list[dict[str, Any]]:
        found: dict[int, dict[int, dict[str, Any]]] = defaultdict(dict)
        for (_, rows), stages in self.linear.items():
            best = _best(stages["down"]["project_norm"])
            if best is not None:
                found[stages["down"]["width"]][rows] = _timed_rule(best)
        return _rules(found, open_width=True) if found else []

    def norm_rules(self, kernel: str) -> list[dict[str, Any]]:
        found: dict[int, dict[int, dict[str, Any]]] = defaultdict(dict)
        for (_, rows), kernels in self.norm.items():
            best = _best(kernels[kernel]["candidates"])
            if best is not None:
                found[kernels[kernel]["width"]][rows] = _timed_rule(best)
        return _rules(found, open_width=False) if found else []

    def tile_rules(self, results: dict[tuple[int, int], dict[str, Any]]) -> list[dict[str, Any]]:
        """Of an attention kernel: for each size of head and tile the configuration that was fastest in all."""
        totals: dict[tuple[int, int, str], list[float]] = defaultdict(list)
        for result in results.values():
            for candidate in result["candidates"]:
                key = (result["width"], candidate["tile"], json.dumps(candidate["config"]))
                totals[key].append(_seconds(candidate))
        found: dict[int, dict[int, dict[str, Any]]] = defaultdict(dict)
        for width, tile in sorted({key[:2] for key in totals}):
            seconds, config = min((sum(t), c) for (w, size, c), t in totals.items() if (w, size) == (width, tile))
            if seconds < float("inf"):
                found[width][tile] = _timed_rule({"config": json.loads(config), "seconds": seconds})
        return _rules(found, open_width=False) if found else []

    def fused_tiles(self) -> list[dict[str, Any]]:
        """By the number of rows. Where sentences of so many tokens might not fit, no smaller tile is taken."""
        found: dict[int, dict[int, dict[str, Any]]] = defaultdict(dict)
        for (_, rows), result in self.fused.items():
            best = _best([c for c in result["candidates"] if c["tile"] >= min(rows, 64)])
            if best is not None:
                found[result["width"]][rows] = {"tokens": best["tile"], "microseconds": _microseconds(best)}
        return _rules(found, open_width=False) if found else []

    def split_tiles(self) -> list[dict[str, Any]]:
        """The largest tile: what long sentences are fastest with."""
        found: dict[int, dict[int, dict[str, Any]]] = defaultdict(dict)
        for (_, length), result in self.split.items():
            best = _best(result["candidates"])
            if length > 128 and best is not None:
                found[result["width"]][length] = {"tokens": best["tile"], "microseconds": _microseconds(best)}
        return _rules(found, open_width=False) if found else []

    def choices(self) -> dict[str, list[dict[str, Any]]]:
        """The fastest way for each stage, width and number of rows; cuBLAS not where graphs win."""
        stages: dict[str, dict[int, dict[int, dict[str, Any]]]] = {stage: defaultdict(dict) for stage in _STAGES}
        attention: dict[int, dict[int, dict[str, Any]]] = defaultdict(dict)
        for (hidden, rows), products in self.linear.items():
            norm = self.norm.get((hidden, rows), {}).get("residual_norm", {}).get("candidates", [])
            times = {stage: self._ways(products[stage], stage, _seconds(_best(norm))) for stage in _STAGES}
            launched = max(sum(min(ways.values()) for ways in times.values()), LAUNCH_SECONDS)
            replayed = sum(min(seconds for way, seconds in ways.items() if way != "cublas") for ways in times.values())
            if replayed <= launched:
                for ways in times.values():
                    del ways["cublas"]
            for stage, ways in times.items():
                use = min(ways, key=ways.__getitem__)
                if ways[use] < float("inf"):
                    width = products[stage]["width"]
                    stages[stage][width][rows] = {"use": use, "microseconds": round(ways[use] * 1e6, 2)}
            fused, split = self.fused.get((hidden, rows)), self.split.get((hidden, 15))
            if fused is not None and split is not None:
                seconds = {
                    "fused": _seconds(_best(fused["candidates"])),
                    "split": min(times["qkv"].values()) + _seconds(_best(split["candidates"])) * rows / split["rows"],
                }
                use = min(seconds, key=seconds.__getitem__)
                attention[fused["width"]][rows] = {"use": use, "microseconds": round(seconds[use] * 1e6, 2)}
        rules = {stage: _rules(found, open_width=True) for stage, found in stages.items() if found}
        return {**rules, "attention": _rules(attention, open_width=False)} if attention else rules

    @staticmethod
    def _ways(product: dict[str, Any], stage: str, norm: float) -> dict[str, float]:
        ways = {"triton": _seconds(_best(product["candidates"])), "cublas": _seconds(product["cublas"])}
        if "project_norm" in product:
            ways["triton"] += norm
            ways["fused"] = _seconds(_best(product["project_norm"]))
        return ways


def _timed_rule(candidate: dict[str, Any]) -> dict[str, Any]:
    return {"config": candidate["config"], "microseconds": _microseconds(candidate)}


def _microseconds(candidate: dict[str, Any]) -> float:
    return round(candidate["seconds"] * 1e6, 2)
