"""What gpu_check found, as tables."""

from __future__ import annotations

from typing import Any


def markdown(report: dict[str, Any]) -> str:
    """The report; a rehearsal's has no figures."""
    failed = {line["row"]: line["error"] for line in report["rows"] if line["state"] == "failed"}
    wrong = {name: outcome for name, outcome in report["tests"].items() if not outcome.startswith("passed")}
    lines = [f"# {report['gpu'] or 'A rehearsal: nothing was launched or measured'}, {report['date']}", ""]
    lines += [f"torch {report['torch']}, Triton {report['triton']}, Python {report['python']}.", ""]
    lines += [
        f"{len(report['rows'])} rows, {len(failed)} failed; {len(report['tests'])} test files, {len(wrong)} failed."
    ]
    for name, reason in {**failed, **wrong}.items():
        lines += ["", f"* **{name}**: {reason.strip().splitlines()[-1]}"]
    if report["rehearsal"]:
        return "\n".join(lines) + "\n"
    results = {line["row"]: line["result"] for line in report["rows"] if line["state"] == "done"}
    peaks = {name[5:]: result["operations_per_second"] for name, result in results.items() if name.startswith("peak ")}
    lines += ["", *(f"Matrix peak {name}: {peak / 1e12:.0f} TFLOP/s." for name, peak in peaks.items())]
    if "copy" in results:
        lines += [f"Copy: {results['copy']['bytes_per_second'] / 1e12:.2f} TB/s."]
    lines += _models([result for result in results.values() if "times" in result], peaks)
    lines += _sweep({name: result for name, result in results.items() if name.startswith("sweep ")})
    for name, result in results.items():
        if "kernels" in result:
            lines += ["", f"## {name}", "", "| kernel | calls | us in all |", "|---|---|---|"]
            lines += [
                f"| `{kernel['kernel'][:80]}` | {kernel['calls']} | {kernel['microseconds']:.0f} |"
                for kernel in result["kernels"][:20]
            ]
    return "\n".join(lines) + "\n"


def _models(results: list[dict[str, Any]], peaks: dict[str, float]) -> list[str]:
    """Seconds of each engine, the host's part in brackets, and the first one's share of the matrix peak."""
    lines = ["", "| model | load | dtype | ms (host's part) | of the peak |", "|---|---|---|---|---|"]
    for result in results:
        times = ", ".join(
            f"{engine} {time['seconds'] * 1e3:.3f} ({time['host_seconds'] * 1e3:.3f})"
            for engine, time in result["times"].items()
        )
        dtype, fraction = result.get("dtype", "bfloat16"), ""
        if "operations" in result and dtype in peaks:
            fraction = f"{result['operations'] / result['times']['fastsal']['seconds'] / peaks[dtype]:.0%}"
        lines.append(f"| {result['model']} | {result['load']} | {dtype} | {times} | {fraction} |")
    return lines


def _sweep(results: dict[str, dict[str, Any]]) -> list[str]:
    """The fastest candidate of each kernel beside cuBLAS."""
    lines = ["", "| sweep: kernel, hidden size, rows | fastest | us | cuBLAS or SDPA, us |", "|---|---|---|---|"]
    for name, result in results.items():
        parts = {name[6:]: result} if "candidates" in result else {f"{k} {name[6:]}": v for k, v in result.items()}
        for label, part in parts.items():
            ran = [candidate for candidate in part["candidates"] if "seconds" in candidate]
            if not ran:
                lines.append(f"| {label} | none ran | | |")
                continue
            best = min(ran, key=lambda candidate: candidate["seconds"])
            what = " ".join(str(value) for key, value in best.items() if key != "seconds")
            rival = part.get("cublas", part.get("sdpa", {})).get("seconds")
            other = "" if rival is None else f"{rival * 1e6:.1f}"
            lines.append(f"| {label} | {what} | {best['seconds'] * 1e6:.1f} | {other} |")
    return lines
