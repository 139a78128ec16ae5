"""The comparison as text: a line for every figure, a column for every engine."""

from collections.abc import Callable
from typing import Any

from benchmarks import machine

_MIB = 2**20
Line = tuple[str, str, Callable[[float], str]]


def _lines(plan: dict[str, Any]) -> list[Line]:
    """(what, key, how to write it)"""

    def rate(value: float) -> str:
        return f"{value:.1f}"

    def seconds(value: float) -> str:
        return f"{value:.2f}"

    def milliseconds(value: float) -> str:
        return f"{1000 * value:.2f}"

    def times(value: float) -> str:
        return f"{value:.2f}"

    def mib(value: float) -> str:
        return f"{value / _MIB:.0f}"

    prompt, shallow = plan["prompt"], plan["shallow"]
    return [
        (f"prompt of {prompt}, tokens/s", "prompt_rate", rate),
        ("its first token, s", "first_token", seconds),
        (f"decode at {shallow}, tokens/s", f"decode_at_{shallow}", rate),
        (f"decode at {prompt}, tokens/s", f"decode_at_{prompt}", rate),
        (f"{plan['streams']} streams, tokens/s", "streams_rate", rate),
        ("step of 1 row, ms", "step_1", milliseconds),
        ("step of 4 rows / 1 row", "step_4_to_1", times),
        ("step of 8 rows / 1 row", "step_8_to_1", times),
        ("first start, s", "load_cold", seconds),
        ("later start, s", "load_warm", seconds),
        ("resident, MiB", "resident_bytes", mib),
        ("resident at most, MiB", "peak_resident_bytes", mib),
        ("state, MiB", "state_bytes", mib),
    ]


def table(report: dict[str, Any]) -> str:
    """The report of `peers.measure`."""
    plan, engines = report["plan"], report["engines"]
    heads = [engine["name"] for engine in engines]
    lines = _lines(plan)
    first = max(len(what) for what, _, _ in lines)
    widths = [max(len(head), 9) for head in heads]
    out = [
        machine.heading(report["machine"]),
        f"{report['model']}, {report['file_bytes'] / _MIB:.0f} MiB; medians of {plan['runs']} "
        f"runs in turns; replies of {plan['tokens']} tokens",
        "",
        " " * first + "".join(f"  {head:>{w}}" for head, w in zip(heads, widths, strict=True)),
    ]
    for what, key, write in lines:
        cells = [write(engine[key]) if key in engine else "-" for engine in engines]
        row = "".join(f"  {cell:>{w}}" for cell, w in zip(cells, widths, strict=True))
        out.append(f"{what:{first}}{row}")
    out.append("")
    for name, ratios in report["to_the_best_peer"].items():
        named = ", ".join(f"{what} {ratios[key]:.2f}" for what, key, _ in lines if key in ratios)
        out.append(f"{name} to the best peer of each run, median: {named}")
    for engine in engines:
        out.append(f"{engine['name']}: {engine['error'] or engine['about']}")
    return "\n".join(out)
