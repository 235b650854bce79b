"""How reports of `verify_export` are shown and stored."""

import dataclasses
import json
import math

import rich.box
import rich.table

PARTS = {
    "format": lambda report: report.format,
    "the same model": lambda report: (
        f"no: {', '.join(report.reasons)}" if report.reasons else "yes"
    ),
    "identical lines": lambda report: f"{report.identical} of {report.lines}",
    "lines beyond tolerance": lambda report: str(report.beyond_tolerance),
    "largest difference, nats": lambda report: (
        f"{report.worst_difference.severity:.2g}"
        if report.worst_difference
        else "0"
    ),
    "largest score difference, nats per token": lambda report: (
        f"{report.score_gap:.2g}"
    ),
    "size, MB": lambda report: f"{report.size_bytes / 1e6:.1f}",
    "load, seconds": lambda report: f"{report.load_seconds:.2f}",
    "a sentence, milliseconds": lambda report: (
        f"{1000 * report.seconds_per_sentence:.2f}"
    ),
    "peak memory, MB": lambda report: f"{report.peak_memory_bytes / 1e6:.0f}",
    "foreign operations": lambda report: (
        ", ".join(report.foreign_operations) or "none"
    ),
}


def show(reports, console):
    """Prints a table with one column per export, and where each differs."""
    table = rich.table.Table(box=rich.box.SIMPLE)
    table.add_column()
    for report in reports:
        table.add_column(report.path, overflow="fold")
    for name, part in PARTS.items():
        table.add_row(name, *(part(report) for report in reports))
    console.print(table)
    for report in reports:
        if report.other_parts:
            console.print(
                f"{report.path} was made from other "
                f"{' and '.join(report.other_parts)} than the translator has: "
                "export it again, or name the translator it was made from.\n",
                soft_wrap=True,
            )
        first, worst = report.first_difference, report.worst_difference
        if first:
            console.print(
                _described(report.path, "first", first), soft_wrap=True
            )
        if worst != first:
            console.print(
                _described(report.path, "most", worst), soft_wrap=True
            )


def to_json(reports) -> str:
    """The full reports as JSON, with `null` for numbers that are not finite."""
    content = [
        {
            **dataclasses.asdict(report),
            "passed": report.passed,
            "reasons": report.reasons,
        }
        for report in reports
    ]
    return json.dumps(_finite(content), indent=2, ensure_ascii=False) + "\n"


def _described(path, which, found):
    apart = "which the model cannot compare"
    if math.isfinite(found.gap):
        apart = (
            f"{found.token_gap:.2g} nats apart; {found.gap:.2g} nats per token "
            "over the whole line"
        )
    return (
        f"{path} differs {which} in line {found.line}: {found.source}\n"
        f"  translator: {found.expected}  ({found.expected_score:.4f} nats)\n"
        f"  export:     {found.found}  ({found.found_score:.4f} nats)\n"
        f"  token {found.position + 1}: {found.expected_token} or "
        f"{found.found_token}, {apart}\n"
    )


def _finite(value):
    if isinstance(value, dict):
        return {key: _finite(x) for key, x in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(x) for x in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
