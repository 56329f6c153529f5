"""/docs: the OpenAPI document as one page for people, without scripts and without resources from other hosts."""

import json
from collections.abc import Iterator
from functools import cache
from html import escape
from typing import Any, Final

from orcastream.gateway.openai.document import document

HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
}
_STYLE: Final = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
code, pre { font-family: ui-monospace, monospace; font-size: 0.9em; }
pre { padding: 0.75rem; overflow-x: auto; border: 1px solid color-mix(in srgb, currentColor 25%, transparent); }
table { border-collapse: collapse; width: 100%; }
td, th { text-align: left; vertical-align: top; padding: 0.3rem 0.6rem 0.3rem 0; }
tr { border-bottom: 1px solid color-mix(in srgb, currentColor 15%, transparent); }
h2 { margin-top: 2.5rem; } h2 .method { opacity: 0.6; }
"""


@cache
def docs_page() -> str:
    """Return the page."""
    described = document()
    title = escape(f"{described['info']['title']} {described['info']['version']}: HTTP API")
    operations = [
        _operation(path, method, operation)
        for path, methods in described["paths"].items()
        for method, operation in methods.items()
    ]
    intro = escape(described["info"]["description"])
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{_STYLE}</style></head><body><h1>{title}</h1><p>{intro} For machines: "
        f'<a href="openapi.json">openapi.json</a>.</p>{"".join(operations)}</body></html>'
    )


def _operation(path: str, method: str, operation: dict[str, Any]) -> str:
    parts = [
        f'<h2><span class="method">{method.upper()}</span> <code>{escape(path)}</code></h2>',
        f"<p>{escape(operation['summary'])}</p>",
    ]
    if parameters := operation.get("parameters"):
        parts.append(_table((each["name"], each.get("description", ""), each["schema"]) for each in parameters))
    body = next(iter(operation.get("requestBody", {}).get("content", {}).values()), None)
    if body is not None:
        schema = document()["components"]["schemas"][body["schema"]["$ref"].rpartition("/")[2]]
        required = schema.get("required", ())
        parts.append(
            _table(
                (f"{name} *" if name in required else name, inner.get("description", ""), inner)
                for name, inner in schema["properties"].items()
            )
        )
        parts += [_example(name, example) for name, example in body.get("examples", {}).items()]
    answers = [f"{status}: {told['description']}" for status, told in operation["responses"].items()]
    return "".join(parts) + "<ul>" + "".join(f"<li>{escape(answer)}</li>" for answer in answers) + "</ul>"


def _example(name: str, example: dict[str, Any]) -> str:
    written = json.dumps(example["value"], indent=2, ensure_ascii=False)
    return f"<p>{escape(example.get('summary', name))}</p><pre>{escape(written)}</pre>"


def _table(rows: Iterator[tuple[str, str, dict[str, Any]]]) -> str:
    lines = [
        f"<tr><td><code>{escape(name)}</code></td><td>{escape(_kind(schema))}</td><td>{escape(told)}</td></tr>"
        for name, told, schema in rows
    ]
    return f"<table><tr><th>name</th><th>allowed</th><th></th></tr>{''.join(lines)}</table>"


def _kind(schema: dict[str, Any]) -> str:
    """Describe in a few words what a schema allows."""
    if "anyOf" in schema:
        kinds = [_kind(each) for each in schema["anyOf"] if each.get("type") != "null"]
        return " or ".join(dict.fromkeys(kinds)) or "null"
    if 0 in (schema.get("maxItems"), schema.get("maxProperties")):
        return "[]" if schema["type"] == "array" else "{}"
    if "enum" in schema:
        return (
            ", ".join(json.dumps(value, ensure_ascii=False) for value in schema["enum"] if value is not None) or "null"
        )
    if "const" in schema:
        return json.dumps(schema["const"])
    kind = str(schema.get("type", "any"))
    if kind == "array" and "items" in schema:
        return f"array of {_kind(schema['items'])}"
    bounds = [
        f"{sign} {schema[name]}"
        for name, sign in (
            ("minimum", "≥"),
            ("exclusiveMinimum", ">"),
            ("maximum", "≤"),
            ("maxLength", "length ≤"),
        )
        if name in schema
    ]
    return " ".join([kind, *bounds])
